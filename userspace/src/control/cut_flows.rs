//! The flows of tier `cut` for `signalbox flows`, read from the flow table.

use std::net::SocketAddr;

use signalbox_api::flows::FlowView;
use signalbox_common::cut::flow::{CutFlow, FIN_SEEN, HANDED_OFF, IS_REPLICA, LAST_REQUEST, state};
use signalbox_core::model::Tier;

use crate::datapath::cut::registry::Registry;
use crate::datapath::flow::FlowFilter;
use crate::kernel::Cut;
use crate::kernel::address::from_words;
use crate::kernel::cut::table::{duration_between, tick};
use crate::reconcile::flow_gc::idle_for;

/// Returns how many flows match, and the first of them. Reads the whole table, which is mapped memory: no system call
/// per flow.
#[must_use]
pub(super) fn list(cut: &Cut, registry: &Registry, filter: &FlowFilter) -> (usize, Vec<FlowView>) {
    let now = tick();
    let (mut total, mut views) = (0, Vec::new());
    if !filter.is_tier(Tier::Cut) {
        return (total, views);
    }
    for index in 0..cut.table.len() {
        if !matches!(cut.table.state(index), state::CUT | state::CLOSING) {
            continue;
        }
        let flow = cut.table.read(index);
        if flow.marks & IS_REPLICA != 0 {
            // Stray packets have arrived for a flow that belongs to another node.
            continue;
        }
        let party = registry.host_of(flow.host);
        let listener = registry.listener_of(flow.listener);
        let (host, cluster) = party.as_ref().map_or(("", ""), |(host, _)| (&host.name, &host.cluster));
        let listener = listener.as_ref().map_or("", |listener| &listener.name);
        let client = from_words(flow.client);
        if !filter.is_of(host, cluster, listener) || !filter.is_client(client) {
            continue;
        }
        // Names are looked up only if the filter asks for them: there may be many flows.
        if filter.route.is_some() && !filter.is_route(registry.route_of(flow.route).as_deref()) {
            continue;
        }
        total += 1;
        if views.len() < filter.limit {
            views.push(view(
                index,
                &flow,
                now,
                (host, cluster, listener),
                registry.route_of(flow.route),
            ));
        }
    }
    (total, views)
}

fn view(
    index: u32,
    flow: &CutFlow,
    now: u32,
    (host, cluster, listener): (&str, &str, &str),
    route: Option<String>,
) -> FlowView {
    let at = |words, port| SocketAddr::new(from_words(words), port);
    let ways = &flow.dirs;
    FlowView {
        // Ids of cut flows have one extra bit. Other flows have their worker's number in the lower eight bits.
        id: 1 << 40 | u64::from(index),
        client: at(flow.client, (flow.ports_a >> 16) as u16),
        local: at(flow.vip, flow.ports_a as u16),
        backend: at(flow.host_addr, (flow.ports_b >> 16) as u16),
        leg_b_local: Some(at(flow.local, flow.ports_b as u16)),
        listener: listener.to_owned(),
        route,
        cluster: cluster.to_owned(),
        host: host.to_owned(),
        tier: Tier::Cut.as_str().into(),
        tier_reason: match (flow.idle_limit().is_some(), ways[0].flags & LAST_REQUEST != 0) {
            (true, true) => "long answer",
            (true, false) => "cut late",
            (false, true) => "last request",
            (false, false) => "fit for it",
        }
        .into(),
        not_cut: "".into(),
        state: state_name(flow).into(),
        age_seconds: duration_between(flow.started, now).as_secs_f64(),
        idle_seconds: idle_for(flow, now).as_secs_f64(),
        bytes_in: ways[0].bytes,
        bytes_out: ways[1].bytes,
        packets_in: Some(ways[0].packets),
        packets_out: Some(ways[1].packets),
    }
}

fn state_name(flow: &CutFlow) -> &'static str {
    let flags = [flow.dirs[0].flags, flow.dirs[1].flags];
    if flow.state == state::CLOSING {
        "closing"
    } else if flow.ended() {
        // An ended flow keeps its entry a little longer, for packets still in flight.
        "ended"
    } else if (flags[0] | flags[1]) & FIN_SEEN != 0 {
        "half-closed"
    } else if flow.handoff_state < HANDED_OFF {
        "draining"
    } else {
        "established"
    }
}
