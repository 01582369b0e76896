//! Probes before the first step: names may be left out, and a migration may end before any client has moved.

use std::collections::BTreeMap;

use super::guard::GuardKind;
use super::probe::ProbeRound;
use super::{Migration, MigrationState};

impl Migration {
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
}
