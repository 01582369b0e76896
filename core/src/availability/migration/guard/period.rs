//! Periods that guards judge.

use serde::{Deserialize, Serialize};

use super::looks::{Looks, part_of};
use super::rate::{Rate, is_worse, possible_excess};
use super::times::Times;
use super::{GuardKind, GuardLimits, QualityFigures};

/// Risk that a step of an equally good cluster is rolled back because of one guard, by chance.
const RISK: f64 = 0.005;

/// Least number of faults of a verdict.
const MIN_FAULTS: u64 = 3;

/// Least number of samples of the old cluster that a rate is compared with.
const MIN_OLD_SAMPLES: u64 = 20;
/// Number of samples in a step that replaces more samples in an earlier one.
const MANY_SAMPLES: u64 = 200;

/// Least number of times of the old and of the new cluster that are compared.
const MIN_OLD_TIMES: u64 = 100;
const MIN_NEW_TIMES: u64 = 40;

/// Difference to the old cluster's percentile that is no fault, in microseconds.
const LATENCY_TOLERANCE_MICROS: u64 = 10_000;

/// Guards that judge a share of faults, and the words for their faults.
const RATES: [(GuardKind, &str); 3] = [
    (GuardKind::Connects, "connects failed"),
    (
        GuardKind::Connections,
        "connections were reset or ended without an answer",
    ),
    (GuardKind::ServerErrors, "requests were answered with 5xx"),
];

/// Percentiles of the old cluster's times that are compared. Of the new one's times, a share may be above the limit: as
/// many more as the first number, and as many as the second in any case.
const PERCENTILES: [(u64, f64, f64); 2] = [(95, 0.05, 0.05), (50, 0.25, 0.5)];

/// Kinds of times, in words before and after a limit.
const TIMED: [(&str, &str); 2] = [("connects took", ""), ("requests waited", " for their answer")];

/// Figures of the old cluster in the last step in which it had enough traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct OldFigures {
    /// Failed connects, broken connections and answers with 5xx, each of all of its kind.
    pub rates: [Rate; RATES.len()],
    /// Times of connects, and to the begin of answers.
    pub times: [Times; TIMED.len()],
}

impl OldFigures {
    /// Takes the figures of which a step has enough.
    pub fn update(&mut self, old: &QualityFigures) {
        for (kept, (guard, _)) in self.rates.iter_mut().zip(RATES) {
            let rate = old.rate(guard);
            if rate.all >= kept.all.clamp(MIN_OLD_SAMPLES, MANY_SAMPLES) {
                *kept = rate;
            }
        }
        for (kept, times) in self.times.iter_mut().zip(timed(old)) {
            if times.count() >= MIN_OLD_TIMES {
                kept.clone_from(times);
            }
        }
    }

    /// Rates that a guard compares with: that of the period, and that of the step so far. A few events of a period say
    /// little, and faults that both clusters have now are not in the step's rate.
    fn rates(&self, at: usize, now: Rate) -> impl Iterator<Item = Rate> {
        let step = (self.rates[at].all > 0).then_some(self.rates[at]);
        let least = if step.is_some() { MIN_OLD_SAMPLES } else { 1 };
        let now = (now.all >= least).then_some(now);
        now.into_iter().chain(step)
    }

    /// Returns how many more faults of each kind a step with these figures could have missed.
    #[must_use]
    pub fn missed(&self, old: &QualityFigures, new: &QualityFigures) -> Vec<MissedFaults> {
        let kinds = RATES.into_iter().enumerate();
        let known = kinds.filter(|(_, (guard, _))| new.rate(*guard).all > 0);
        let missed = known.map(|(at, (guard, _))| {
            let excess = possible_excess(self.rates(at, old.rate(guard)).next(), new.rate(guard));
            MissedFaults {
                guard,
                permille: (excess * 1000.0).ceil() as u64,
            }
        });
        missed.collect()
    }

    /// Times that a guard compares with, if they are enough.
    fn times<'t>(&'t self, at: usize, now: &'t Times) -> Option<&'t Times> {
        [now, &self.times[at]]
            .into_iter()
            .find(|times| times.count() >= MIN_OLD_TIMES)
    }
}

/// Faults that a step could have missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MissedFaults {
    /// Guard that judges these faults.
    pub guard: GuardKind,
    /// Thousandths by which the new cluster's share may be above the old one's. With a probability of 5 %, it is even
    /// higher.
    pub permille: u64,
}

const fn timed(figures: &QualityFigures) -> [&Times; TIMED.len()] {
    [&figures.connect_times, &figures.first_byte_times]
}

