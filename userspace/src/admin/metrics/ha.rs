//! Metrics of groups of virtual addresses.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use signalbox_core::availability::ha::notice::GroupState;

use super::{MetricWriter, Scrape};
use crate::state::sync::{PeerState, Rejection, Unprotected};

impl Scrape {
    pub(super) fn ha(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let shared = &self.0.shared;
        let snapshot = shared.snapshot.load();
        let ha = snapshot.model.ha.iter();
        out.gauge(
            "ha_info",
            "Name and mode of the section `ha`: 1",
            ha.map(|ha| (vec![("name", ha.name.as_str()), ("mode", ha.mode.as_str())], 1.0)),
        )?;
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
        )?;
        self.sync(out)
    }

    fn sync(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let sync = &self.0.shared.sync;
        let peers = sync.peers.load();
        let counts = |get: fn(&PeerState) -> u64| {
            let one = |peer: &'_ Arc<PeerState>| get(peer);
            let labelled = peers.iter().map(|peer| (vec![("peer", peer.node.as_str())], one(peer)));
            labelled.collect::<Vec<_>>()
        };
        let gauges = |get| counts(get).into_iter().map(|(labels, n)| (labels, n as f64));
        out.gauge(
            "ha_sync_connected",
            "1 while a node gets this node's flows (out), and while this node gets its (in)",
            peers.iter().flat_map(|peer| {
                [("out", &peer.is_sending), ("in", &peer.is_receiving)].map(|(direction, is_connected)| {
                    let labels = vec![("peer", peer.node.as_str()), ("direction", direction)];
                    (labels, f64::from(u8::from(is_connected.load(Relaxed))))
                })
            }),
        )?;
        out.gauge(
            "ha_shadow_flows",
            "Flows of another node that this one keeps for it",
            gauges(|peer| peer.shadows.load(Relaxed)),
        )?;
        out.gauge(
            "ha_service_flows",
            "Connections of layer-4 services of another node that this one keeps for it",
            gauges(|peer| peer.service_flows.load(Relaxed)),
        )?;
        out.counter(
            "ha_sync_flows",
            "Flows of this node that were reported to another node",
            counts(|peer| peer.flows_sent.get()),
        )?;
        out.counter(
            "ha_sync_bytes",
            "Bytes sent to another node about this node's flows, before encryption",
            counts(|peer| peer.bytes_sent.get()),
        )?;
        out.counter(
            "ha_sync_rejected",
            "Flows of another node that this one does not keep for it",
            peers.iter().flat_map(|peer| {
                let rejected = Rejection::LABELS.iter().zip(&peer.rejected);
                rejected.map(|(reason, count)| (vec![("peer", peer.node.as_str()), ("reason", *reason)], count.get()))
            }),
        )?;
        let lags = peers
            .iter()
            .map(|peer| (vec![("peer", peer.node.as_str())], &peer.lag_seconds));
        out.seconds(
            "ha_sync_lag",
            "Time from the hand-off of a flow to the kernel until another node has it",
            lags,
        )?;
        out.counter(
            "ha_promoted",
            "Flows of other nodes that this one has taken over",
            [(vec![], sync.promoted.get())],
        )?;
        let moving = [
            ("given_up", &sync.addresses_given_up),
            ("chained", &sync.addresses_chained),
        ];
        out.gauge(
            "ha_moving_addresses",
            "Addresses that have moved by plan and whose connections drain: here (given_up), or at their former owner (chained)",
            moving.map(|(role, count)| (vec![("role", role)], count.load(Relaxed) as f64)),
        )?;
        out.gauge(
            "ha_draining_connections",
            "Connections of clients at virtual addresses that have left this node by plan",
            [(vec![], sync.draining_connections.load(Relaxed) as f64)],
        )?;
        let unprotected = Unprotected::LABELS.iter().zip(&sync.unprotected);
        out.counter(
            "ha_unprotected",
            "Connections to virtual addresses that no other node can continue",
            unprotected.map(|(reason, count)| (vec![("reason", *reason)], count.get())),
        )?;
        let ends = sync.refused.get();
        out.counter(
            "ha_sync_errors",
            "Connections of other nodes that were refused, or have ended with an error",
            ends.iter().map(|(reason, count)| (vec![("reason", *reason)], *count)),
        )
    }
}
