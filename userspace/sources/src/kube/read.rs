//! Reads one list, or one watch, by the API's paths, pages and events.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use hyper::Response;
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::Value;

use super::connect::Connector;
use super::decode::{WatchedObject, object_key};
use super::feed::{Feed, FeedUpdate, Necessity, UpdateSender};
use super::malformed::MalformedObjects;
use super::resource_kind::ResourceKind;
use super::watch_error::WatchError;
use super::{SourceStatus, Timings};
use crate::backoff::Backoff;
use crate::body::Body;
use crate::client::percent_encoded;

/// Number of objects in a page of a list.
const PAGE_SIZE: usize = 500;

/// Longest list, or page of one, that is read, in bytes: far more than a cluster has.
const MAX_LIST_BYTES: usize = 512 << 20;

/// Longest event in bytes: etcd limits objects to 1.5 MiB.
const MAX_EVENT_BYTES: usize = 16 << 20;

/// Reader of a feed's resource.
pub(super) struct Reader {
    pub(super) feed: Feed,
    connector: Arc<Connector>,
    timings: Timings,
    status: Arc<SourceStatus>,
    pub(super) updates: UpdateSender,
    /// API group and version at which the server has the resource.
    home: &'static str,
    malformed: MalformedObjects,
}

/// Place from which a watch starts.
pub(super) struct WatchPosition {
    version: String,
    /// Time at which the held objects were listed.
    pub(super) listed: Instant,
    /// True if the server may have been restored to an older state since the list, or the last comparison.
    doubtful: bool,
}

#[derive(Deserialize)]
struct ListPage {
    metadata: PageMetadata,
    /// Objects of a list; or null, as Go writes an empty one now and then. A body without items is no list.
    items: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMetadata {
    resource_version: String,
    #[serde(default, rename = "continue")]
    next: String,
}

#[derive(Deserialize)]
struct WatchEvent {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

impl Reader {
    pub(super) fn new(
        feed: Feed,
        connector: Arc<Connector>,
        pace: Timings,
        status: Arc<SourceStatus>,
        teller: UpdateSender,
    ) -> Self {
        let home = feed.resource.homes()[0];
        let odd = MalformedObjects::new(feed.name(), Arc::clone(&status));
        Self {
            feed,
            connector,
            timings: pace,
            status,
            updates: teller,
            home,
            malformed: odd,
        }
    }

    /// Lists, reports to the hub, and returns the place from which to watch.
    pub(super) async fn list(&mut self) -> Result<WatchPosition, WatchError> {
        let version = self.list_anywhere().await?;
        if self.feed.necessity == Necessity::Speculative {
            self.connector.reachability.routers_found.store(true, Relaxed);
        }
        Ok(WatchPosition {
            version,
            listed: Instant::now(),
            doubtful: false,
        })
    }

    async fn list_anywhere(&mut self) -> Result<String, WatchError> {
        for home in self.feed.resource.homes() {
            self.home = home;
            match self.pages(PAGE_SIZE).await {
                // The server has forgotten the next pages: the list is read without pages.
                Err(WatchError::Expired) => return self.pages(0).await,
                Err(WatchError::Absent) => {}
                // A server answers 403, not 404, to an account without rights: the API's discovery distinguishes the
                // two.
                Err(WatchError::Forbidden(_)) if self.is_absent().await? => {}
                outcome => return outcome,
            }
        }
        Err(match self.feed.resource {
            ResourceKind::Claiming(_) | ResourceKind::IngressClasses | ResourceKind::Gateways => WatchError::Absent,
            ResourceKind::Pods | ResourceKind::Nodes | ResourceKind::Namespaces | ResourceKind::Secrets => {
                let plural = self.feed.resource.plural();
                WatchError::Failed(format!(
                    "the server has no {plural}, as every API server has: check its address"
                ))
            }
        })
    }

    /// Reads a list page by page. `limit`: objects in a page; 0 for no limit.
    async fn pages(&mut self, limit: usize) -> Result<String, WatchError> {
        let mut items = HashMap::new();
        self.malformed.clear();
        let mut next = String::new();
        loop {
            let mut query = format!("limit={limit}");
            if !next.is_empty() {
                let _ = write!(query, "&continue={}", percent_encoded(&next)); // a String takes everything
            }
            let page = self.page(&query).await?;
            let objects = match page.items {
                Value::Array(objects) => objects,
                Value::Null => Vec::new(),
                _ => {
                    return Err(WatchError::Garbled(format!(
                        "the list of {} has no items",
                        self.feed.name()
                    )));
                }
            };
            for object in &objects {
                match (object_key(object), self.decode(object)) {
                    (Some((key, _)), Ok(item)) => {
                        items.insert(key, item);
                    }
                    (place, Err(error)) => self.malformed.add(place.map(|(key, _)| key), &error.to_string()),
                    (None, Ok(_)) => self.malformed.add(None, "it has no name"),
                }
            }
            if page.metadata.next.is_empty() {
                self.status.events.inc("listed");
                self.malformed.publish();
                self.updates.send(FeedUpdate::Listed(items)).await;
                return Ok(page.metadata.resource_version);
            }
            next = page.metadata.next;
        }
    }

