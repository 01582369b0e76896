//! Hub: holds the objects of all feeds, and tells what they mean: when all have been listed, and after each change.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use signalbox_core::claims::{self, Rules, Seen};
use signalbox_core::learned::Learned;
use tokio::sync::mpsc::{Receiver, UnboundedSender};
use tokio::time::{Instant, sleep_until};

use super::decode::Item;
use super::feed::{Feed, Need, News};
use super::what::What;
use super::{Learnt, Settings, Standing};
use crate::state::unix_ms;

/// Most messages of feeds that are taken before the next telling.
const MAX_AT_ONCE: usize = 1024;

/// State of one feed.
struct Held {
    name: String,
    what: What,
    need: Need,
    state: State,
    items: HashMap<String, Item>,
    /// Message of the current trouble, and the verdict on the server.
    trouble: Option<(String, &'static str)>,
    /// Time at which the feed was known to be up to date, in milliseconds since 1970; 0 for never.
    heard_ms: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
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
    rules: Rules,
    settle: Duration,
    standing: Arc<Standing>,
    feeds: Vec<Held>,
    told: Option<Arc<Learned>>,
    /// Time of the last computation of names and hosts.
    told_at: Option<Instant>,
    /// Troubles that the log has.
    said: BTreeSet<String>,
}

impl Hub {
    pub(super) fn new(settings: &Settings, cluster: String, standing: Arc<Standing>, feeds: &[Feed]) -> Self {
        let held = |feed: &Feed| Held {
            name: feed.name(),
            what: feed.what,
            need: feed.need,
            state: State::Waiting,
            items: HashMap::new(),
            trouble: None,
            heard_ms: 0,
        };
        Self {
            source: format!("kube:{cluster}"),
            cluster,
            rules: settings.rules(),
            settle: settings.pace.settle,
            standing,
            feeds: feeds.iter().map(held).collect(),
            told: None,
            told_at: None,
            said: BTreeSet::new(),
        }
    }

    /// Tells until nobody listens.
    pub(super) async fn run(mut self, mut news: Receiver<(usize, News)>, out: UnboundedSender<Learnt>) {
        let mut due = None;
        loop {
            tokio::select! {
                one = news.recv() => {
                    let Some((number, one)) = one else { return };
                    let mut changed = self.take(number, one);
                    // Messages that are here already are told of together.
                    for _ in 0..MAX_AT_ONCE {
                        let Ok((number, one)) = news.try_recv() else { break };
                        changed |= self.take(number, one);
                    }
                    if changed {
                        // The first change is told at once; others are likely to follow, as in a rollout, and are told
                        // together.
                        let next = self.told_at.map(|told| told + self.settle);
                        due = due.or_else(|| Some(next.unwrap_or_else(Instant::now)));
                    }
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    due = None;
                    if self.is_complete() {
                        self.tell(&out);
                    }
                }
                () = out.closed() => return,
            }
        }
    }

    /// Takes a message of a feed. Returns whether something has changed.
    fn take(&mut self, number: usize, news: News) -> bool {
        let Some(feed) = self.feeds.get_mut(number) else {
            return false;
        };
        let before = feed.state;
        let mut changed = false;
        match news {
            News::Trouble { text, verdict, denied } => {
                if denied && feed.state == State::Waiting {
                    feed.state = State::Denied;
                }
                feed.trouble = Some((text.clone(), verdict));
                self.standing.note(&feed.name, Some(text));
                let changed = feed.state != before;
                self.complain();
                self.stand();
                return changed;
            }
            News::Listed(items) => {
                changed = feed.items != items;
                feed.items = items;
                feed.state = State::Listed;
                self.standing.note(&feed.name, None);
            }
            News::Changed(key, Some(item)) => {
                changed = feed.items.get(&key) != Some(&item);
                feed.items.insert(key, item);
            }
            News::Changed(key, None) => changed = feed.items.remove(&key).is_some(),
            News::Absent => {
                changed = !feed.items.is_empty();
                feed.items.clear();
                feed.state = State::Absent;
                self.standing
                    .note(&feed.name, Some("the server does not have it".to_owned()));
            }
            News::Heard => {
                if feed.trouble.is_some() {
                    self.standing.note(&feed.name, None);
                }
            }
        }
        changed |= feed.state != before;
        feed.trouble = None;
        feed.heard_ms = unix_ms();
        self.stand();
        changed
    }

