//! Feed: one resource in one namespace, and its messages to the hub.

use std::collections::HashMap;

use tokio::sync::mpsc::Sender;

use super::decode::WatchedObject;
use super::resource_kind::ResourceKind;
use crate::client::percent_encoded;

/// Resource, namespace and labels that are listed and watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Feed {
    pub(super) resource: ResourceKind,
    /// Namespace; `None`: all.
    pub(super) namespace: Option<String>,
    pub(super) labels: Option<String>,
    pub(super) necessity: Necessity,
    /// Whether certificates that objects hold are kept.
    pub(super) has_certificates: bool,
}

/// Loss if a feed's objects are forbidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Necessity {
    /// Names or hosts are lost.
    Required,
    /// Nothing is lost as long as another guess succeeds: the feed is one of several namespaces where routers may be.
    Speculative,
    /// Only details of other objects are lost.
    Optional,
}

impl Feed {
    /// Returns the name for messages: `routes.route.openshift.io in namespace shop`.
    pub(super) fn name(&self) -> String {
        let place = self
            .namespace
            .as_ref()
            .map(|namespace| format!(" in namespace {namespace}"));
        format!("{}{}", self.resource.in_roles(), place.unwrap_or_default())
    }

    /// Returns the path of the objects at one API group and version, with a query.
    pub(super) fn path(&self, home: &str, query: &str) -> String {
        let namespace = self.namespace.as_ref().map(|name| format!("/namespaces/{name}"));
        let selector = self.labels.as_deref().map(percent_encoded);
        format!(
            "/{home}{}/{}?{query}{}{}",
            namespace.unwrap_or_default(),
            self.resource.plural(),
            self.resource.field_selector(),
            selector.map_or_else(String::new, |labels| format!("&labelSelector={labels}")),
        )
    }
}

/// Message of a feed to the hub.
pub(super) enum FeedUpdate {
    /// All objects.
    Listed(HashMap<String, WatchedObject>),
    /// A new or changed object by its key; `None`: it is gone, or can no longer be decoded.
    Changed(String, Option<WatchedObject>),
    /// The server does not have the resource.
    Absent,
    /// No change, but the server is there.
    Heard,
    /// The feed does not get its objects. `denied`: because a right is missing.
    Failed {
        text: String,
        /// Verdict on the server, for the log.
        remark: &'static str,
        denied: bool,
    },
}

/// Channel of a feed to the hub.
pub(super) struct UpdateSender {
    number: usize,
    hub: Sender<(usize, FeedUpdate)>,
}

impl UpdateSender {
    pub(super) fn new(number: usize, hub: Sender<(usize, FeedUpdate)>) -> Self {
        Self { number, hub }
    }

    pub(super) async fn send(&self, update: FeedUpdate) {
        if self.hub.send((self.number, update)).await.is_err() {
            // The hub has ended, and aborts this task as soon as it waits.
            std::future::pending::<()>().await;
        }
    }
}
