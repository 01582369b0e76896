//! Guards of a migration: conditions on real traffic that compare the new cluster with the old one.

use serde::{Deserialize, Serialize};

/// Least number of faults that a rate is judged by: one lost connection among few is no rate.
const MIN_FAULTS: u64 = 3;

/// Number of faults that are judged without enough samples, where they are more than half of them.
const PLAIN_FAULTS: u64 = 5;

/// Share of thousandths that is "more than half".
const HALF_PERMILLE: u64 = 500;

/// Difference of two mean latencies that is never a fault, in microseconds.
const LATENCY_TOLERANCE_MICROS: u64 = 10_000;

/// Least number of samples of a mean latency: one slow connect among five would be a fault.
const MIN_LATENCY_SAMPLES: u64 = 20;

/// Counts of how well a cluster has served: since the start, or in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct QualityFigures {
    /// Connects that a host has accepted.
    pub connects: u64,
    /// Time of those connects, in microseconds, added up.
    pub connect_micros: u64,
    /// Connects that were refused, timed out or failed otherwise.
    pub connect_failures: u64,
    /// Flows ended of those that are carried as a whole.
    pub flows_ended: u64,
    /// Flows among them that the host has reset, or finished without an answer.
    pub flows_broken: u64,
    /// Requests ended of those that are routed one by one.
    pub answers: u64,
    /// Requests among them with a status code of 500 or more.
    pub server_errors: u64,
    /// Requests whose answers have begun.
    pub first_bytes: u64,
    /// Time from the requests to the begin of those answers, in microseconds, added up.
    pub first_byte_micros: u64,
}

impl QualityFigures {
    /// Applies a function to each pair of counts.
    fn zip(self, other: Self, with: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            connects: with(self.connects, other.connects),
            connect_micros: with(self.connect_micros, other.connect_micros),
            connect_failures: with(self.connect_failures, other.connect_failures),
            flows_ended: with(self.flows_ended, other.flows_ended),
            flows_broken: with(self.flows_broken, other.flows_broken),
            answers: with(self.answers, other.answers),
            server_errors: with(self.server_errors, other.server_errors),
            first_bytes: with(self.first_bytes, other.first_bytes),
            first_byte_micros: with(self.first_byte_micros, other.first_byte_micros),
        }
    }

    /// Adds the counts of another route.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.zip(other, u64::saturating_add)
    }

    /// Returns the counts since an earlier time.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        self.zip(earlier, u64::saturating_sub)
    }

    /// Returns the number of connects and requests that say something about the cluster.
    #[must_use]
    pub fn samples(&self) -> u64 {
        (self.connects + self.connect_failures).max(self.answers)
    }

    /// Returns the mean time of a connect in microseconds, if there were at least `least` connects.
    #[must_use]
    pub fn mean_connect(&self, least: u64) -> Option<u64> {
        mean(self.connect_micros, self.connects, least)
    }

    /// Returns the mean time to the begin of an answer in microseconds, if there were at least `least` answers.
    #[must_use]
    pub fn mean_first_byte(&self, least: u64) -> Option<u64> {
        mean(self.first_byte_micros, self.first_bytes, least)
    }
}

fn mean(sum: u64, count: u64, least: u64) -> Option<u64> {
    (count >= least.max(1)).then(|| sum / count)
}

/// Guard of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "MigrationGuard")
)]
#[serde(rename_all = "snake_case")]
pub enum GuardKind {
    /// The new cluster has a host that takes connections.
    Hosts,
    /// Connects that failed.
    Connects,
    /// Connections that were reset, or ended without an answer.
    Connections,
    /// Requests that were answered with 5xx.
    ServerErrors,
    /// Mean times of a connect and to the begin of an answer.
    Latency,
}

impl GuardKind {
    /// All guards.
    pub const ALL: [Self; 5] = [
        Self::Hosts,
        Self::Connects,
        Self::Connections,
        Self::ServerErrors,
        Self::Latency,
    ];

    /// Returns the guard's name in the API and in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hosts => "hosts",
            Self::Connects => "connects",
            Self::Connections => "connections",
            Self::ServerErrors => "server_errors",
            Self::Latency => "latency",
        }
    }
}

/// Limits beyond which a step is rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuardLimits {
    /// Share of faults in thousandths by which the new cluster may exceed the old one.
    pub max_error_permille: u64,
    /// Multiple of the old cluster's mean latency, in percent, that the new one's may reach; 0: any.
    pub max_latency_percent: u64,
    /// Samples below which no rate is judged, and no step ends.
    pub min_samples: u64,
}