    fn decode(&self, object: &Value) -> Result<WatchedObject, serde_json::Error> {
        let item = WatchedObject::decode(self.feed.resource, object)?;
        Ok(if self.feed.has_certificates {
            item.with_certificate(object)
        } else {
            item
        })
    }

    async fn page(&self, query: &str) -> Result<ListPage, WatchError> {
        let response = self.connector.get(&self.feed.path(self.home, query)).await?;
        let body = self.whole(response).await?;
        serde_json::from_slice(&body)
            .map_err(|error| WatchError::Garbled(format!("the list of {} is none: {error}", self.feed.name())))
    }

    async fn whole(&self, response: Response<Incoming>) -> Result<Vec<u8>, WatchError> {
        let body = Body::new(response.into_body(), self.timings.silence_timeout);
        Ok(body.whole(MAX_LIST_BYTES).await?)
    }

    /// Returns whether the server's state is older than `version`, as after a restore of its etcd from a backup. A
    /// watch from a version that the server has not reached would wait there, and miss the changes that the restore has
    /// undone.
    async fn is_older_than(&self, version: &str) -> Result<bool, WatchError> {
        let now = self.page("limit=1").await?.metadata.resource_version;
        // Versions are opaque by the API's documentation, but numbers wherever etcd is the store.
        let (Ok(now), Ok(known)) = (now.parse::<u64>(), version.parse::<u64>()) else {
            return Ok(false);
        };
        if now < known {
            self.status.events.inc("went_back");
            let feed = self.feed.name();
            tracing::warn!(
                feed,
                now,
                known,
                "The API server has gone back to an older state: everything is listed again."
            );
        }
        Ok(now < known)
    }

    /// Watches from `place`, which is moved along. Returns when the server has ended the watch in order.
    pub(super) async fn watch(&mut self, place: &mut WatchPosition, backoff: &mut Backoff) -> Result<(), WatchError> {
        if std::mem::replace(&mut place.doubtful, true) && self.is_older_than(&place.version).await? {
            return Err(WatchError::Expired);
        }
        let version = &mut place.version;
        let seconds = self.timings.watch_timeout.as_secs().max(1);
        let from = percent_encoded(version);
        let query = format!("watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={from}");
        let response = self.connector.get(&self.feed.path(self.home, &query)).await?;
        self.updates.send(FeedUpdate::Heard).await;
        let mut body = Body::new(response.into_body(), self.timings.silence_timeout);
        while let Some(line) = body.line(MAX_EVENT_BYTES).await? {
            *version = self.event(&line).await?;
            backoff.reset();
        }
        Ok(())
    }

    /// Reports an event to the hub, and returns its version.
    async fn event(&mut self, line: &[u8]) -> Result<String, WatchError> {
        let name = self.feed.name();
        let garbled = |what: &str| WatchError::Garbled(format!("an event of {name} {what}"));
        let WatchEvent { kind, object } =
            serde_json::from_slice(line).map_err(|error| garbled(&format!("is none: {error}")))?;
        let label = match kind.as_str() {
            "ADDED" => "added",
            "MODIFIED" => "modified",
            "DELETED" => "deleted",
            "BOOKMARK" => {
                let version = object.pointer("/metadata/resourceVersion").and_then(Value::as_str);
                let version = version.ok_or_else(|| garbled("has no version"))?;
                self.status.events.inc("bookmark");
                self.updates.send(FeedUpdate::Heard).await;
                return Ok(version.to_owned());
            }
            "ERROR" => {
                let code = object.get("code").and_then(Value::as_u64).unwrap_or_default();
                let said = object.get("message").and_then(Value::as_str).unwrap_or_default();
                let said: String = said.chars().filter(|c| !c.is_control()).take(300).collect();
                return Err(match code {
                    410 => WatchError::Expired,
                    _ => WatchError::Failed(format!("the watch of {} failed ({code}, {said:?})", self.feed.name())),
                });
            }
            _ => return Err(garbled("has an unknown type")),
        };
        let Some((key, Some(version))) = object_key(&object) else {
            return Err(garbled("has no name or version"));
        };
        self.status.events.inc(label);
        let item = match self.decode(&object) {
            _ if kind == "DELETED" => None,
            Ok(item) => Some(item),
            Err(error) => {
                self.malformed.add(Some(key.clone()), &error.to_string());
                None
            }
        };
        if item.is_some() || kind == "DELETED" {
            self.malformed.remove(&key);
        }
        self.malformed.publish();
        self.updates.send(FeedUpdate::Changed(key, item)).await;
        Ok(version)
    }

    /// Returns whether the server lacks the resource, by discovery, which every account may use.
    async fn is_absent(&self) -> Result<bool, WatchError> {
        let body = match self.connector.get(&format!("/{}", self.home)).await {
            Ok(response) => self.whole(response).await?,
            Err(WatchError::Absent) => return Ok(true),
            // Without an answer, a forbidden resource counts as present.
            Err(_) => return Ok(false),
        };
        let known: Value = serde_json::from_slice(&body).unwrap_or_default();
        let names = known.get("resources").and_then(Value::as_array);
        let is_it =
            |resource: &Value| resource.get("name").and_then(Value::as_str) == Some(self.feed.resource.plural());
        Ok(names.is_some_and(|names| !names.iter().any(is_it)))
    }
}
