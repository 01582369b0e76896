//! Migrations: names move from one cluster to another in steps, each held while guards watch it, and go back if one
//! fails.
//!
//! [`Migration`] is kept over restarts. [`StepWatch`] knows the step that is being held, and starts over after a
//! restart. Times are milliseconds since 1970, and come as arguments.

pub mod guard;
pub mod probe;
pub mod report;

use std::collections::BTreeMap;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::discovered::merge::{ClusterWeights, Testers};
use guard::{GuardKind, GuardLimits, MissedFaults, OldFigures, Period, QualityFigures};
use probe::{ProbeFigures, ProbePlan, ProbeRound};

/// Length of the shortest periods that guards judge, in milliseconds, and the factor from one length to the next. Faults
/// late in a long step must not drown in earlier successes, so a step is judged as a whole and by shorter periods.
const SHORT_PERIOD_MS: u64 = 5000;
const PERIOD_FACTOR: u64 = 4;

/// Longest hold of a step in milliseconds: a week.
const MAX_HOLD_MS: u64 = 7 * 86_400_000;

/// Most steps.
const MAX_STEPS: usize = 100;

/// Most prefixes of testers: each connection of a name that moves looks through them.
const MAX_TESTERS: usize = 16;

/// Order to move names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MigrationPlan {
    /// Cluster that serves the names.
    pub from: String,
    /// Cluster that will serve them.
    pub to: String,
    /// Shares of the new cluster in percent, one after the other.
    pub steps: Vec<u32>,
    /// Time that each step is held, in milliseconds.
    pub hold_ms: u64,
    /// Limits of the guards.
    pub limits: GuardLimits,
    /// Addresses of clients that get the new cluster from the begin, at a step of 0 % in front of the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(with = "Vec<String>"))]
    pub testers: Vec<IpNet>,
    /// True to leave other balancers of the set unchanged.
    #[serde(default)]
    pub only_here: bool,
    /// How each name is asked for at both clusters; `None`: it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbePlan>,
    /// True to leave out names whose first probe fails; otherwise none moves.
    #[serde(default)]
    pub leaves_out: bool,
}

impl MigrationPlan {
    /// Returns the mistakes of a plan as an error.
    pub fn check(&self) -> Result<(), String> {
        let is_rising = self.steps.windows(2).all(|pair| pair[0] < pair[1]);
        if self.from == self.to {
            return Err(format!(
                "{} is both the old and the new cluster: name two clusters",
                self.from
            ));
        }
        if self.steps.is_empty() || self.steps.len() > MAX_STEPS {
            return Err(format!("a migration has 1 to {MAX_STEPS} steps, such as 5,25,50,100"));
        }
        if self.testers.len() > MAX_TESTERS {
            return Err(format!(
                "there are more than {MAX_TESTERS} prefixes of testers: give fewer"
            ));
        }
        // Testers have a separate first step, in which no other client gets the new cluster.
        let others = match self.steps.split_first() {
            Some((0, others)) if !self.testers.is_empty() && !others.is_empty() => others,
            _ => &self.steps,
        };
        if !is_rising || others.iter().any(|step| !(1..=100).contains(step)) {
            return Err(
                "steps are shares of the new cluster from 1 to 100 percent that rise, such as 5,25,50,100".into(),
            );
        }
        if self.hold_ms > MAX_HOLD_MS {
            return Err("a step can be held for a week at most".into());
        }
        self.probe.as_ref().map_or(Ok(()), ProbePlan::check)
    }
}

/// Where a migration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MigrationState {
    /// A step is held.
    Running,
    /// The step stays until an operator resumes or aborts; guards still watch it.
    Paused,
    /// A guard has failed: the earlier weights are being restored.
    RollingBack,
    /// An operator has aborted: the earlier weights are being restored.
    Aborting,
    /// The last step was held.
    Completed,
    /// A guard had failed; the earlier weights are active again.
    RolledBack,
    /// An operator had aborted; the earlier weights are active again.
    Aborted,
}

impl MigrationState {
    /// Returns the state's name in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::RollingBack => "rolling_back",
            Self::Aborting => "aborting",
            Self::Completed => "completed",
            Self::RolledBack => "rolled_back",
            Self::Aborted => "aborted",
        }
    }

    /// Whether nothing more will happen.
    #[must_use]
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::Completed | Self::RolledBack | Self::Aborted)
    }

    /// Whether the earlier weights must be active again.
    #[must_use]
    pub const fn is_going_back(self) -> bool {
        matches!(self, Self::RollingBack | Self::Aborting)
    }
}

