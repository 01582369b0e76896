//! Watches a cluster's API server for router hosts and names, both in the balancer and in `signalbox agent`.
//!
//! A [`feed`] is one resource in one namespace: [`follow`] lists it, then watches, and [`decode`]s objects into the
//! core's small types. The [`hub`] holds them all, has `core::discovered::claims` derive names and hosts, and reports to the store.
//! When the server is lost, everything stays as reported last.
//!
//! Only this module uses the kube crate, and of it only kubeconfigs and TLS: its client runs credential programs on
//! threads that cannot be cancelled. The watcher of kube-runtime 5 on `DynamicObject` was compared with [`follow`] and
//! [`read`]. It swallows bookmarks, so that a quiet resource looks stale, and watches that break off, so that a lost
//! server is noticed late. It resumes at its version without checking whether the server was restored to an older
//! state, and would wait there forever. A list whose pages expire begins again with pages, endlessly. Lines and lists
//! have no limit of length. One object whose metadata are malformed fails the whole list, without its name.

mod access;
mod certificate_writer;
mod client;
mod connect;
mod decode;
mod diagnosis;
mod feed;
mod follow;
mod hub;
mod kubeconfig;
mod malformed;
mod program;
mod proxy;
mod reachability;
mod read;
mod resource_kind;
mod server_tls;
mod watch_error;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use signalbox_core::discovered::claims::ClaimRules;
use signalbox_core::model::kubernetes::{AddressType, KubernetesSource, Resource, Routers};
use tokio::sync::mpsc::{UnboundedSender, channel};
use tokio::task::{JoinHandle, JoinSet};

use super::{DiscoveryUpdate, SourceStatus};
use connect::Connector;
use feed::{Feed, Necessity};
use hub::Hub;
use resource_kind::ResourceKind;

pub use decode::{class, gateway, namespace, node, object, pod};

/// Most events that wait for the hub before feeds stop reading: they come from the network, and faster than they are
/// processed only while a list is read.
const MAX_QUEUED_UPDATES: usize = 1024;

/// Settings of a cluster's watch: resources and time limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Configuration of the source.
    pub source: KubernetesSource,
    /// Intervals and time limits.
    pub timings: Timings,
    /// Directory for certificates, if the configuration of the source asks for them.
    pub certificates: Option<PathBuf>,
}

impl Settings {
    /// Makes settings with the usual intervals and time limits.
    #[must_use]
    pub fn new(source: KubernetesSource) -> Self {
        Self {
            source,
            timings: Timings::default(),
            certificates: None,
        }
    }

    /// Returns the rules by which the core chooses and reads objects.
    #[must_use]
    pub fn rules(&self) -> ClaimRules {
        let Routers {
            address, http, https, ..
        } = self.source.routers;
        ClaimRules {
            shard: self.source.shard.clone(),
            filtered_by_label: self.source.labels.is_some(),
            wildcards: self.source.wildcards,
            takes_certificates: self.source.certificates,
            address_type: address,
            http,
            https,
        }
    }
}

/// Intervals and time limits, which tests shorten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timings {
    /// Least interval between two reports. A change after a longer pause is reported at once, further ones together.
    pub settle: Duration,
    /// First pause before a new attempt after a failure; at random, half of it at least.
    pub retry: Duration,
    /// Longest pause before a new attempt: pauses double up to it.
    pub max_retry: Duration,
    /// Interval at which a lost server, and the files that a connection needs, are checked.
    pub check: Duration,
    /// Pause before a resource that the server does not have is requested again.
    pub absent: Duration,
    /// Pause before router pods are requested again in a namespace where that is forbidden, while another has them.
    pub forbidden_retry: Duration,
    /// Age at which a list is read again although its watch reports no error: unnoticed losses end here.
    pub relist: Duration,
    /// Time limit of the program that gets the credentials.
    pub program_timeout: Duration,
    /// Time limit for the server to begin an answer.
    pub answer_timeout: Duration,
    /// Length of a watch that is requested. Older servers send no bookmarks: the end of a watch is their only
    /// heartbeat.
    pub watch_timeout: Duration,
    /// Time without data after which a watch is given up; longer than the watch lasts.
    pub silence_timeout: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            settle: Duration::from_millis(100),
            retry: Duration::from_millis(250),
            max_retry: Duration::from_secs(30),
            check: Duration::from_secs(1),
            absent: Duration::from_secs(60),
            forbidden_retry: Duration::from_secs(300),
            relist: Duration::from_secs(3600),
            program_timeout: Duration::from_secs(30),
            answer_timeout: Duration::from_secs(60),
            watch_timeout: Duration::from_secs(120),
            silence_timeout: Duration::from_secs(180),
        }
    }
}

