//! Reads one list, or one watch, by the API's paths, pages and events.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use serde::Deserialize;
use serde_json::Value;

use super::connect::Connector;
use super::decode::{Item, place};
use super::feed::{Feed, Need, News, Teller};
use super::lines::{Lines, whole};
use super::odd::Odd;
use super::path::{escaped, path};
use super::trouble::Trouble;
use super::what::What;
use super::{Pace, Standing};
use crate::backoff::Backoff;

/// Number of objects in a page of a list.
const PAGE: usize = 500;

/// Longest list, or page of one, that is read, in bytes: far more than a cluster has.
const LONGEST: usize = 512 << 20;

/// Reader of a feed's resource.
pub(super) struct Reader {
    pub(super) feed: Feed,
    connector: Arc<Connector>,
    pace: Pace,
    standing: Arc<Standing>,
    pub(super) teller: Teller,
    /// API group and version at which the server has the resource.
    home: &'static str,
    odd: Odd,
}

/// Place from which a watch starts.
pub(super) struct Place {
    version: String,
    /// Time at which the held objects were listed.
    pub(super) listed: Instant,
    /// True if the server may have been restored to an older state since the list, or the last comparison.
    doubtful: bool,
}

#[derive(Deserialize)]
struct Page {
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
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

impl Reader {
    pub(super) fn new(
        feed: Feed,
        connector: Arc<Connector>,
        pace: Pace,
        standing: Arc<Standing>,
        teller: Teller,
    ) -> Self {
        let home = feed.what.homes()[0];
        let odd = Odd::new(feed.name(), Arc::clone(&standing));
        Self {
            feed,
            connector,
            pace,
            standing,
            teller,
            home,
            odd,
        }
    }

    /// Lists, tells the hub, and returns the place from which to watch.
    pub(super) async fn list(&mut self) -> Result<Place, Trouble> {
        let version = self.list_anywhere().await?;
        if self.feed.need == Need::Guess {
            self.connector.reach.routers_found.store(true, Relaxed);
        }
        Ok(Place {
            version,
            listed: Instant::now(),
            doubtful: false,
        })
    }

    async fn list_anywhere(&mut self) -> Result<String, Trouble> {
        for home in self.feed.what.homes() {
            self.home = home;
            match self.pages(PAGE).await {
                // The server has forgotten the next pages: the list is read without pages.
                Err(Trouble::Expired) => return self.pages(0).await,
                Err(Trouble::Absent) => {}
                // A server answers 403, not 404, to an account without rights: the API's discovery tells the two
                // apart.
                Err(Trouble::Forbidden(_)) if self.is_absent().await? => {}
                outcome => return outcome,
            }
        }
        Err(match self.feed.what {
            What::Names(_) | What::IngressClasses | What::Gateways => Trouble::Absent,
            What::Pods | What::Nodes | What::Namespaces => {
                let plural = self.feed.what.plural();
                Trouble::Failed(format!(
                    "the server has no {plural}, as every API server has: check its address"
                ))
            }
        })
    }

    /// Reads a list page by page. `limit`: objects in a page; 0 for no limit.
    async fn pages(&mut self, limit: usize) -> Result<String, Trouble> {
        let mut items = HashMap::new();
        self.odd.clear();
        let mut next = String::new();
        loop {
            let mut query = format!("limit={limit}");
            if !next.is_empty() {
                let _ = write!(query, "&continue={}", escaped(&next)); // a String takes everything
            }
            let page = self.page(&query).await?;
            let objects = match page.items {
                Value::Array(objects) => objects,
                Value::Null => Vec::new(),
                _ => {
                    return Err(Trouble::Garbled(format!(
                        "the list of {} has no items",
                        self.feed.name()
                    )));
                }
            };
            for object in &objects {
                match (place(object), Item::decode(self.feed.what, object)) {
                    (Some((key, _)), Ok(item)) => {
                        items.insert(key, item);
                    }
                    (place, Err(error)) => self.odd.add(place.map(|(key, _)| key), &error.to_string()),
                    (None, Ok(_)) => self.odd.add(None, "it has no name"),
                }
            }
            if page.metadata.next.is_empty() {
                self.standing.events.inc("listed");
                self.odd.show();
                self.teller.tell(News::Listed(items)).await;
                return Ok(page.metadata.resource_version);
            }
            next = page.metadata.next;
        }
    }

