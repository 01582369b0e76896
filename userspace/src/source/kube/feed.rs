//! Feed: one resource in one namespace, listed and then watched, for ever.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::Sender;
use tokio::time::{sleep, timeout};

use super::complaint::complaint;
use super::connect::Connector;
use super::decode::Item;
use super::read::{Place, Reader};
use super::trouble::Trouble;
use super::what::What;
use super::{Pace, Standing};
use crate::backoff::Backoff;

/// Times that a resource must be absent before that is believed, because a server that starts (or an API service
/// behind it) does not have all resources yet. The second number, a minute or so, is for resources whose names would
/// be removed.
const MISSES: u32 = 3;
const MISSES_ONCE_LISTED: u32 = 10;

/// Resource, namespace and labels that are listed and watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Feed {
    pub(super) what: What,
    /// Namespace; `None`: all.
    pub(super) namespace: Option<String>,
    pub(super) labels: Option<String>,
    pub(super) need: Need,
}

/// Loss where a feed's objects may not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Names or hosts are lost.
    Must,
    /// Nothing is lost as long as another guess succeeds: the feed is one of several namespaces where routers may be.
    Guess,
    /// Only details of other objects are lost.
    Help,
}

impl Feed {
    /// Returns the name for messages: `routes.route.openshift.io in namespace shop`.
    pub(super) fn name(&self) -> String {
        let place = self
            .namespace
            .as_ref()
            .map(|namespace| format!(" in namespace {namespace}"));
        format!("{}{}", self.what.in_roles(), place.unwrap_or_default())
    }
}

/// Message of a feed to the hub.
pub(super) enum News {
    /// All objects.
    Listed(HashMap<String, Item>),
    /// A new or changed object by its key; `None`: it is gone, or can no longer be decoded.
    Changed(String, Option<Item>),
    /// The server does not have the resource.
    Absent,
    /// No change, but the server is there.
    Heard,
    /// The feed does not get its objects. `denied`: because a right is missing.
    Trouble {
        text: String,
        /// Verdict on the server, for the log.
        verdict: &'static str,
        denied: bool,
    },
}

/// Channel of a feed to the hub.
pub(super) struct Teller {
    number: usize,
    hub: Sender<(usize, News)>,
}

impl Teller {
    pub(super) fn new(number: usize, hub: Sender<(usize, News)>) -> Self {
        Self { number, hub }
    }

    pub(super) async fn tell(&self, news: News) {
        if self.hub.send((self.number, news)).await.is_err() {
            // The hub has ended, and aborts this task as soon as it waits.
            std::future::pending::<()>().await;
        }
    }
}

/// Lists and watches until aborted.
pub(super) async fn follow(feed: Feed, connector: Arc<Connector>, pace: Pace, standing: Arc<Standing>, teller: Teller) {
    let mut backoff = Backoff::new(pace.retry, pace.retry_most, &feed.name());
    // Jitter: feeds that are woken together do not send requests together.
    let mut jitter = Backoff::new(pace.look / 4, pace.look / 4, &feed.name());
    // Jitter: feeds that were listed together are not listed again together.
    let relist = Backoff::new(pace.relist, pace.relist, &feed.name()).pause();
    let mut woken = connector.reach.woken();
    let mut reader = Reader::new(feed, Arc::clone(&connector), pace, Arc::clone(&standing), teller);
    // Place from which the next watch starts; `None`: a list comes first.
    let mut at: Option<Place> = None;
    let mut misses = 0;
    let mut most_misses = MISSES;
    loop {
        woken.mark_unchanged();
        // A watch that the server has ended is resumed at once, unless the server ends watches at once.
        let mut wait = None;
        match step(&mut reader, &mut at, &mut backoff, pace).await {
            Ok(Step::Listed) => {
                misses = 0;
                most_misses = MISSES_ONCE_LISTED;
                continue;
            }
            Ok(Step::Watched) => at = at.filter(|place| place.listed.elapsed() < relist),
            Err(trouble) => {
                standing.events.inc(trouble.label());
                if matches!(trouble, Trouble::Broken(_)) {
                    connector.reach.lose();
                }
                at = at.filter(|_| trouble.resumes());
                misses += u32::from(trouble == Trouble::Absent);
                if misses >= most_misses && trouble == Trouble::Absent {
                    reader.teller.tell(News::Absent).await;
                    most_misses = MISSES;
                    sleep(pace.absent).await;
                    continue;
                }
                wait = patience(&trouble, &reader.feed, at.is_some(), &connector, &mut backoff, pace);
                let verdict = trouble.verdict();
                if let Some((text, denied)) = complaint(&reader.feed, trouble, at.is_some()) {
                    reader.teller.tell(News::Trouble { text, verdict, denied }).await;
                }
            }
        }
        let wait = wait.unwrap_or_else(|| backoff.pause());
        if timeout(wait, woken.changed()).await.is_ok() {
            backoff.reset();
            sleep(jitter.pause()).await;
        }
    }
}

/// Success of a step.
enum Step {
    Listed,
    /// The feed watched until the server ended the watch in order.
    Watched,
}

async fn step(reader: &mut Reader, at: &mut Option<Place>, backoff: &mut Backoff, pace: Pace) -> Result<Step, Trouble> {
    let Some(place) = at else {
        *at = Some(reader.list().await?);
        return Ok(Step::Listed);
    };
    let began = Instant::now();
    let outcome = reader.watch(place, backoff).await;
    if began.elapsed() >= pace.retry_most {
        backoff.reset();
    }
    outcome.map(|()| Step::Watched)
}

/// Returns the pause after a trouble; `None`: the usual back-off.
fn patience(
    trouble: &Trouble,
    feed: &Feed,
    watching: bool,
    connector: &Connector,
    backoff: &mut Backoff,
    pace: Pace,
) -> Option<Duration> {
    match trouble {
        // Another feed has the objects, and each refusal is a line in the server's audit log: a long pause is right.
        Trouble::Forbidden(_)
            if !watching
                && match feed.need {
                    Need::Must => false,
                    Need::Guess => connector.reach.routers_found.load(Relaxed),
                    Need::Help => !connector.reach.is_starting(),
                } =>
        {
            Some(pace.excused)
        }
        // A server that starts may refuse what it grants a moment later.
        Trouble::Forbidden(_) | Trouble::Failed(_) if connector.reach.is_starting() => {
            backoff.reset();
            None
        }
        _ => None,
    }
}