/// A period: the counts since its begin, and the looks at them.
#[derive(Clone, Debug)]
pub(in crate::availability::migration) struct Period {
    began: u64,
    /// Length after which it begins again; `None`: it lasts as long as the step.
    length: Option<u64>,
    /// Number of periods of this length in the time that the step is to be held.
    in_step: u64,
    /// Number of periods before this one.
    passed: u64,
    /// Part of the risk of its step that all periods of this length have together.
    part: f64,
    /// Counts of the old and the new cluster at its begin.
    before: [QualityFigures; 2],
    rates: [Looks; RATES.len()],
    times: [[Looks; PERCENTILES.len()]; TIMED.len()],
}

impl Period {
    /// Begins the first period of a length, in a step that is to be held for a time. `part`: part of the step's risk that
    /// all periods of this length have together.
    pub(in crate::availability::migration) fn new(
        began: u64,
        length: Option<u64>,
        hold: u64,
        part: f64,
        figures: [&QualityFigures; 2],
    ) -> Self {
        Self {
            began,
            length,
            in_step: length.map_or(1, |length| hold.div_ceil(length)),
            passed: 0,
            part,
            before: figures.map(Clone::clone),
            rates: Default::default(),
            times: Default::default(),
        }
    }

    /// Judges the period at a time with these counts: the reason why the new cluster is not good enough, or `None`.
    pub(in crate::availability::migration) fn judge(
        &mut self,
        limits: &GuardLimits,
        reference: &OldFigures,
        now: u64,
        figures: [&QualityFigures; 2],
    ) -> Option<(GuardKind, String)> {
        let [old, new] = [0, 1].map(|at| figures[at].since(&self.before[at]));
        let found = self.rates(limits, reference, &old, &new);
        let found = found.or_else(|| Some((GuardKind::Latency, self.slower(limits, reference, &old, &new)?)));
        // The clock may be set back.
        if self
            .length
            .is_some_and(|length| now >= self.began + length || now < self.began)
        {
            *self = Self {
                began: now,
                before: figures.map(Clone::clone),
                passed: self.passed + 1,
                rates: Default::default(),
                times: Default::default(),
                ..*self
            };
        }
        found
    }

    /// Risk of the period. A step that is held longer, because it is paused or waits, has more periods: they get less and
    /// less, so that all together stay below the risk.
    fn risk(&self) -> f64 {
        let holds = 1.0 + (self.passed / self.in_step) as f64;
        RISK * self.part / self.in_step as f64 * part_of(holds)
    }

    fn rates(
        &mut self,
        limits: &GuardLimits,
        reference: &OldFigures,
        old: &QualityFigures,
        new: &QualityFigures,
    ) -> Option<(GuardKind, String)> {
        let margin = limits.max_error_permille as f64 / 1000.0;
        let risk = self.risk();
        RATES.into_iter().enumerate().find_map(|(at, (guard, what))| {
            let new = new.rate(guard);
            let risk = risk * self.rates[at].look(new.all, 0)?;
            if new.faults < MIN_FAULTS {
                return None;
            }
            let mut usual = reference.rates(at, old.rate(guard)).peekable();
            let first = usual.peek().copied();
            let is_fault = match first {
                Some(_) => usual.all(|old| is_worse(Some(old), new, margin, risk)),
                None => is_worse(None, new, margin, risk),
            };
            is_fault.then(|| {
                let old = first.map_or_else(String::new, |old| {
                    format!("; of the old cluster {} of {}", old.faults, old.all)
                });
                (guard, format!("{} of {} {what}{old}", new.faults, new.all))
            })
        })
    }

    fn slower(
        &mut self,
        limits: &GuardLimits,
        reference: &OldFigures,
        old: &QualityFigures,
        new: &QualityFigures,
    ) -> Option<String> {
        if limits.max_latency_percent == 0 {
            return None;
        }
        let (old, new) = (timed(old), timed(new));
        let risk = self.risk() / (TIMED.len() * PERCENTILES.len()) as f64;
        for (at, (what, whose)) in TIMED.into_iter().enumerate() {
            let Some(old) = reference.times(at, old[at]) else {
                continue;
            };
            for ((percent, margin, least), looks) in PERCENTILES.into_iter().zip(&mut self.times[at]) {
                let Some(part) = looks.look(new[at].count(), MIN_NEW_TIMES) else {
                    continue;
                };
                let usual = old.percentile(percent)?;
                let multiple = usual.saturating_mul(limits.max_latency_percent) / 100;
                let limit = multiple.max(usual + LATENCY_TOLERANCE_MICROS);
                let late = |times: &Times| Rate::new(times.at_least(limit), times.count());
                let (old, new) = (late(old), late(new[at]));
                let margin = margin.max(least - old.share());
                if new.faults >= MIN_FAULTS && is_worse(Some(old), new, margin, risk * part) {
                    let limit = limit as f64 / 1000.0;
                    return Some(format!(
                        "{} of {} {what} more than {limit:.1} ms{whose}; of the old cluster {} of {}",
                        new.faults, new.all, old.faults, old.all
                    ));
                }
            }
        }
        None
    }
}
