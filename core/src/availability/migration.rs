//! Migrations: names move from one cluster to another in steps, each held while guards watch it, and go back if one
//! fails.
//!
//! [`Migration`] is kept over restarts. [`StepWatch`] knows the step that is being held, and starts over after a
//! restart. Times are milliseconds since 1970, and come as arguments.

mod first_probes;
pub mod guard;
mod plan;
pub mod probe;
pub mod report;
mod state;
mod step;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::discovered::merge::{ClusterWeights, Testers};
use guard::{GuardKind, MissedFaults, OldFigures, QualityFigures};
pub use plan::MigrationPlan;
use probe::ProbeFigures;
pub use state::MigrationState;
pub use step::{Observation, StepWatch};

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

#[cfg(test)]
mod tests;
