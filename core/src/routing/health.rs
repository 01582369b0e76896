//! Rise and fall: how many check results in a row turn a host healthy or unhealthy; and when checks begin.

use std::time::Duration;

use serde::Serialize;

use crate::model::HealthCheck;

/// Health of a host by its checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// No check has ended yet. The host is used, so that a restart does not begin with an outage.
    Unknown,
    /// Checks succeed.
    Healthy,
    /// Checks fail: the host gets no new connection.
    Unhealthy,
}

impl Health {
    /// Whether the host may get new connections.
    #[must_use]
    pub const fn usable(self) -> bool {
        !matches!(self, Self::Unhealthy)
    }
}

/// Time from the check that takes a host out to the next, which doubles with each check: a host that restarts is soon
/// back.
const FIRST_RETURN_INTERVAL: Duration = Duration::from_millis(200);

/// Counts results of checks in a row.
#[derive(Clone, Debug)]
pub struct Hysteresis {
    health: Health,
    streak: u32,
    /// Checks since the host went down.
    while_down: u32,
}

impl Default for Hysteresis {
    fn default() -> Self {
        Self {
            health: Health::Unknown,
            streak: 0,
            while_down: 0,
        }
    }
}

impl Hysteresis {
    /// Takes the result of a check; returns the new health when that changes. The very first result counts at once.
    pub fn observe(&mut self, ok: bool, rise: u32, fall: u32) -> Option<Health> {
        self.while_down = self.while_down.saturating_add(1);
        let (agrees, needed, next) = match self.health {
            Health::Unknown => (false, 1, if ok { Health::Healthy } else { Health::Unhealthy }),
            Health::Healthy => (ok, fall, Health::Unhealthy),
            Health::Unhealthy => (!ok, rise, Health::Healthy),
        };
        if agrees {
            self.streak = 0;
            return None;
        }
        self.streak += 1;
        if self.streak < needed {
            return None;
        }
        (self.streak, self.while_down) = (0, 0);
        self.health = next;
        Some(next)
    }

    /// Present health.
    #[must_use]
    pub const fn health(&self) -> Health {
        self.health
    }

    /// Whether results that contradict the present health are being counted.
    #[must_use]
    pub const fn is_counting(&self) -> bool {
        self.streak > 0
    }
}

impl HealthCheck {
    /// Time from one check's beginning to the next's: the interval less the timeout, and at least half of it.
    ///
    /// A host that hangs right after its answer is checked again so soon that the next check has failed before one
    /// interval is over. A host that has just gone down is checked again sooner.
    #[must_use]
    pub fn until_next(&self, counted: &Hysteresis) -> Duration {
        let between = self.between_checks(counted.is_counting());
        if counted.health != Health::Unhealthy {
            return between;
        }
        let doubled = 1u32.checked_shl(counted.while_down).unwrap_or(u32::MAX);
        between.min(FIRST_RETURN_INTERVAL.saturating_mul(doubled))
    }

    fn between_checks(&self, is_counting: bool) -> Duration {
        let usual = self.interval.saturating_sub(self.timeout).max(self.interval / 2);
        self.fast_interval.filter(|_| is_counting).unwrap_or(usual)
    }

