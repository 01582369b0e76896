//! Feed: one resource in one namespace, listed and then watched, for ever.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::Sender;
use tokio::time::{sleep, timeout};

use super::connect::Connector;
use super::decode::WatchedObject;
use super::diagnosis::diagnosis;
use super::read::{Reader, WatchPosition};
use super::resource_kind::ResourceKind;
use super::watch_error::WatchError;
use super::{SourceStatus, Timings};
use crate::source::backoff::Backoff;

/// Times that a resource must be absent before that is believed, because a server that starts (or an API service
/// behind it) does not have all resources yet. The second number, a minute or so, is for resources whose names would
/// be removed.
const MAX_NOT_FOUND: u32 = 3;
const MAX_NOT_FOUND_ONCE_LISTED: u32 = 10;

/// Resource, namespace and labels that are listed and watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Feed {
    pub(super) resource: ResourceKind,
    /// Namespace; `None`: all.
    pub(super) namespace: Option<String>,
    pub(super) labels: Option<String>,
    pub(super) necessity: Necessity,
}

/// Loss where a feed's objects may not be read.
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

/// Lists and watches until aborted.
pub(super) async fn follow(
    feed: Feed,
    connector: Arc<Connector>,
    timings: Timings,
    status: Arc<SourceStatus>,
    updates: UpdateSender,
) {
    let mut backoff = Backoff::new(timings.retry, timings.max_retry, &feed.name());
    // Jitter: feeds that are woken together do not send requests together.
    let mut jitter = Backoff::new(timings.check / 4, timings.check / 4, &feed.name());
    // Jitter: feeds that were listed together are not listed again together.
    let relist = Backoff::new(timings.relist, timings.relist, &feed.name()).pause();
    let mut woken = connector.reachability.wake_signal();
    let mut reader = Reader::new(feed, Arc::clone(&connector), timings, Arc::clone(&status), updates);
    // Place from which the next watch starts; `None`: a list comes first.
    let mut at: Option<WatchPosition> = None;
    let mut misses = 0;
    let mut most_misses = MAX_NOT_FOUND;
    loop {
        woken.mark_unchanged();
        // A watch that the server has ended is resumed at once, unless the server ends watches at once.
        let mut wait = None;
        match advance(&mut reader, &mut at, &mut backoff, timings).await {
            Ok(FeedStep::Listed) => {
                misses = 0;
                most_misses = MAX_NOT_FOUND_ONCE_LISTED;
                continue;
            }
            Ok(FeedStep::Watched) => at = at.filter(|place| place.listed.elapsed() < relist),
            Err(trouble) => {
                status.events.inc(trouble.label());
                if matches!(trouble, WatchError::Broken(_)) {
                    connector.reachability.mark_lost();
                }
                at = at.filter(|_| trouble.resumes());
                misses += u32::from(trouble == WatchError::Absent);
                if misses >= most_misses && trouble == WatchError::Absent {
                    reader.updates.send(FeedUpdate::Absent).await;
                    most_misses = MAX_NOT_FOUND;
                    sleep(timings.absent).await;
                    continue;
                }
                wait = retry_delay(&trouble, &reader.feed, at.is_some(), &connector, &mut backoff, timings);
                let verdict = trouble.remark();
                if let Some((text, denied)) = diagnosis(&reader.feed, trouble, at.is_some()) {
                    reader
                        .updates
                        .send(FeedUpdate::Failed {
                            text,
                            remark: verdict,
                            denied,
                        })
                        .await;
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
enum FeedStep {
    Listed,
    /// The feed watched until the server ended the watch in order.
    Watched,
}

async fn advance(
    reader: &mut Reader,
    at: &mut Option<WatchPosition>,
    backoff: &mut Backoff,
    timings: Timings,
) -> Result<FeedStep, WatchError> {
    let Some(place) = at else {
        *at = Some(reader.list().await?);
        return Ok(FeedStep::Listed);
    };
    let began = Instant::now();
    let outcome = reader.watch(place, backoff).await;
    if began.elapsed() >= timings.max_retry {
        backoff.reset();
    }
    outcome.map(|()| FeedStep::Watched)
}

/// Returns the pause after an error; `None`: the usual back-off.
fn retry_delay(
    trouble: &WatchError,
    feed: &Feed,
    watching: bool,
    connector: &Connector,
    backoff: &mut Backoff,
    pace: Timings,
) -> Option<Duration> {
    match trouble {
        // Another feed has the objects, and each refusal is a line in the server's audit log: a long pause is right.
        WatchError::Forbidden(_)
            if !watching
                && match feed.necessity {
                    Necessity::Required => false,
                    Necessity::Speculative => connector.reachability.routers_found.load(Relaxed),
                    Necessity::Optional => !connector.reachability.is_starting(),
                } =>
        {
            Some(pace.forbidden_retry)
        }
        // A server that starts may refuse what it grants a moment later.
        WatchError::Forbidden(_) | WatchError::Failed(_) if connector.reachability.is_starting() => {
            backoff.reset();
            None
        }
        _ => None,
    }
}