/// Watches until aborted, or until the receiver is gone, and reports as the source `kube:CLUSTER`: for the first time
/// when everything has been listed once.
pub fn spawn(
    settings: Settings,
    cluster: String,
    status: Arc<SourceStatus>,
    out: UnboundedSender<DiscoveryUpdate>,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        let connector = Arc::new(Connector::new(settings.source.access.clone(), settings.timings));
        let (news, told) = channel(MAX_QUEUED_UPDATES);
        let feeds = feeds(&settings.source);
        let hub = Hub::new(&settings, cluster, Arc::clone(&status), &feeds);
        // Feeds live in this task's set: they are aborted when it is dropped.
        let mut running = JoinSet::new();
        for (number, feed) in feeds.into_iter().enumerate() {
            let teller = feed::UpdateSender::new(number, news.clone());
            let (connector, standing) = (Arc::clone(&connector), Arc::clone(&status));
            running.spawn(follow::follow(feed, connector, settings.timings, standing, teller));
        }
        drop(news);
        running.spawn(reachability::watch_reachability(connector, settings.timings.check));
        hub.run(told, out).await;
    })
}

/// Returns the feeds of all resources that are watched.
fn feeds(source: &KubernetesSource) -> Vec<Feed> {
    let all = Resource::ALL.map(|(_, resource)| resource);
    let resources = source.resources.as_deref().unwrap_or(&all);
    let namespaces: Vec<Option<&String>> = if source.namespaces.is_empty() {
        vec![None]
    } else {
        source.namespaces.iter().map(Some).collect()
    };
    let mut feeds = Vec::new();
    for resource in resources {
        feeds.extend(namespaces.iter().map(|namespace| Feed {
            resource: ResourceKind::of(*resource),
            namespace: namespace.cloned(),
            labels: source.labels.clone(),
            necessity: Necessity::Required,
            has_certificates: source.certificates,
        }));
    }
    let need = match source.routers.pods {
        None => Necessity::Speculative,
        Some(_) => Necessity::Required,
    };
    feeds.extend(source.router_pods().into_iter().map(|pods| Feed {
        resource: ResourceKind::Pods,
        namespace: Some(pods.namespace),
        labels: Some(pods.labels),
        necessity: need,
        has_certificates: false,
    }));
    // A pod's status has its node's internal address; for the external one the account needs the right to read nodes.
    if source.routers.address == AddressType::External {
        feeds.push(Feed {
            resource: ResourceKind::Nodes,
            namespace: None,
            labels: None,
            necessity: Necessity::Required,
            has_certificates: false,
        });
    }
    // Without the right to read Secrets, names that need them are passed through to the routers.
    if source.certificates {
        feeds.extend(namespaces.iter().map(|namespace| Feed {
            resource: ResourceKind::Secrets,
            namespace: namespace.cloned(),
            labels: None,
            necessity: Necessity::Optional,
            has_certificates: true,
        }));
    }
    feeds.extend(deciding_feeds(source, resources));
    feeds
}

/// Returns the feeds of objects that decide on others: classes, namespaces, Gateways.
fn deciding_feeds(source: &KubernetesSource, resources: &[Resource]) -> Vec<Feed> {
    let choice = &source.shard;
    let everywhere = |what, labels: Option<String>, need| Feed {
        resource: what,
        namespace: None,
        labels,
        necessity: need,
        has_certificates: false,
    };
    let mut feeds = Vec::new();
    if let Some(labels) = &choice.namespace_labels {
        let by_status = !choice.routers.named().is_empty();
        let need = if by_status {
            Necessity::Optional
        } else {
            Necessity::Required
        };
        feeds.push(everywhere(ResourceKind::Namespaces, Some(labels.clone()), need));
    }
    if resources.contains(&Resource::Ingresses) && !choice.ingress_classes.is_empty() {
        feeds.push(everywhere(ResourceKind::IngressClasses, None, Necessity::Optional));
    }
    if resources.contains(&Resource::HttpRoutes) || resources.contains(&Resource::TlsRoutes) {
        if !choice.gateway_classes.is_empty() {
            feeds.push(everywhere(ResourceKind::Gateways, None, Necessity::Required));
        }
        let namespaces: BTreeSet<&String> = choice.gateways.iter().map(|gateway| &gateway.namespace).collect();
        feeds.extend(namespaces.into_iter().map(|namespace| Feed {
            resource: ResourceKind::Gateways,
            namespace: Some(namespace.clone()),
            labels: None,
            necessity: Necessity::Optional,
            has_certificates: false,
        }));
    }
    feeds
}