/// A step as it went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StepRecord {
    /// Share of the new cluster in percent.
    pub percent: u32,
    /// Last time at which the step's weights became active.
    pub since: u64,
    /// Time at which it was left.
    pub ended: Option<u64>,
    /// Figures of the old cluster in that time.
    pub old: QualityFigures,
    /// Figures of the new cluster in that time.
    pub new: QualityFigures,
    /// Faults that it could have missed, of each kind that it has had events of. Empty unless it was held to its end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missed: Vec<MissedFaults>,
}

/// A migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Migration {
    /// Number, which grows from one to the next.
    pub id: u64,
    /// The order.
    pub plan: MigrationPlan,
    /// Names that move, each with the weights that an operator had set before; `None`: those of the file or the sources.
    pub names: BTreeMap<String, Option<ClusterWeights>>,
    /// Name of the person who ordered it.
    pub by: String,
    /// Where it is.
    pub state: MigrationState,
    /// Reason for the state, in words; may be empty.
    pub reason: String,
    /// Index of the step that is held, or was last.
    pub step: usize,
    /// Time of the order.
    pub started: u64,
    /// Time of the end.
    pub ended: Option<u64>,
    /// Balancers on which the step is not active yet, in words. Determined again after a restart.
    #[serde(default)]
    pub waits_for: Vec<String>,
    /// Time of the decision to go back.
    #[serde(default)]
    pub went_back_at: Option<u64>,
    /// Guard that has failed.
    #[serde(default)]
    pub failed_guard: Option<GuardKind>,
    /// Figures of the old cluster in the last step in which it had enough traffic.
    #[serde(default)]
    pub reference: OldFigures,
    /// Steps that were begun.
    pub steps: Vec<StepRecord>,
    /// Results of the last round of probes.
    #[serde(default, skip_serializing_if = "ProbeFigures::is_empty")]
    pub probes: ProbeFigures,
    /// Names that were left out, because their probes failed, with the answers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left_out: BTreeMap<String, String>,
}

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
    /// Begins a migration: its first step is to be applied.
    #[must_use]
    pub fn new(
        id: u64,
        plan: MigrationPlan,
        names: BTreeMap<String, Option<ClusterWeights>>,
        by: String,
        now: u64,
    ) -> Self {
        Self {
            id,
            plan,
            names,
            by,
            state: MigrationState::Running,
            reason: String::new(),
            step: 0,
            started: now,
            ended: None,
            waits_for: Vec::new(),
            went_back_at: None,
            failed_guard: None,
            reference: OldFigures::default(),
            steps: Vec::new(),
            probes: ProbeFigures::default(),
            left_out: BTreeMap::new(),
        }
    }

    /// Returns the share of the new cluster that the step asks for, in percent.
    #[must_use]
    pub fn percent(&self) -> u32 {
        self.plan.steps.get(self.step).copied().unwrap_or(100)
    }

    /// Returns the weights of each name that the state asks for; `None`: none set by operators.
    #[must_use]
    pub fn weights(&self) -> BTreeMap<String, Option<ClusterWeights>> {
        if self.state.is_going_back() {
            return self.names.clone();
        }
        let percent = self.percent();
        let weights = vec![(self.plan.from.clone(), 100 - percent), (self.plan.to.clone(), percent)];
        self.names
            .keys()
            .map(|name| (name.clone(), Some(weights.clone())))
            .collect()
    }

    /// Returns the testers of each name that the state asks for.
    #[must_use]
    pub fn testers(&self) -> BTreeMap<String, Testers> {
        let is_moving = matches!(self.state, MigrationState::Running | MigrationState::Paused);
        if self.plan.testers.is_empty() || !is_moving || self.awaits_probes() {
            return BTreeMap::new();
        }
        let testers = Testers {
            cluster: self.plan.to.clone(),
            clients: self.plan.testers.clone(),
        };
        self.names.keys().map(|name| (name.clone(), testers.clone())).collect()
    }

    /// Whether it has ended before any client has moved.
    #[must_use]
    pub const fn is_unmoved(&self) -> bool {
        self.state.is_ended() && self.steps.is_empty()
    }

    /// Whether the first round of probes is still to come: no client moves before.
    #[must_use]
    pub fn awaits_probes(&self) -> bool {
        let is_moving = matches!(self.state, MigrationState::Running | MigrationState::Paused);
        is_moving && self.plan.probe.is_some() && self.probes.is_empty()
    }

    /// Takes the results of a round of probes, once. The first one may leave out names, or end the migration: then nothing
    /// has moved. Returns whether the migration must be saved.
    pub fn probed(&mut self, round: &ProbeRound, now: u64) -> bool {
        let is_first = self.awaits_probes();
        // A first step that is begun much later needs newer answers.
        let is_late = is_first && self.state == MigrationState::Paused;
        if self.state.is_ended() || self.state == MigrationState::Aborting || is_late {
            return false;
        }
        if let Some(lack) = round.lack().filter(|_| is_first) {
            self.reason = format!("asks again: {lack}");
            return false;
        }
        self.probes.take(round, self.names.len());
        let Some(fault) = round.fault().filter(|_| is_first && self.steps.is_empty()) else {
            return is_first;
        };
        if !self.plan.leaves_out || !self.leave_out(&round.worse) {
            self.failed_guard = Some(GuardKind::Probes);
            self.end_unmoved(&fault, now);
        }
        true
    }

    /// Leaves out names, with the reasons. Returns whether others are left.
    pub fn leave_out(&mut self, names: &BTreeMap<String, String>) -> bool {
        self.names.retain(|name, _| !names.contains_key(name));
        self.left_out.extend(names.clone());
        !self.names.is_empty()
    }

    /// Takes what has changed while names were asked for: names that cannot be moved any more, with the reasons, and weights
    /// that were set at another balancer.
    pub fn take_changes(&mut self, names: &BTreeMap<String, String>, at_peer: Option<&str>, now: u64) {
        if let Some(at) = at_peer {
            return self.end_unmoved(&format!("the weights of {at} were changed in the meantime"), now);
        }
        let Some(first) = names.values().next().cloned() else {
            return;
        };
        if !self.plan.leaves_out || !self.leave_out(names) {
            self.end_unmoved(&first, now);
        }
    }

    /// Ends a migration whose first step has not begun.
    fn end_unmoved(&mut self, why: &str, now: u64) {
        self.reason = format!("before the first step: {why}");
        self.end(MigrationState::RolledBack, now);
    }

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

    fn end_step(&mut self, now: u64) {
        if let Some(record) = self.steps.last_mut() {
            record.ended.get_or_insert(now);
        }
    }

    fn end(&mut self, state: MigrationState, now: u64) {
        self.state = state;
        self.ended = Some(now);
    }

    fn go_back(&mut self, state: MigrationState, why: &str, now: u64) {
        self.end_step(now);
        self.state = state;
        self.went_back_at = Some(now);
        why.clone_into(&mut self.reason);
    }

    /// Notes that the earlier weights are active again. Returns whether that ends the migration.
    pub fn went_back(&mut self, now: u64) -> bool {
        match self.state {
            MigrationState::RollingBack => self.end(MigrationState::RolledBack, now),
            MigrationState::Aborting => self.end(MigrationState::Aborted, now),
            _ => return false,
        }
        true
    }

    /// Pauses at the step: it stays until it is resumed. Refuses where there is nothing to pause.
    pub fn pause(&mut self, why: &str) -> Result<(), String> {
        self.require(&[MigrationState::Running], "paused")?;
        self.state = MigrationState::Paused;
        why.clone_into(&mut self.reason);
        Ok(())
    }

    /// Resumes: the step is held again from its beginning.
    pub fn resume(&mut self, watch: &mut StepWatch) -> Result<(), String> {
        self.require(&[MigrationState::Paused], "resumed")?;
        self.state = MigrationState::Running;
        self.reason.clear();
        *watch = StepWatch::default();
        Ok(())
    }

    /// Aborts: the earlier weights are to be restored.
    pub fn abort(&mut self, why: &str, now: u64) -> Result<(), String> {
        self.require(&[MigrationState::Running, MigrationState::Paused], "aborted")?;
        if self.awaits_probes() {
            // Nothing has moved, here or at other balancers.
            why.clone_into(&mut self.reason);
            self.end(MigrationState::Aborted, now);
        } else {
            self.go_back(MigrationState::Aborting, why, now);
        }
        Ok(())
    }

    fn require(&self, states: &[MigrationState], what: &str) -> Result<(), String> {
        if states.contains(&self.state) {
            return Ok(());
        }
        let (id, state) = (self.id, self.state.as_str());
        Err(format!("migration {id} is {state}: it cannot be {what}"))
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

#[cfg(test)]
mod tests;
