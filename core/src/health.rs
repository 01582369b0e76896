//! Rise and fall: how many verdicts in a row it takes to believe a host up or down.

use serde::Serialize;

/// What the checks say of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// No check has ended yet: used, so that a restart does not begin with an outage.
    Unknown,
    /// Up.
    Healthy,
    /// Down: gets no new connection.
    Unhealthy,
}

impl Health {
    /// Whether a new connection may go there.
    #[must_use]
    pub const fn usable(self) -> bool {
        !matches!(self, Self::Unhealthy)
    }
}

/// Counts verdicts in a row.
#[derive(Clone, Debug)]
pub struct Hysteresis {
    health: Health,
    streak: u32,
}

impl Default for Hysteresis {
    fn default() -> Self {
        Self {
            health: Health::Unknown,
            streak: 0,
        }
    }
}

impl Hysteresis {
    /// Takes a verdict; returns the new health when it changes. The first verdict ever counts at once.
    pub fn observe(&mut self, ok: bool, rise: u32, fall: u32) -> Option<Health> {
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
        self.streak = 0;
        self.health = next;
        Some(next)
    }

    /// The health as it stands.
    #[must_use]
    pub const fn health(&self) -> Health {
        self.health
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
}
