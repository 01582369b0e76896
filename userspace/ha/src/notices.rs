//! Notices of keepalived: turned into states of groups, and calls of the operator's program.

use std::collections::BTreeMap;
use std::sync::Arc;

use signalbox_core::availability::ha::notice::{GroupState, Notice};
use signalbox_core::availability::ha::priority::own_priorities;
use tokio::sync::{mpsc, watch};

use crate::Settings;
use crate::announce::{Call, GroupReport};

/// Hub of changes: remembers states, and passes changes on.
pub(crate) struct Notices {
    settings: watch::Receiver<Arc<Settings>>,
    states: BTreeMap<String, (GroupState, u8)>,
    reports: mpsc::UnboundedSender<GroupReport>,
    calls: mpsc::UnboundedSender<Call>,
}

impl Notices {
    pub(crate) fn new(
        settings: watch::Receiver<Arc<Settings>>,
        reports: mpsc::UnboundedSender<GroupReport>,
        calls: mpsc::UnboundedSender<Call>,
    ) -> Self {
        Self {
            settings,
            states: BTreeMap::new(),
            reports,
            calls,
        }
    }

    /// Takes a line of keepalived.
    pub(crate) fn take(&mut self, line: &str) {
        let Some(notice) = Notice::parse(line) else {
            tracing::warn!(line, "keepalived has reported something that is no notice.");
            return;
        };
        let Some(state) = notice.group_state() else { return };
        // keepalived gives groups of instances the priority 0.
        let priority = match notice.priority {
            0 => self.priority_of(notice.name),
            priority => priority,
        };
        tracing::info!(
            kind = notice.kind,
            name = notice.name,
            state = notice.state,
            priority,
            "keepalived reports a state."
        );
        self.call(notice.kind, notice.name, notice.state, priority);
        self.note(notice.name, state, priority);
    }

    /// Takes note of a group's state, without keepalived.
    pub(crate) fn set(&mut self, group: &str, state: GroupState) {
        let before = self.states.get(group).copied();
        let priority = before.map_or_else(|| self.priority_of(group), |(_, priority)| priority);
        if before.map(|(before, _)| before) == Some(state) {
            return;
        }
        let word = state.as_str().to_ascii_uppercase();
        self.call("INSTANCE", group, &word, priority);
        self.note(group, state, priority);
    }

    /// Names of the groups that the node has.
    pub(crate) fn masters(&self) -> Vec<String> {
        let masters = self
            .states
            .iter()
            .filter(|(_, (state, _))| *state == GroupState::Master);
        masters.map(|(group, _)| group.clone()).collect()
    }

    /// Notes that the node has no group any more.
    pub(crate) fn lose_all(&mut self) {
        let groups: Vec<String> = self.states.keys().cloned().collect();
        for group in groups {
            self.set(&group, GroupState::Fault);
        }
    }

    /// Priority of this node in a group.
    fn priority_of(&self, group: &str) -> u8 {
        let settings = self.settings.borrow();
        let at = settings.ha.groups.iter().position(|one| one.name == group);
        let priorities = own_priorities(&settings.ha, &settings.node);
        at.and_then(|at| priorities.get(at).copied()).unwrap_or_default()
    }

    fn note(&mut self, name: &str, state: GroupState, priority: u8) {
        // Halves of a group are reported with the group that they change with.
        let is_group = self.settings.borrow().ha.groups.iter().any(|group| group.name == name);
        if !is_group {
            return;
        }
        self.states.insert(name.to_owned(), (state, priority));
        let report = GroupReport {
            group: name.to_owned(),
            state,
            priority,
        };
        // The receivers live as long as the supervisor.
        let _ = self.reports.send(report);
    }

    fn call(&self, kind: &str, name: &str, state: &str, priority: u8) {
        let call = Call {
            kind: kind.to_owned(),
            name: name.to_owned(),
            state: state.to_owned(),
            priority,
        };
        let _ = self.calls.send(call);
    }
}
