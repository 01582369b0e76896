//! Passive ejection: a host that refuses real connections is ejected for a while, before the next check sees it.

use std::time::Duration;

use crate::model::Ejection;

/// Ejection record of one host. Times are durations since any fixed start.
#[derive(Clone, Debug, Default)]
pub struct EjectionState {
    failures: u32,
    ejections: u32,
    ejected_until: Option<Duration>,
}

impl EjectionState {
    /// Notes a failed connect. Returns true when the host is to be ejected: `others` (hosts of the cluster already
    /// ejected, hosts in all) must leave room under the cap.
    pub fn record_failure(&mut self, policy: &Ejection, now: Duration, others: (usize, usize)) -> bool {
        self.failures += 1;
        if self.ejected_until.is_some() || policy.failures == 0 || self.failures < policy.failures {
            return false;
        }
        let (ejected, hosts) = others;
        if (ejected + 1) * 100 > hosts * usize::from(policy.max_percent) {
            return false;
        }
        self.failures = 0;
        self.ejections = (self.ejections + 1).min(10);
        self.ejected_until = Some(now + policy.time * self.ejections);
        true
    }

    /// Notes a successful connect, which ends the run of failures.
    pub fn record_success(&mut self) {
        self.failures = 0;
    }

    /// Whether the host is ejected.
    #[must_use]
    pub const fn is_ejected(&self) -> bool {
        self.ejected_until.is_some()
    }

    /// Ends an ejection whose time is over; returns true if it did.
    pub fn expire(&mut self, now: Duration) -> bool {
        match self.ejected_until {
            Some(until) if until <= now => {
                self.ejected_until = None;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Ejection = Ejection {
        failures: 3,
        time: Duration::from_secs(10),
        max_percent: 50,
    };

    #[test]
    fn three_failures_in_a_row_eject_for_longer_each_time() {
        let mut host = EjectionState::default();
        let at = Duration::from_secs;
        assert!(!host.record_failure(&POLICY, at(0), (0, 4)));
        host.record_success();
        assert!(!host.record_failure(&POLICY, at(0), (0, 4)));
        assert!(!host.record_failure(&POLICY, at(0), (0, 4)));
        assert!(host.record_failure(&POLICY, at(0), (0, 4)));
        assert!(!host.expire(at(9)));
        assert!(host.expire(at(10)));
        for _ in 0..3 {
            host.record_failure(&POLICY, at(20), (0, 4));
        }
        assert!(!host.expire(at(39)) && host.expire(at(40)), "20 s the second time");
    }

    #[test]
    fn never_more_than_the_cap() {
        let mut host = EjectionState::default();
        for _ in 0..9 {
            assert!(
                !host.record_failure(&POLICY, Duration::ZERO, (1, 2)),
                "half of two is one, and one is out"
            );
        }
    }
}