impl GuardLimits {
    fn latency_samples(&self) -> u64 {
        self.min_samples.max(MIN_LATENCY_SAMPLES)
    }
}

impl Default for GuardLimits {
    fn default() -> Self {
        Self {
            max_error_permille: 10,
            max_latency_percent: 300,
            min_samples: 20,
        }
    }
}

/// Mean latencies of the old cluster, in microseconds, as they were when it had traffic last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LatencyReference {
    /// Mean time of a connect.
    pub connect: Option<u64>,
    /// Mean time to the begin of an answer.
    pub first_byte: Option<u64>,
}

impl LatencyReference {
    /// Takes the means of a period in which there were enough samples.
    pub fn update(&mut self, old: &QualityFigures, limits: &GuardLimits) {
        self.connect = old.mean_connect(limits.latency_samples()).or(self.connect);
        self.first_byte = old.mean_first_byte(limits.latency_samples()).or(self.first_byte);
    }
}

/// Judges a period: the reason why the new cluster is not good enough, or `None`.
#[must_use]
pub fn judge(
    limits: &GuardLimits,
    reference: &LatencyReference,
    old: &QualityFigures,
    new: &QualityFigures,
) -> Option<(GuardKind, String)> {
    let rates = [
        (
            GuardKind::Connects,
            "connects failed",
            connect_rate(old),
            connect_rate(new),
        ),
        (
            GuardKind::Connections,
            "connections were reset or ended without an answer",
            (old.flows_broken, old.flows_ended),
            (new.flows_broken, new.flows_ended),
        ),
        (
            GuardKind::ServerErrors,
            "requests were answered with 5xx",
            (old.server_errors, old.answers),
            (new.server_errors, new.answers),
        ),
    ];
    let failed = rates.into_iter().find_map(|(guard, what, old, new)| {
        is_worse(limits, old, new).then(|| {
            let old = if old.1 > 0 {
                format!("; of the old cluster {} of {}", old.0, old.1)
            } else {
                String::new()
            };
            (guard, format!("{} of {} {what}{old}", new.0, new.1))
        })
    });
    failed.or_else(|| Some((GuardKind::Latency, slower(limits, reference, new)?)))
}

const fn connect_rate(figures: &QualityFigures) -> (u64, u64) {
    (figures.connect_failures, figures.connects + figures.connect_failures)
}

/// Whether the share of faults is too high, given those of the old cluster: (faults, all).
fn is_worse(limits: &GuardLimits, old: (u64, u64), (faults, all): (u64, u64)) -> bool {
    let permille = |faults: u64, all: u64| faults.saturating_mul(1000).checked_div(all).unwrap_or(0);
    let share = permille(faults, all);
    if all < limits.min_samples.max(1) {
        return faults >= PLAIN_FAULTS && share > HALF_PERMILLE;
    }
    let usual = if old.1 >= limits.min_samples {
        permille(old.0, old.1)
    } else {
        0
    };
    faults >= MIN_FAULTS && share > usual + limits.max_error_permille
}

