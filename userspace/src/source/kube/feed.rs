//! One resource in one namespace, listed and then watched, for ever.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc::Sender;
use tokio::time::sleep;

use super::complaint::complaint;
use super::connect::Connector;
use super::decode::Item;
use super::read::Reader;
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
    /// Nobody has asked for it: it is one of the places where routers may be.
    pub(super) guessed: bool,
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
    Trouble { text: String, denied: bool },
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
    let name = feed.name();
    let mut backoff = Backoff::new(pace.retry, pace.retry_most, &name);
    let mut reader = Reader::new(feed, connector, pace, Arc::clone(&standing), teller);
    // Where a watch is to be taken up.
    let mut at: Option<String> = None;
    let mut misses = 0;
    let mut most_misses = MISSES;
    loop {
        let outcome = match &mut at {
            None => match reader.list().await {
                Ok(version) => {
                    misses = 0;
                    most_misses = MISSES_ONCE_LISTED;
                    at = Some(version);
                    continue;
                }
                Err(trouble) => Err(trouble),
            },
            Some(version) => {
                let began = Instant::now();
                let outcome = reader.watch(version, &mut backoff).await;
                if began.elapsed() >= pace.retry_most {
                    backoff.reset();
                }
                outcome
            }
        };
        // A watch that has ended in order is taken up where it was. (At once, but for servers that end it at once.)
        if let Err(trouble) = outcome {
            standing.events.inc(trouble.label());
            if !trouble.resumes() {
                at = None;
            }
            if trouble == Trouble::Absent {
                misses += 1;
                if misses >= most_misses {
                    reader.teller.tell(News::Absent).await;
                    most_misses = MISSES;
                    sleep(pace.absent).await;
                    continue;
                }
            } else if let Some((text, denied)) = complaint(&reader.feed, trouble, at.is_some()) {
                reader.teller.tell(News::Trouble { text, denied }).await;
            }
        }
        sleep(backoff.pause()).await;
    }
}
