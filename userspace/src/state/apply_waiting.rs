//! Reports of sources that are not applied yet, and since when they wait.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Time since the oldest report that is not applied.
#[derive(Default)]
pub struct ApplyWaiting(Mutex<Option<Instant>>);

impl ApplyWaiting {
    /// Notes that a report waits. If an earlier one waits already, its start counts.
    pub fn begin(&self) {
        self.0.lock().get_or_insert_with(Instant::now);
    }

    /// Notes that all reports have been applied.
    pub fn end(&self) {
        *self.0.lock() = None;
    }

    /// Returns how long a report has waited; zero if none waits.
    pub fn elapsed(&self) -> Duration {
        self.0.lock().map_or(Duration::ZERO, |since| since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_time_counts_from_the_first_unapplied_report() {
        let waiting = ApplyWaiting::default();
        assert_eq!(waiting.elapsed(), Duration::ZERO);
        waiting.begin();
        let first = *waiting.0.lock();
        waiting.begin();
        assert!(first.is_some() && *waiting.0.lock() == first);
        waiting.end();
        assert_eq!(waiting.elapsed(), Duration::ZERO);
    }
}
