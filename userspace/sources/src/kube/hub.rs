//! Hub: holds the objects of all feeds, and reports the names and hosts that they give, when all have been listed and
//! after each change.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use signalbox_core::discovered::claims::{self, ClaimRules, ClusterObjects};
use signalbox_core::discovered::discovery::{CertificateOrigin, Claim, ClusterDiscovery};
use signalbox_core::discovered::spi::Secret;
use tokio::sync::mpsc::{Receiver, UnboundedSender};
use tokio::time::{Instant, sleep_until};

use super::certificate_writer::{CertificateWriter, NamedTexts};
use super::decode::WatchedObject;
use super::feed::{Feed, FeedUpdate, Necessity};
use super::resource_kind::ResourceKind;
use super::{DiscoveryUpdate, Settings, SourceStatus};
use signalbox_sys::unix_ms;

/// Most messages of feeds that are taken before the next report.
const MAX_AT_ONCE: usize = 1024;

/// State of one feed.
struct HeldFeed {
    name: String,
    resource: ResourceKind,
    necessity: Necessity,
    state: FeedState,
    items: HashMap<String, WatchedObject>,
    /// Message of the current error, and the verdict on the server.
    error: Option<(String, &'static str)>,
    /// Time at which the feed was known to be up to date, in milliseconds since 1970; 0 for never.
    heard_ms: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FeedState {
    /// No list has been read yet.
    Waiting,
    /// No list has been read, because a right is missing.
    Denied,
    /// The server does not have the resource.
    Absent,
    /// All objects are held.
    Listed,
}

/// Objects of all feeds of a cluster.
pub(super) struct Hub {
    cluster: String,
    source: String,
    rules: ClaimRules,
    settle: Duration,
    status: Arc<SourceStatus>,
    feeds: Vec<HeldFeed>,
    published: Option<Arc<ClusterDiscovery>>,
    /// Time of the last computation of names and hosts.
    examined_at: Option<Instant>,
    /// Troubles that the log has.
    logged: BTreeSet<String>,
    /// Files of certificates; `None`: no certificates are read.
    certificates: Option<CertificateWriter>,
}

impl Hub {
    pub(super) fn new(settings: &Settings, cluster: String, status: Arc<SourceStatus>, feeds: &[Feed]) -> Self {
        let held = |feed: &Feed| HeldFeed {
            name: feed.name(),
            resource: feed.resource,
            necessity: feed.necessity,
            state: FeedState::Waiting,
            items: HashMap::new(),
            error: None,
            heard_ms: 0,
        };
        Self {
            source: format!("kube:{cluster}"),
            certificates: settings
                .certificates
                .as_ref()
                .map(|directory| CertificateWriter::new(directory.clone(), Arc::clone(&status))),
            cluster,
            rules: settings.rules(),
            settle: settings.timings.settle,
            status,
            feeds: feeds.iter().map(held).collect(),
            published: None,
            examined_at: None,
            logged: BTreeSet::new(),
        }
    }

    /// Reports until the receiver is gone.
    pub(super) async fn run(
        mut self,
        mut updates: Receiver<(usize, FeedUpdate)>,
        out: UnboundedSender<DiscoveryUpdate>,
    ) {
        let mut due = None;
        loop {
            tokio::select! {
                one = updates.recv() => {
                    let Some((number, one)) = one else { return };
                    let mut changed = self.apply(number, one);
                    // Messages that are here already are reported together.
                    for _ in 0..MAX_AT_ONCE {
                        let Ok((number, one)) = updates.try_recv() else { break };
                        changed |= self.apply(number, one);
                    }
                    if changed {
                        // The first change is reported at once; others are likely to follow, as in a rollout, and are
                        // reported together.
                        let next = self.examined_at.map(|told| told + self.settle);
                        due = due.or_else(|| Some(next.unwrap_or_else(Instant::now)));
                    }
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    due = None;
                    if self.is_complete() {
                        self.publish(&out);
                    }
                }
                () = out.closed() => return,
            }
        }
    }

    /// Takes a message of a feed. Returns whether something has changed.
    fn apply(&mut self, number: usize, update: FeedUpdate) -> bool {
        let Some(feed) = self.feeds.get_mut(number) else {
            return false;
        };
        let before = feed.state;
        let mut changed = false;
        match update {
            FeedUpdate::Failed {
                text,
                remark: verdict,
                denied,
            } => {
                if denied && feed.state == FeedState::Waiting {
                    feed.state = FeedState::Denied;
                }
                feed.error = Some((text.clone(), verdict));
                self.status.note(&feed.name, Some(text));
                let changed = feed.state != before;
                self.log_errors();
                self.update_status();
                return changed;
            }
            FeedUpdate::Listed(items) => {
                changed = feed.items != items;
                feed.items = items;
                feed.state = FeedState::Listed;
                self.status.note(&feed.name, None);
            }
            FeedUpdate::Changed(key, Some(item)) => {
                changed = feed.items.get(&key) != Some(&item);
                feed.items.insert(key, item);
            }
            FeedUpdate::Changed(key, None) => changed = feed.items.remove(&key).is_some(),
            FeedUpdate::Absent => {
                changed = !feed.items.is_empty();
                feed.items.clear();
                feed.state = FeedState::Absent;
                self.status
                    .note(&feed.name, Some("the server does not have it".to_owned()));
            }
            FeedUpdate::Heard => {
                if feed.error.is_some() {
                    self.status.note(&feed.name, None);
                }
            }
        }
        changed |= feed.state != before;
        feed.error = None;
        feed.heard_ms = unix_ms();
        self.update_status();
        changed
    }

    /// Updates the source's status: in touch if every feed is, and as stale as the stalest feed.
    fn update_status(&mut self) {
        if !self.is_complete() || self.errors_to_show().next().is_some() {
            return;
        }
        let listed = self.feeds.iter().filter(|feed| feed.state == FeedState::Listed);
        self.status
            .mark_heard_at(listed.map(|feed| feed.heard_ms).min().unwrap_or_else(unix_ms));
        if !std::mem::take(&mut self.logged).is_empty() {
            tracing::info!(source = %self.source, "The API server answers again.");
        }
    }

    /// Returns errors that an operator has to fix. A namespace that may not be read is none, as long as routers may be
    /// found in another.
    fn errors_to_show(&self) -> impl Iterator<Item = &(String, &'static str)> {
        let hope = self.feeds.iter().any(|feed| {
            feed.necessity == Necessity::Speculative
                && (feed.state == FeedState::Listed || (feed.state == FeedState::Waiting && feed.error.is_none()))
        });
        let excused = move |feed: &&HeldFeed| match feed.necessity {
            Necessity::Required => false,
            Necessity::Speculative => hope && feed.state == FeedState::Denied,
            Necessity::Optional => feed.state == FeedState::Denied,
        };
        self.feeds
            .iter()
            .filter(move |feed| !excused(feed))
            .filter_map(|feed| feed.error.as_ref())
    }

    /// Logs each error once, as long as it lasts.
    fn log_errors(&mut self) {
        // Feeds of a lost server all have one message: a map merges them.
        let all: BTreeMap<String, &'static str> = self.errors_to_show().cloned().collect();
        if all.is_empty() {
            return;
        }
        let stays = if self.published.is_some() {
            "What was reported of the cluster stays."
        } else {
            "Nothing is reported of the cluster yet."
        };
        for (error, verdict) in &all {
            if !self.logged.contains(error) {
                tracing::warn!(source = %self.source, error, "{verdict} {stays}");
            }
        }
        let text = all.keys().map(String::as_str).collect::<Vec<_>>().join("; ");
        self.logged = all.into_keys().collect();
        self.status.mark_failed(text);
    }

    /// Returns whether all feeds have been listed: a partial table would lack names and hosts.
    fn is_complete(&self) -> bool {
        let settled = |feed: &HeldFeed| match feed.state {
            FeedState::Waiting => false,
            FeedState::Denied => feed.necessity != Necessity::Required,
            FeedState::Absent | FeedState::Listed => true,
        };
        let mut guesses = self
            .feeds
            .iter()
            .filter(|feed| feed.necessity == Necessity::Speculative)
            .peekable();
        let seen = guesses.peek().is_none() || guesses.any(|feed| feed.state == FeedState::Listed);
        seen && self.feeds.iter().all(settled)
    }

    /// Returns all objects for the core.
    fn cluster_objects(&self) -> ClusterObjects<'_> {
        let may_see = |what: ResourceKind| {
            let feeds = self.feeds.iter().filter(|feed| feed.resource == what);
            feeds.clone().next().is_some() && feeds.clone().all(|feed| feed.state != FeedState::Denied)
        };
        let mut seen = ClusterObjects {
            namespaces: may_see(ResourceKind::Namespaces).then(Vec::new),
            gateways: may_see(ResourceKind::Gateways).then(Vec::new),
            ingress_classes: may_see(ResourceKind::IngressClasses).then(Vec::new),
            ..ClusterObjects::default()
        };
        for item in self.feeds.iter().flat_map(|feed| feed.items.values()) {
            match item {
                WatchedObject::Names(object, _) => seen.objects.push(object),
                WatchedObject::Certificate(_) => {}
                WatchedObject::Pod(pod) => seen.pods.push(pod),
                WatchedObject::Node(node) => seen.nodes.push(node),
                WatchedObject::Namespace(name) => seen.namespaces.iter_mut().for_each(|all| all.push(name)),
                WatchedObject::Gateway(gateway) => seen.gateways.iter_mut().for_each(|all| all.push(gateway)),
                WatchedObject::Class(class) => seen.ingress_classes.iter_mut().for_each(|all| all.push(class)),
            }
        }
        seen
    }

    /// Returns the certificates of the names that the cluster serves.
    fn certificate_texts(&self, learned: &ClusterDiscovery) -> NamedTexts {
        let items = self.feeds.iter().flat_map(|feed| feed.items.values());
        let held: HashMap<&CertificateOrigin, &Secret> = items
            .filter_map(|item| match item {
                WatchedObject::Names(_, held) => held.as_ref(),
                WatchedObject::Certificate(held) => Some(held),
                _ => None,
            })
            .map(|held| (&held.origin, &held.pem))
            .collect();
        let of_name = |claim: &Claim| {
            let text = held.get(claim.certificate.as_ref()?)?;
            Some((claim.hostname.to_string(), (*text).clone()))
        };
        learned.routes.iter().filter_map(of_name).collect()
    }

    fn publish(&mut self, out: &UnboundedSender<DiscoveryUpdate>) {
        // Set even if nothing changed: the computation is the cost that the pause is for.
        self.examined_at = Some(Instant::now());
        let learned = claims::discover(self.cluster_objects(), &self.rules);
        if let Some(files) = &self.certificates {
            files.set(self.certificate_texts(&learned));
        }
        if self.published.as_deref() == Some(&learned) {
            return;
        }
        let learned = Arc::new(learned);
        if self.published.is_none() {
            let (hosts, names, rejected) = (learned.hosts.len(), learned.routes.len(), learned.rejected.len());
            tracing::info!(source = %self.source, hosts, names, rejected, "The cluster is known.");
        }
        self.published = Some(Arc::clone(&learned));
        // The error is ignored: `run` notices when the receiver is gone.
        let _ = out.send(DiscoveryUpdate {
            source: self.source.clone(),
            cluster: self.cluster.clone(),
            discovery: Some(learned),
            done: None,
        });
    }
}
