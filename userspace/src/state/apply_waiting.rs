//! Reports of sources that are not in force yet: since when they wait.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time since the oldest report that is not in force.
#[derive(Default)]
pub struct ApplyWaiting(Mutex<Option<Instant>>);

impl ApplyWaiting {
    fn since(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that something waits; what has waited before counts from its own beginning.
    pub fn begin(&self) {
        self.since().get_or_insert_with(Instant::now);
    }

    /// Notes that all that was reported is in force.
    pub fn end(&self) {
        *self.since() = None;
    }

    /// Returns how long something has waited; zero if nothing does.
    pub fn elapsed(&self) -> Duration {
        self.since().map_or(Duration::ZERO, |since| since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_counts_from_the_first_report() {
        let waiting = ApplyWaiting::default();
        assert_eq!(waiting.elapsed(), Duration::ZERO);
        waiting.begin();
        let first = *waiting.since();
        waiting.begin();
        assert!(first.is_some() && *waiting.since() == first);
        waiting.end();
        assert_eq!(waiting.elapsed(), Duration::ZERO);
    }
}