    /// Longest time from the moment at which a host stops answering to the end of the check that takes it out: one
    /// interval with a `fall` of 1 and a timeout of at most half the interval.
    #[must_use]
    pub fn max_detection_time(&self) -> Duration {
        // A check that is left unanswered takes the whole timeout, and two of a host's checks never overlap.
        let further = self.between_checks(true).max(self.timeout);
        self.between_checks(false) + self.timeout + further * self.fall.saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rises_after_two_and_falls_after_three_in_a_row() {
        let mut host = Hysteresis::default();
        assert_eq!(
            host.observe(false, 2, 3),
            Some(Health::Unhealthy),
            "the first verdict counts at once"
        );
        assert_eq!(host.observe(true, 2, 3), None);
        assert_eq!(host.observe(false, 2, 3), None, "the streak is broken");
        assert_eq!(host.observe(true, 2, 3), None);
        assert_eq!(host.observe(true, 2, 3), Some(Health::Healthy));
        for ok in [false, false, true, false, false] {
            assert_eq!(host.observe(ok, 2, 3), None);
        }
        assert_eq!(host.observe(false, 2, 3), Some(Health::Unhealthy));
    }

    const MS: Duration = Duration::from_millis(1);

    fn check(interval: u32, timeout: u32, fall: u32, fast_interval: Option<u32>) -> HealthCheck {
        HealthCheck {
            interval: MS * interval,
            fast_interval: fast_interval.map(|ms| MS * ms),
            timeout: MS * timeout,
            fall,
            ..HealthCheck::DEFAULT
        }
    }

    /// Time that a host that answers nothing from `hangs` on stays in rotation. Its checks begin at 0 and, as long as
    /// it answers, take no time.
    fn unnoticed(check: &HealthCheck, hangs: Duration) -> Duration {
        let mut host = Hysteresis::default();
        let mut begins = Duration::ZERO;
        loop {
            let is_well = begins < hangs;
            let ends = if is_well { begins } else { begins + check.timeout };
            if host.observe(is_well, check.rise, check.fall) == Some(Health::Unhealthy) {
                return ends - hangs;
            }
            begins = ends.max(begins + check.until_next(&host));
        }
    }

    /// Longest of these times over all moments of hanging, to the millisecond.
    fn worst(check: &HealthCheck) -> Duration {
        let moments = 1..4 * u32::try_from(check.interval.as_millis()).unwrap();
        moments.map(|ms| unnoticed(check, MS * ms)).max().unwrap()
    }

    #[test]
    fn a_host_that_hangs_at_any_moment_is_out_within_one_interval() {
        assert_eq!(HealthCheck::DEFAULT.max_detection_time(), Duration::from_secs(5));
        for (interval, timeout) in [(5000, 2000), (1000, 500), (1000, 10), (300, 150), (7, 3)] {
            let check = check(interval, timeout, 1, None);
            // At best the host is checked at the moment it hangs, and at worst a moment after it has answered.
            assert_eq!(unnoticed(&check, check.between_checks(false)), check.timeout);
            assert_eq!(worst(&check), check.interval - MS, "{check:?}");
            assert_eq!(check.max_detection_time(), check.interval);
        }
    }

    #[test]
    fn a_long_timeout_and_a_greater_fall_cost_what_is_said_of_them() {
        for (check, longest) in [
            (check(1000, 1000, 1, None), 1500),
            (check(1000, 501, 1, None), 1001),
            // Three unanswered checks: 3 s, 3 s and 2 s in turn, or one right after the other.
            (check(5000, 2000, 3, None), 5000 + 2 * 3000),
            (check(5000, 2000, 3, Some(500)), 5000 + 2 * 2000),
            (check(5000, 500, 3, Some(500)), 5000 + 2 * 500),
        ] {
            assert_eq!(check.max_detection_time(), MS * longest);
            assert_eq!(worst(&check), MS * (longest - 1), "{check:?}");
        }
    }

    #[test]
    fn checks_are_fast_only_while_verdicts_are_counted() {
        let check = check(5000, 1000, 2, Some(200));
        let mut host = Hysteresis::default();
        for (ok, next) in [
            (true, 4000),
            (false, 200),
            (true, 4000),
            (false, 200),
            (false, 4000),
            (true, 200),
            (true, 4000),
        ] {
            host.observe(ok, 2, check.fall);
            assert_eq!(check.between_checks(host.is_counting()), MS * next);
        }
    }

    #[test]
    fn a_host_that_goes_down_is_rechecked_soon_and_then_less_often() {
        let check = check(5000, 2000, 1, None);
        let mut host = Hysteresis::default();
        host.observe(true, 2, 1);
        let mut next = |ok| {
            host.observe(ok, 2, 1);
            check.until_next(&host)
        };
        for after in [200, 400, 800, 1600, 3000, 3000] {
            assert_eq!(next(false), MS * after);
        }
        for _ in 0..100 {
            assert_eq!(next(false), MS * 3000);
        }
        // The host is back after two successes, and goes down again.
        for (ok, after) in [(true, 3000), (true, 3000), (false, 200), (true, 400), (true, 3000)] {
            assert_eq!(next(ok), MS * after);
        }
    }
}
