//! Metrics of groups of virtual addresses.

use std::fmt;

use signalbox_core::ha::notice::GroupState;

use super::{MetricWriter, Scrape};

impl Scrape {
    pub(super) fn ha(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let shared = &self.0.shared;
        let snapshot = shared.snapshot.load();
        let groups = snapshot.model.ha.iter().flat_map(|ha| &ha.groups);
        let states = groups.flat_map(|group| {
            let report = shared.ha.group(&group.name);
            GroupState::ALL.map(|state| {
                let is_in = report.is_some_and(|report| report.state == state);
                let labels = vec![("group", group.name.as_str()), ("state", state.as_str())];
                (labels, f64::from(u8::from(is_in)))
            })
        });
        out.gauge(
            "ha_group_state",
            "1 for the state of a group of virtual addresses on this node",
            states,
        )?;
        let transitions = shared.ha.transitions();
        let transitions = transitions.iter().map(|(group, state, count)| {
            let labels = vec![("group", group.as_str()), ("state", *state)];
            (labels, *count)
        });
        out.counter(
            "ha_transitions",
            "Changes of a group's state on this node, by the new state",
            transitions,
        )
    }
}
