//! One resource in one namespace, listed and then watched, for ever.

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

/// A server that starts, or one behind it, does not have what it will have soon: it is believed the third time; and
/// much later, after a minute or so, where names would be taken away.
const MISSES: u32 = 3;
const MISSES_ONCE_LISTED: u32 = 10;

/// What is listed and watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Feed {
    pub(super) what: What,
    /// `None`: all.
    pub(super) namespace: Option<String>,
    pub(super) labels: Option<String>,
    pub(super) need: Need,
}

/// What is lost where a feed's objects may not be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Names or hosts.
    Must,
    /// Nothing, as long as another such feed's may: nobody has asked for this one, which is one of the places where
    /// routers may be.
    Guess,
    /// What they would say of other objects, which can do without.
    Help,
}

impl Feed {
    /// As a person knows it: `routes.route.openshift.io in namespace shop`.
    pub(super) fn name(&self) -> String {
        let place = self
            .namespace
            .as_ref()
            .map(|namespace| format!(" in namespace {namespace}"));
        format!("{}{}", self.what.in_roles(), place.unwrap_or_default())
    }
}

/// What a feed tells the hub.
pub(super) enum News {
    /// All that there is.
    Listed(HashMap<String, Item>),
    /// One of them is new or different; `None`: it is gone, or nobody understands it any more.
    Changed(String, Option<Item>),
    /// The server does not have such things.
    Absent,
    /// Nothing new, but the server is there.
    Heard,
    /// It does not get what it asks for. `denied`: because it may not.
    Trouble {
        text: String,
        /// What is to be said of the server.
        verdict: &'static str,
        denied: bool,
    },
}

/// A feed's way to the hub.
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
            // The hub has ended, and this task with it as soon as it waits.
            std::future::pending::<()>().await;
        }
    }
}

/// Lists and watches until aborted.
pub(super) async fn follow(feed: Feed, connector: Arc<Connector>, pace: Pace, standing: Arc<Standing>, teller: Teller) {
    let mut backoff = Backoff::new(pace.retry, pace.retry_most, &feed.name());
    // Those who are woken together do not ask together.
    let mut jitter = Backoff::new(pace.look / 4, pace.look / 4, &feed.name());
    // Feeds that were listed together are not listed again together.
    let relist = Backoff::new(pace.relist, pace.relist, &feed.name()).pause();
    let mut woken = connector.reach.woken();
    let mut reader = Reader::new(feed, Arc::clone(&connector), pace, Arc::clone(&standing), teller);
    // Where a watch is to be taken up.
    let mut at: Option<Place> = None;
    let mut misses = 0;
    let mut most_misses = MISSES;
    loop {
        woken.mark_unchanged();
        // A watch that has ended in order is taken up where it was. (At once, but for servers that end it at once.)
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

/// What a feed has done.
enum Step {
    Listed,
    /// Until the server ended the watch in order.
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

/// How long to wait after a trouble; `None`: as usual, longer each time.
fn patience(
    trouble: &Trouble,
    feed: &Feed,
    watching: bool,
    connector: &Connector,
    backoff: &mut Backoff,
    pace: Pace,
) -> Option<Duration> {
    match trouble {
        // Nobody misses what is seen elsewhere, and each refusal is a line in the server's audit log.
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
        // A server that starts refuses what it grants a moment later.
        Trouble::Forbidden(_) | Trouble::Failed(_) if connector.reach.is_starting() => {
            backoff.reset();
            None
        }
        _ => None,
    }
}
