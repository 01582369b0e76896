//! The step that is being held: what is observed in it, and when it ends.

use super::guard::{GuardKind, Period, QualityFigures};
use super::probe::ProbeRound;
use super::{Migration, MigrationState, StepRecord};

/// Length of the shortest periods that guards judge, in milliseconds, and the factor from one length to the next. Faults
/// late in a long step must not drown in earlier successes, so a step is judged as a whole and by shorter periods.
const SHORT_PERIOD_MS: u64 = 5000;
const PERIOD_FACTOR: u64 = 4;

/// State of the clusters at a moment.
#[derive(Clone, Debug)]
pub struct Observation {
    /// The time.
    pub now: u64,
    /// Counts of the old cluster for the names, since the start of the process.
    pub old: QualityFigures,
    /// Counts of the new cluster.
    pub new: QualityFigures,
    /// Whether the new cluster has a host that takes connections, at every balancer that has answered.
    pub is_usable: bool,
    /// Whether all other balancers of the set have answered: no step ends before.
    pub is_complete: bool,
    /// Results of the last round of probes, and the number of rounds that have begun.
    pub probes: Option<ProbeRound>,
    /// See `probes`.
    pub rounds_begun: u64,
}

/// Observations of the step that is being held.
#[derive(Clone, Debug, Default)]
pub struct StepWatch {
    /// First observation of the step: counts are compared with it. `None` until the step's weights are active.
    first: Option<Observation>,
    /// Periods that guards judge: the whole step, and shorter ones.
    periods: Vec<Period>,
    /// Whether the migration has set the weights of the step.
    has_set_weights: bool,
}

impl StepWatch {
    /// Whether the step's weights have been seen active.
    #[must_use]
    pub const fn is_in_force(&self) -> bool {
        self.first.is_some()
    }

    /// Notes that the migration has set the weights of the step.
    pub const fn note_set_weights(&mut self) {
        self.has_set_weights = true;
    }

    /// Whether weights other than the step's come from someone else: the step's have been set, or seen active.
    #[must_use]
    pub const fn owns_weights(&self) -> bool {
        self.has_set_weights || self.is_in_force()
    }
}

impl Migration {
    /// Takes an observation made while the step's weights are active. Returns whether the state or the step has
    /// changed: then the migration must be saved, and new weights are due.
    pub fn observe(&mut self, watch: &mut StepWatch, seen: &Observation) -> bool {
        if !matches!(self.state, MigrationState::Running | MigrationState::Paused) {
            return false;
        }
        let Some(first) = watch.first.clone() else {
            self.begin_step(watch, seen);
            return false;
        };
        let began = first.now;
        let (old, new) = (seen.old.since(&first.old), seen.new.since(&first.new));
        let samples = new.samples();
        if self.percent() < 100 {
            self.reference.update(&old);
        }
        if let Some(record) = self.steps.last_mut() {
            (record.old, record.new) = (old, new);
        }
        if let Some((guard, why)) = self.fault(watch, seen) {
            self.failed_guard = Some(guard);
            self.go_back(
                MigrationState::RollingBack,
                &format!("at {} %: {why}", self.percent()),
                seen.now,
            );
            return true;
        }
        let is_over = seen.now >= began.saturating_add(self.plan.hold_ms);
        let is_probed = self.plan.probe.is_none() || is_probed_in_step(&first, seen);
        let has_samples = samples >= self.plan.limits.min_samples;
        if self.state == MigrationState::Running {
            self.reason = match (is_over, has_samples, seen.is_complete) {
                (true, true, true) if !is_probed => "waits for probes".to_owned(),
                (true, false, _) => format!(
                    "waits for traffic: the new cluster has had {} of {} connections or requests",
                    samples, self.plan.limits.min_samples
                ),
                (true, true, false) => "waits for other balancers".to_owned(),
                _ => String::new(),
            };
        }
        if self.state != MigrationState::Running || !is_over || !has_samples || !seen.is_complete || !is_probed {
            return false;
        }
        if let Some(record) = self.steps.last_mut() {
            record.missed = self.reference.missed(&record.old, &record.new);
        }
        self.end_step(seen.now);
        if self.step + 1 < self.plan.steps.len() {
            self.step += 1;
            *watch = StepWatch::default();
        } else {
            self.end(MigrationState::Completed, seen.now);
        }
        true
    }

    fn begin_step(&mut self, watch: &mut StepWatch, seen: &Observation) {
        let figures = [&seen.old, &seen.new];
        let hold = self.plan.hold_ms.max(SHORT_PERIOD_MS);
        let lengths = std::iter::successors(Some(SHORT_PERIOD_MS), |length| Some(length * PERIOD_FACTOR));
        let lengths: Vec<u64> = lengths.take_while(|length| *length < hold).collect();
        // Each length has an equal part of the risk, and so has the whole step.
        let part = 1.0 / (lengths.len() + 1) as f64;
        let all = std::iter::once(None).chain(lengths.into_iter().map(Some));
        watch.periods = all
            .map(|length| Period::new(seen.now, length, hold, part, figures))
            .collect();
        watch.first = Some(seen.clone());
        let percent = self.percent();
        // A step that is held again, after a pause or a restart, counts as one step.
        self.steps
            .retain(|record| record.ended.is_some() || record.percent != percent);
        self.steps.push(StepRecord {
            percent,
            since: seen.now,
            ended: None,
            old: QualityFigures::default(),
            new: QualityFigures::default(),
            missed: Vec::new(),
        });
    }

    fn fault(&self, watch: &mut StepWatch, seen: &Observation) -> Option<(GuardKind, String)> {
        if !seen.is_usable {
            let why = format!("{} has no host that takes connections", self.plan.to);
            return Some((GuardKind::Hosts, why));
        }
        let known = watch.first.as_ref().map_or(0, round_number);
        let newer = seen.probes.as_ref().filter(|round| round.number > known);
        if let Some(fault) = newer.and_then(ProbeRound::fault) {
            return Some((GuardKind::Probes, format!("probe of {fault}")));
        }
        // At 100 %, only what is left of earlier steps ends at the old cluster: its rates say nothing.
        let old = watch.first.as_ref().filter(|_| self.percent() == 100);
        let figures = [&old.unwrap_or(seen).old, &seen.new];
        let mut periods = watch.periods.iter_mut();
        periods.find_map(|period| period.judge(&self.plan.limits, &self.reference, seen.now, figures))
    }
}

/// Number of the last round of probes that has ended.
fn round_number(seen: &Observation) -> u64 {
    seen.probes.as_ref().map_or(0, |round| round.number)
}

/// Whether a whole round of probes has begun and ended in the step.
fn is_probed_in_step(first: &Observation, seen: &Observation) -> bool {
    let last = seen.probes.as_ref();
    last.is_some_and(|round| round.number > first.rounds_begun && round.unasked.is_empty())
}