fn slower(limits: &GuardLimits, reference: &LatencyReference, new: &QualityFigures) -> Option<String> {
    let pairs = [
        (
            "a connect",
            reference.connect,
            new.mean_connect(limits.latency_samples()),
        ),
        (
            "the start of an answer",
            reference.first_byte,
            new.mean_first_byte(limits.latency_samples()),
        ),
    ];
    pairs.into_iter().find_map(|(what, old, new)| {
        let (old, new) = (old?, new?);
        let most = (old.saturating_mul(limits.max_latency_percent) / 100).max(old + LATENCY_TOLERANCE_MICROS);
        (limits.max_latency_percent > 0 && new > most).then(|| {
            let [new, old] = [new, old].map(|micros| micros as f64 / 1000.0);
            format!("{what} takes {new:.1} ms on average, and {old:.1} ms at the old cluster")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: GuardLimits = GuardLimits {
        max_error_permille: 10,
        max_latency_percent: 300,
        min_samples: 20,
    };

    fn connects(connects: u64, connect_failures: u64) -> QualityFigures {
        QualityFigures {
            connects,
            connect_failures,
            ..QualityFigures::default()
        }
    }

    fn answers(answers: u64, server_errors: u64) -> QualityFigures {
        QualityFigures {
            answers,
            server_errors,
            ..QualityFigures::default()
        }
    }

    fn verdict(old: QualityFigures, new: QualityFigures) -> Option<String> {
        judge(&LIMITS, &LatencyReference::default(), &old, &new).map(|(_, why)| why)
    }

    #[test]
    fn a_rate_is_judged_only_by_enough_samples_and_faults() {
        assert_eq!(verdict(connects(1000, 0), connects(1000, 0)), None);
        assert_eq!(
            verdict(connects(1000, 0), connects(18, 2)),
            None,
            "two faults are no rate"
        );
        assert_eq!(verdict(connects(1000, 0), connects(997, 3)), None, "within the limit");
        let why = verdict(connects(1000, 0), connects(17, 3)).unwrap();
        assert_eq!(why, "3 of 20 connects failed; of the old cluster 0 of 1000");
        assert_eq!(verdict(connects(0, 0), connects(0, 4)), None);
        assert!(
            verdict(connects(0, 0), connects(0, 5)).is_some(),
            "plain faults need no rate"
        );
        assert_eq!(verdict(connects(0, 0), connects(5, 5)), None, "not more than half");
    }

    #[test]
    fn faults_that_the_old_cluster_shares_do_not_fail_the_new_one() {
        assert_eq!(verdict(answers(1000, 50), answers(100, 6)), None);
        let why = verdict(answers(1000, 50), answers(100, 7)).unwrap();
        assert_eq!(
            why,
            "7 of 100 requests were answered with 5xx; of the old cluster 50 of 1000"
        );
        assert!(
            verdict(answers(10, 5), answers(100, 7)).is_some(),
            "too few to compare with"
        );
    }

    #[test]
    fn broken_flows_count() {
        let broken = QualityFigures {
            connects: 30,
            flows_ended: 30,
            flows_broken: 10,
            ..QualityFigures::default()
        };
        let why = verdict(QualityFigures::default(), broken).unwrap();
        assert_eq!(why, "10 of 30 connections were reset or ended without an answer");
    }

    #[test]
    fn latency_is_compared_with_the_old_clusters_last_known() {
        let timed = |n: u64, connect: u64, first_byte: u64| QualityFigures {
            connects: n,
            connect_micros: n * connect,
            first_bytes: n,
            first_byte_micros: n * first_byte,
            ..QualityFigures::default()
        };
        let mut reference = LatencyReference::default();
        reference.update(&timed(5, 1, 1), &LIMITS);
        assert_eq!(reference, LatencyReference::default(), "too few");
        reference.update(&timed(50, 1_000, 20_000), &LIMITS);
        reference.update(&QualityFigures::default(), &LIMITS);
        let with = |new| judge(&LIMITS, &reference, &QualityFigures::default(), &new).map(|(_, why)| why);
        assert_eq!(
            with(timed(50, 11_000, 60_000)),
            None,
            "10 ms are nothing, and three times is allowed"
        );
        assert_eq!(with(timed(19, 900_000, 900_000)), None, "too few");
        let why = with(timed(50, 11_001, 1)).unwrap();
        assert_eq!(why, "a connect takes 11.0 ms on average, and 1.0 ms at the old cluster");
        let why = with(timed(50, 1, 60_001)).unwrap();
        assert_eq!(
            why,
            "the start of an answer takes 60.0 ms on average, and 20.0 ms at the old cluster"
        );
        let few = GuardLimits {
            min_samples: 5,
            ..LIMITS
        };
        let new = timed(19, 900_000, 900_000);
        let found = judge(&few, &reference, &QualityFigures::default(), &new);
        assert_eq!(
            found, None,
            "a mean of few samples says little, whatever the step waits for"
        );
        let any = GuardLimits {
            max_latency_percent: 0,
            ..LIMITS
        };
        let slow = timed(50, 900_000, 900_000);
        assert_eq!(judge(&any, &reference, &QualityFigures::default(), &slow), None);
    }

    #[test]
    fn differences_of_counters_that_began_anew_are_nothing() {
        assert_eq!(connects(1, 0).since(connects(5, 2)), connects(0, 0));
        assert_eq!(connects(5, 2).since(connects(1, 1)), connects(4, 1));
        assert_eq!(connects(5, 2).plus(connects(1, 1)).samples(), 9);
    }
}
