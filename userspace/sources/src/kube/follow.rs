//! Lists a feed's resource and then watches it, endlessly.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use super::connect::Connector;
use super::diagnosis::diagnosis;
use super::feed::{Feed, FeedUpdate, Necessity, UpdateSender};
use super::read::{Reader, WatchPosition};
use super::watch_error::WatchError;
use super::{SourceStatus, Timings};
use crate::backoff::Backoff;

/// Times that a resource must be absent before that is believed, because a server that starts (or an API service that
/// it proxies) does not have all resources yet. The second number, a minute or so, is for resources whose names would
/// be removed.
const MAX_NOT_FOUND: u32 = 3;
const MAX_NOT_FOUND_ONCE_LISTED: u32 = 10;

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
        // A server that starts may first refuse requests that it grants a moment later.
        WatchError::Forbidden(_) | WatchError::Failed(_) if connector.reachability.is_starting() => {
            backoff.reset();
            None
        }
        _ => None,
    }
}