    /// Updates the source's status: in touch if every feed is, and as stale as the stalest feed.
    fn stand(&mut self) {
        if !self.is_complete() || self.troubles().next().is_some() {
            return;
        }
        let listed = self.feeds.iter().filter(|feed| feed.state == State::Listed);
        self.standing
            .heard_at(listed.map(|feed| feed.heard_ms).min().unwrap_or_else(unix_ms));
        if !std::mem::take(&mut self.said).is_empty() {
            tracing::info!(source = %self.source, "The API server is heard again.");
        }
    }

    /// Returns troubles that an operator has to mend. A namespace that may not be read is none, as long as routers may
    /// be found in another.
    fn troubles(&self) -> impl Iterator<Item = &(String, &'static str)> {
        let hope = self.feeds.iter().any(|feed| {
            feed.need == Need::Guess
                && (feed.state == State::Listed || (feed.state == State::Waiting && feed.trouble.is_none()))
        });
        let excused = move |feed: &&Held| match feed.need {
            Need::Must => false,
            Need::Guess => hope && feed.state == State::Denied,
            Need::Help => feed.state == State::Denied,
        };
        self.feeds
            .iter()
            .filter(move |feed| !excused(feed))
            .filter_map(|feed| feed.trouble.as_ref())
    }

    /// Logs each trouble once, as long as it lasts.
    fn complain(&mut self) {
        // Feeds of a lost server all have one message: a map merges them.
        let all: BTreeMap<String, &'static str> = self.troubles().cloned().collect();
        if all.is_empty() {
            return;
        }
        let stays = if self.told.is_some() {
            "What was told of the cluster stays."
        } else {
            "Nothing is told of the cluster yet."
        };
        for (error, verdict) in &all {
            if !self.said.contains(error) {
                tracing::warn!(source = %self.source, error, "{verdict} {stays}");
            }
        }
        let text = all.keys().map(String::as_str).collect::<Vec<_>>().join("; ");
        self.said = all.into_keys().collect();
        self.standing.failed(text);
    }

    /// Returns whether all feeds have been listed: a partial table would lack names and hosts.
    fn is_complete(&self) -> bool {
        let settled = |feed: &Held| match feed.state {
            State::Waiting => false,
            State::Denied => feed.need != Need::Must,
            State::Absent | State::Listed => true,
        };
        let mut guesses = self.feeds.iter().filter(|feed| feed.need == Need::Guess).peekable();
        let seen = guesses.peek().is_none() || guesses.any(|feed| feed.state == State::Listed);
        seen && self.feeds.iter().all(settled)
    }

    /// Returns all objects for the core.
    fn seen(&self) -> Seen<'_> {
        let may_see = |what: What| {
            let feeds = self.feeds.iter().filter(|feed| feed.what == what);
            feeds.clone().next().is_some() && feeds.clone().all(|feed| feed.state != State::Denied)
        };
        let mut seen = Seen {
            namespaces: may_see(What::Namespaces).then(Vec::new),
            gateways: may_see(What::Gateways).then(Vec::new),
            ingress_classes: may_see(What::IngressClasses).then(Vec::new),
            ..Seen::default()
        };
        for item in self.feeds.iter().flat_map(|feed| feed.items.values()) {
            match item {
                Item::Names(object) => seen.objects.push(object),
                Item::Pod(pod) => seen.pods.push(pod),
                Item::Node(node) => seen.nodes.push(node),
                Item::Namespace(name) => seen.namespaces.iter_mut().for_each(|all| all.push(name)),
                Item::Gateway(gateway) => seen.gateways.iter_mut().for_each(|all| all.push(gateway)),
                Item::Class(class) => seen.ingress_classes.iter_mut().for_each(|all| all.push(class)),
            }
        }
        seen
    }

    fn tell(&mut self, out: &UnboundedSender<Learnt>) {
        // Set even if nothing changed: the computation is the cost that the pause is for.
        self.told_at = Some(Instant::now());
        let learned = claims::learn(self.seen(), &self.rules);
        if self.told.as_deref() == Some(&learned) {
            return;
        }
        let learned = Arc::new(learned);
        if self.told.is_none() {
            let (hosts, names, rejected) = (learned.hosts.len(), learned.routes.len(), learned.rejected.len());
            tracing::info!(source = %self.source, hosts, names, rejected, "The cluster is known.");
        }
        self.told = Some(Arc::clone(&learned));
        // An error is ignored: `run` notices when nobody listens.
        let _ = out.send(Learnt {
            source: self.source.clone(),
            cluster: self.cluster.clone(),
            what: Some(learned),
            done: None,
        });
    }
}
