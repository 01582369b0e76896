//! Schedule of requests at a fixed rate, shared out to threads.

use std::time::{Duration, Instant};

/// Moments at which one thread of several sends. Each is computed from the beginning: errors do not add up.
#[derive(Clone, Copy)]
pub(super) struct Schedule {
    /// Moment at which the first request of all threads is due.
    pub(super) origin: Instant,
    /// Requests per second, of all threads together.
    pub(super) rate: f64,
    /// Number of this thread.
    pub(super) thread: usize,
    /// Number of threads.
    pub(super) threads: usize,
}

impl Schedule {
    /// Moment at which this thread's `n`-th request is due. Threads take turns, so that together they keep one
    /// interval.
    pub(super) fn due(&self, n: u64) -> Instant {
        let nth = n * self.threads as u64 + self.thread as u64;
        self.origin + Duration::from_secs_f64(nth as f64 / self.rate)
    }

    /// Number of this thread's requests, from the `n`-th on, that are due before `end`.
    pub(super) fn left(&self, n: u64, end: Instant) -> u64 {
        let nths = (end.saturating_duration_since(self.origin).as_secs_f64() * self.rate).ceil() as u64;
        let mine = nths.saturating_sub(self.thread as u64).div_ceil(self.threads as u64);
        mine.saturating_sub(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(thread: usize, rate: f64, origin: Instant) -> Schedule {
        Schedule {
            origin,
            rate,
            thread,
            threads: 2,
        }
    }

    #[test]
    fn threads_together_keep_one_interval() {
        let origin = Instant::now();
        let (even, odd) = (schedule(0, 1000.0, origin), schedule(1, 1000.0, origin));
        let both = (0..50).flat_map(|n| [even.due(n), odd.due(n)]);
        for (n, due) in (0..).zip(both) {
            assert_eq!(due, origin + Duration::from_millis(n));
        }
    }

    #[test]
    fn it_does_not_drift() {
        let origin = Instant::now();
        // 1/3 s is no whole number of nanoseconds.
        let due = schedule(0, 3.0, origin).due(30_000_000);
        assert!(due - origin <= Duration::from_secs(20_000_000) + Duration::from_micros(1));
        assert!(due - origin >= Duration::from_secs(20_000_000) - Duration::from_micros(1));
    }

    #[test]
    fn requests_left_are_those_due_before_the_end() {
        let origin = Instant::now();
        for millis in [0, 1, 2, 3, 99, 100] {
            let end = origin + Duration::from_millis(millis);
            for thread in [0, 1] {
                let schedule = schedule(thread, 1000.0, origin);
                let due = (0..200).filter(|&n| schedule.due(n) < end).count() as u64;
                assert_eq!(schedule.left(0, end), due, "{millis} ms, thread {thread}");
                assert_eq!(schedule.left(7, end), due.saturating_sub(7));
            }
        }
    }
}
