//! When a new model is made from the sources' reports, and who waits for it.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// Minimum interval at which a new model is made from the sources' reports.
const MERGE_INTERVAL: Duration = Duration::from_millis(20);

/// Answer that a source gets when its report is in the model, or cannot be.
pub(super) type DiscoveryReply = oneshot::Sender<Result<(), String>>;

pub(super) struct MergeSchedule {
    is_needed: bool,
    last: Instant,
    replies: Vec<DiscoveryReply>,
}

impl MergeSchedule {
    pub(super) fn new() -> Self {
        Self {
            is_needed: false,
            last: Instant::now(),
            replies: Vec::new(),
        }
    }

    pub(super) fn request(&mut self) {
        self.is_needed = true;
    }

    /// Requests a model, and an answer when it is active.
    pub(super) fn request_for(&mut self, reply: Option<DiscoveryReply>) {
        self.replies.extend(reply);
        self.is_needed = true;
    }

    pub(super) fn is_needed(&self) -> bool {
        self.is_needed
    }

    pub(super) fn due(&self) -> Instant {
        self.last + MERGE_INTERVAL
    }

    pub(super) fn is_due(&self) -> bool {
        self.is_needed && Instant::now() >= self.due()
    }

    /// Answers those who wait for the model that has just been made, or was refused.
    pub(super) fn answer(&mut self, outcome: &Result<(), String>) {
        for reply in self.replies.drain(..) {
            let _ = reply.send(outcome.clone());
        }
    }

    /// A model with all reports so far has been made.
    pub(super) fn done(&mut self) {
        self.is_needed = false;
        self.last = Instant::now();
    }
}
