//! A message that cannot be recorded, for which all later ones wait: an operator may have it skipped.

use std::time::Duration;

use parking_lot::Mutex;
use signalbox_api::events::{Blocked, DeadLetter};
use signalbox_core::discovered::spi::redact;
use tokio::sync::oneshot;

use signalbox_sys::unix_ms;

/// Reason why no message was passed over.
#[derive(Debug, thiserror::Error)]
pub enum SkipError {
    /// No message waits.
    #[error("no message waits")]
    NotBlocked,
    /// An attempt to record the message hangs.
    #[error("an attempt to record the message is under way, and does not end: ask again, or see to the disk")]
    Busy,
    /// The message was lost with the connection, and comes again.
    #[error("the connection to the broker was lost meanwhile: the message comes again, and may be skipped then")]
    Lost,
}

/// Interval and number of requests to the consumer while it makes an attempt.
const SKIP_RETRY_INTERVAL: Duration = Duration::from_millis(20);
const MAX_SKIP_TRIES: u32 = 250;

/// Request to skip the message; answered with the dead letter.
pub(super) type SkipRequest = oneshot::Sender<DeadLetter>;

/// Meeting point of the consumer of messages and operators.
#[derive(Debug, Default)]
pub(super) struct BlockedSlot(Mutex<Option<(Blocked, Option<oneshot::Sender<SkipRequest>>)>>);

impl BlockedSlot {
    /// Shows a message that could not be recorded. The receiver gets a request to skip it.
    pub(super) fn wait(&self, reason: &str, text: &str) -> oneshot::Receiver<SkipRequest> {
        let (ask, asked) = oneshot::channel();
        let mut slot = self.0.lock();
        let before = slot.take().map(|(before, _)| before);
        let blocked = Blocked {
            since_ms: before.as_ref().map_or_else(unix_ms, |before| before.since_ms),
            attempts: before.map_or(0, |before| before.attempts) + 1,
            reason: reason.to_owned(),
            text: redact(text),
        };
        *slot = Some((blocked, Some(ask)));
        asked
    }

    /// Removes the message, because it is recorded, skipped, or lost with its connection.
    pub(super) fn clear(&self) {
        *self.0.lock() = None;
    }

    /// Returns the message that waits.
    pub(super) fn blocked(&self) -> Option<Blocked> {
        self.0.lock().as_ref().map(|(blocked, _)| blocked.clone())
    }

    /// Has the waiting message skipped. Returns the dead letter that it becomes.
    pub(super) async fn skip(&self) -> Result<DeadLetter, SkipError> {
        for _ in 0..MAX_SKIP_TRIES {
            let ask = match self.0.lock().as_mut() {
                Some((_, ask)) => ask.take(),
                None => return Err(SkipError::NotBlocked),
            };
            let (tell, told) = oneshot::channel();
            // The consumer does not listen during an attempt, whose outcome is known in a moment.
            if ask.is_some_and(|ask| ask.send(tell).is_ok()) {
                return told.await.map_err(|_| SkipError::Lost);
            }
            tokio::time::sleep(SKIP_RETRY_INTERVAL).await;
        }
        Err(SkipError::Busy)
    }
}
