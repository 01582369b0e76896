//! When a host counts as silent, and how many connections may leave silent hosts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Shortest and longest time until a host is asked again. A client that uses Linux repeats its data after 200 ms.
pub const MIN_RETRY_TIMEOUT: Duration = Duration::from_millis(10);
/// See [`MIN_RETRY_TIMEOUT`].
pub const MAX_RETRY_TIMEOUT: Duration = Duration::from_millis(200);

/// Times that a host takes to accept connections: mean and mean deviation, as TCP keeps them (RFC 6298, section 2).
#[derive(Debug, Default)]
pub struct ConnectTimes(AtomicU64);

impl ConnectTimes {
    /// Counts a connection that was accepted after this time. A longer one than the host was given counts as twice that at
    /// most: the SYN was repeated, and which one the host has answered is not known (Karn's algorithm).
    pub fn note(&self, took: Duration) {
        let took = took.as_micros().clamp(1, 1 << 30) as u64;
        let given = self.retry_after().map_or(1 << 30, |given| given.as_micros() as u64);
        let took = took.min(2 * given);
        let update = |known: u64| {
            let (mean, deviation) = (known >> 32, known & 0xffff_ffff);
            let (mean, deviation) = if mean == 0 {
                (took, took / 2)
            } else {
                ((7 * mean + took) / 8, (3 * deviation + mean.abs_diff(took)) / 4)
            };
            Some(mean.max(1) << 32 | deviation)
        };
        let _ = self.0.fetch_update(Relaxed, Relaxed, update);
    }

    /// Returns the time after which a host that has not answered is asked again: twice TCP's time-out. `None` where the host
    /// has accepted no connection yet.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let known = self.0.load(Relaxed);
        let (mean, deviation) = (known >> 32, known & 0xffff_ffff);
        let time = Duration::from_micros(2 * (mean + 4 * deviation));
        (mean != 0).then(|| time.clamp(MIN_RETRY_TIMEOUT, MAX_RETRY_TIMEOUT))
    }

    /// Returns that time for a host of which only the round-trip time is known.
    #[must_use]
    pub fn first_retry_after(round_trip: Duration) -> Duration {
        let times = Self::default();
        times.note(round_trip);
        times.retry_after().unwrap_or(MAX_RETRY_TIMEOUT)
    }
}

/// Connections of a cluster that may go to a second host: one in twenty, and a hundred at once.
#[derive(Debug)]
pub struct RedispatchBudget {
    /// Connections of the cluster that were counted.
    connections: u64,
    /// Connections left, in twentieths.
    left: u64,
}

impl RedispatchBudget {
    const COST: u64 = 20;
    const MOST: u64 = 100 * Self::COST;

    /// A full budget of a cluster that has had this many connections.
    #[must_use]
    pub const fn new(connections: u64) -> Self {
        Self {
            connections,
            left: Self::MOST,
        }
    }

    /// Whether one more connection may go to a second host; `connections`: how many the cluster has had by now.
    pub fn take(&mut self, connections: u64) -> bool {
        let more = connections.saturating_sub(self.connections);
        self.connections = connections;
        self.left = self.left.saturating_add(more).min(Self::MOST);
        let is_left = self.left >= Self::COST;
        if is_left {
            self.left -= Self::COST;
        }
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_hosts_are_asked_soon_and_distant_ones_later() {
        let after = |times: &[u64]| {
            let known = ConnectTimes::default();
            times
                .iter()
                .for_each(|micros| known.note(Duration::from_micros(*micros)));
            known.retry_after()
        };
        assert_eq!(after(&[]), None);
        assert_eq!(after(&[0]), Some(MIN_RETRY_TIMEOUT));
        assert_eq!(after(&[200; 20]), Some(MIN_RETRY_TIMEOUT));
        let far = after(&[30_000; 50]).unwrap();
        assert!(
            far >= Duration::from_millis(60) && far < Duration::from_millis(70),
            "{far:?}"
        );
        assert_eq!(after(&[150_000; 5]), Some(MAX_RETRY_TIMEOUT));
        assert_eq!(after(&[u64::MAX]), Some(MAX_RETRY_TIMEOUT));
        let known = ConnectTimes::first_retry_after(Duration::from_millis(5));
        assert_eq!(known, Duration::from_millis(30));
        // A late answer of a near host makes that host a distant one for a few connections, and not for many.
        let mut late = vec![200; 20];
        late.extend([200_000]);
        assert!(after(&late).unwrap() < Duration::from_millis(60));
        late.extend([200; 12]);
        assert_eq!(after(&late), Some(MIN_RETRY_TIMEOUT));
        // A near host that has become a distant one is known to be so after a few.
        late.extend([60_000; 6]);
        assert!(after(&late).unwrap() > Duration::from_millis(100));
        // Times that vary leave more room than their mean.
        let varied: Vec<_> = (0..100).map(|n| if n % 2 == 0 { 500 } else { 9500 }).collect();
        assert!(after(&varied).unwrap() > Duration::from_millis(30));
    }

    #[test]
    fn one_connection_in_twenty_may_leave_its_host() {
        let mut budget = RedispatchBudget::new(1000);
        let taken = (0..200).filter(|_| budget.take(1000)).count();
        assert_eq!(taken, 100);
        assert!(!budget.take(1019));
        assert!(budget.take(1020));
        let taken = (1021..=3020).filter(|now| budget.take(*now)).count();
        assert_eq!(taken, 100, "a twentieth of 2000");
        // The counts of a new process begin at zero.
        assert!(!budget.take(0));
        assert!(budget.take(20));
    }
}
