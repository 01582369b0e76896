//! A message that cannot be recorded, for which all after it wait: an operator may have it passed over.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use signalbox_core::spi::redact;
use tokio::sync::oneshot;

use super::dead_letters::DeadLetter;
use crate::state::unix_ms;

/// The message that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Blocked {
    /// Since when, in milliseconds since 1970.
    pub since_ms: u64,
    /// Attempts to record it that have failed.
    pub attempts: u64,
    /// Why the last one did.
    pub reason: String,
    /// Its first 4 KiB, up to where a private key or pass phrase might begin.
    pub text: String,
}

/// Why no message was passed over.
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

/// How often, and how many times, the consumer is asked while it makes an attempt.
const ASK_INTERVAL: Duration = Duration::from_millis(20);
const ASKS: u32 = 250;

/// Whoever asks for the message to be passed over, and is told which it was.
pub(super) type Asked = oneshot::Sender<DeadLetter>;

/// Where the consumer of messages and operators meet.
#[derive(Debug, Default)]
pub(super) struct Gate(Mutex<Option<(Blocked, Option<oneshot::Sender<Asked>>)>>);

impl Gate {
    fn lock(&self) -> MutexGuard<'_, Option<(Blocked, Option<oneshot::Sender<Asked>>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A message could not be recorded. What is returned says when it is to be passed over.
    pub(super) fn wait(&self, reason: &str, text: &str) -> oneshot::Receiver<Asked> {
        let (ask, asked) = oneshot::channel();
        let mut slot = self.lock();
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

    /// The message is recorded, passed over, or no longer in our hands.
    pub(super) fn open(&self) {
        *self.lock() = None;
    }

    /// The message that waits.
    pub(super) fn blocked(&self) -> Option<Blocked> {
        self.lock().as_ref().map(|(blocked, _)| blocked.clone())
    }

    /// Has the message that waits passed over; the dead letter that it has become.
    pub(super) async fn skip(&self) -> Result<DeadLetter, SkipError> {
        for _ in 0..ASKS {
            let ask = match self.lock().as_mut() {
                Some((_, ask)) => ask.take(),
                None => return Err(SkipError::NotBlocked),
            };
            let (tell, told) = oneshot::channel();
            // While an attempt is made nobody listens; what comes of it is known in a moment.
            if ask.is_some_and(|ask| ask.send(tell).is_ok()) {
                return told.await.map_err(|_| SkipError::Lost);
            }
            tokio::time::sleep(ASK_INTERVAL).await;
        }
        Err(SkipError::Busy)
    }
}