    async fn page(&self, query: &str) -> Result<Page, Trouble> {
        let response = self.connector.get(&path(&self.feed, self.home, query)).await?;
        let body = whole(response.into_body(), LONGEST, self.pace.silence).await?;
        serde_json::from_slice(&body)
            .map_err(|error| Trouble::Garbled(format!("the list of {} is none: {error}", self.feed.name())))
    }

    /// Returns whether the server's state is older than `version`, as after a restore of its etcd from a backup. A
    /// watch from a version of the future would wait there, and never see what was undone.
    async fn is_older_than(&self, version: &str) -> Result<bool, Trouble> {
        let now = self.page("limit=1").await?.metadata.resource_version;
        // Versions are opaque by the API's documentation, but numbers wherever etcd is the store.
        let (Ok(now), Ok(known)) = (now.parse::<u64>(), version.parse::<u64>()) else {
            return Ok(false);
        };
        if now < known {
            self.standing.events.inc("went_back");
            let feed = self.feed.name();
            tracing::warn!(
                feed,
                now,
                known,
                "The API server has got an older past: everything is listed again."
            );
        }
        Ok(now < known)
    }

    /// Watches from `place`, which is moved along. Returns when the server has ended the watch in order.
    pub(super) async fn watch(&mut self, place: &mut Place, backoff: &mut Backoff) -> Result<(), Trouble> {
        if std::mem::replace(&mut place.doubtful, true) && self.is_older_than(&place.version).await? {
            return Err(Trouble::Expired);
        }
        let version = &mut place.version;
        let seconds = self.pace.watch.as_secs().max(1);
        let from = escaped(version);
        let query = format!("watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={from}");
        let response = self.connector.get(&path(&self.feed, self.home, &query)).await?;
        self.teller.tell(News::Heard).await;
        let mut lines = Lines::new(response.into_body(), self.pace.silence);
        while let Some(line) = lines.next().await? {
            *version = self.event(&line).await?;
            backoff.reset();
        }
        Ok(())
    }

    /// Tells the hub of an event, and returns its version.
    async fn event(&mut self, line: &[u8]) -> Result<String, Trouble> {
        let name = self.feed.name();
        let garbled = |what: &str| Trouble::Garbled(format!("an event of {name} {what}"));
        let Event { kind, object } =
            serde_json::from_slice(line).map_err(|error| garbled(&format!("is none: {error}")))?;
        let label = match kind.as_str() {
            "ADDED" => "added",
            "MODIFIED" => "modified",
            "DELETED" => "deleted",
            "BOOKMARK" => {
                let version = object.pointer("/metadata/resourceVersion").and_then(Value::as_str);
                let version = version.ok_or_else(|| garbled("has no version"))?;
                self.standing.events.inc("bookmark");
                self.teller.tell(News::Heard).await;
                return Ok(version.to_owned());
            }
            "ERROR" => {
                let code = object.get("code").and_then(Value::as_u64).unwrap_or_default();
                let said = object.get("message").and_then(Value::as_str).unwrap_or_default();
                let said: String = said.chars().filter(|c| !c.is_control()).take(300).collect();
                return Err(match code {
                    410 => Trouble::Expired,
                    _ => Trouble::Failed(format!("the watch of {} failed ({code}, {said:?})", self.feed.name())),
                });
            }
            _ => return Err(garbled("has an unknown type")),
        };
        let Some((key, Some(version))) = place(&object) else {
            return Err(garbled("has no name or version"));
        };
        self.standing.events.inc(label);
        let item = match Item::decode(self.feed.what, &object) {
            _ if kind == "DELETED" => None,
            Ok(item) => Some(item),
            Err(error) => {
                self.odd.add(Some(key.clone()), &error.to_string());
                None
            }
        };
        if item.is_some() || kind == "DELETED" {
            self.odd.remove(&key);
        }
        self.odd.show();
        self.teller.tell(News::Changed(key, item)).await;
        Ok(version)
    }

    /// Returns whether the server lacks the resource, by discovery, which every account may use.
    async fn is_absent(&self) -> Result<bool, Trouble> {
        let body = match self.connector.get(&format!("/{}", self.home)).await {
            Ok(response) => whole(response.into_body(), LONGEST, self.pace.silence).await?,
            Err(Trouble::Absent) => return Ok(true),
            // Without an answer, a forbidden resource counts as present.
            Err(_) => return Ok(false),
        };
        let known: Value = serde_json::from_slice(&body).unwrap_or_default();
        let names = known.get("resources").and_then(Value::as_array);
        let is_it = |resource: &Value| resource.get("name").and_then(Value::as_str) == Some(self.feed.what.plural());
        Ok(names.is_some_and(|names| !names.iter().any(is_it)))
    }
}
