//! Sweeps over the flows: removes ended flows, closes flows, and counts.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use signalbox_common::l4::abi::state;
use signalbox_common::l4::decide::reverse_key;
use signalbox_common::l4::{L4Flow, mode};
use signalbox_common::net::Key;
use signalbox_common::shield::{ConnCountKey, source};
use signalbox_core::availability::sync::ServiceRecord;

use super::client_hops;
use super::guard_view::LimitedGuards;
use super::ownership::{FlowOwner, Ownership, is_reply};
use crate::kernel::address::from_words;
use crate::kernel::cut::reset;
use crate::kernel::cut::table::{duration_between, tick};
use crate::kernel::l4::L4Kernel as Kernel;

const IPPROTO_TCP: u32 = 6;
/// Time for which a connection is kept after both sides have ended it, or one has reset it.
const ENDED_TTL: Duration = Duration::from_secs(10);
/// Time without packets after which a reset counts as accepted.
const RESET_TIMEOUT: Duration = Duration::from_secs(1);

/// Service and host, by their numbers.
pub(super) type ServiceHostPair = (u16, u32);

/// Counts of flows, and of flows that were closed.
#[derive(Debug, Default)]
pub(super) struct FlowCounts {
    /// Flows that both sides have confirmed.
    pub(super) established: HashMap<ServiceHostPair, u32>,
    /// All flows, half-open and established.
    pub(super) pairs: HashMap<ServiceHostPair, u32>,
    pub(super) closed: usize,
    /// Established flows by source, if a guard limits them.
    pub(super) conn_counts: HashMap<ConnCountKey, u32>,
    /// Time when counting began, Unix time in milliseconds; 0: never.
    pub(super) started_ms: u64,
    /// Start of the previous count.
    pub(super) previous_ms: u64,
    /// True if DSR flows have used all the room that they may have.
    pub(super) is_dsr_full: bool,
    /// Hosts with flows in this count or the previous one, including flows that other nodes carry.
    pub(super) busy: HashSet<u32>,
    /// Hosts with flows that other nodes carry.
    pub(super) busy_elsewhere: HashSet<u32>,
    /// Connections that can move to other nodes, if these are to know them.
    pub(super) moving: Vec<ServiceRecord>,
    /// Flows' directions from the host whose client's Ethernet address is unknown.
    pub(super) without_client: Vec<(Key, L4Flow)>,
}

impl FlowCounts {
    /// Adds the results of the previous count.
    pub(super) fn with_previous(mut self, before: &Self) -> Self {
        self.previous_ms = before.started_ms;
        let hosts = self.pairs.keys().chain(before.pairs.keys()).map(|(_, host)| *host);
        self.busy = hosts.chain(self.busy_elsewhere.iter().copied()).collect();
        self
    }
}

/// Converts a time to ticks of the programs' clock.
pub(super) fn ticks(time: Duration) -> u32 {
    u32::try_from(time.as_nanos() >> 20)
        .unwrap_or(u32::MAX / 4)
        .min(u32::MAX / 4)
}

/// Removes ended flows, and closes those for which `is_doomed` is true. `stops` ends the sweep early. Flows that
/// another node carries are not changed.
pub(super) fn sweep(
    kernel: &Kernel,
    limited: &LimitedGuards,
    ownership: &Ownership,
    is_doomed: impl Fn(&ServiceHostPair) -> bool,
    stops: &dyn Fn() -> bool,
) -> io::Result<FlowCounts> {
    let now = tick();
    let mut counts = FlowCounts {
        started_ms: crate::sys::unix_ms(),
        ..FlowCounts::default()
    };
    let (mut suspects, mut doomed) = (Vec::new(), Vec::new());
    let mut ended_replies: HashMap<Key, u16> = HashMap::new();
    let (mut one_way, before) = (0, kernel.dsr_flows()?.flows);
    Kernel::for_each_flow(&kernel.established, |key, flow| {
        let pair = (flow.service, flow.host);
        let owner = ownership.owner(key, flow);
        if owner != FlowOwner::Fixed && is_reply(flow) {
            if flow.ifindex == 0 && counts.without_client.len() < client_hops::MAX_LOOKUPS {
                counts.without_client.push((*key, *flow));
            }
            if flow.state & (state::FIN | state::RST) != 0 {
                ended_replies.insert(*key, flow.state);
            }
        }
        if owner == FlowOwner::Other {
            counts.busy_elsewhere.insert(flow.host);
            return;
        }
        if !is_reply(flow) {
            if is_doomed(&pair) {
                doomed.push((*key, *flow));
                return;
            }
            if owner != FlowOwner::Fixed {
                counts.moving.push(ServiceRecord::of(key, flow, None, now));
            }
            *counts.established.entry(pair).or_default() += 1;
            one_way += u64::from(flow.mode != mode::NAT);
            let is_open = !is_conn_closed(flow, now);
            if let Some((guard, rules)) = limited.services.get(&flow.service).filter(|_| is_open) {
                let source = source::mask_source(&key.source, rules);
                *counts
                    .conn_counts
                    .entry(ConnCountKey { source, guard: *guard })
                    .or_default() += 1;
            }
            *counts.pairs.entry(pair).or_default() += 1;
        }
        let idle = duration_between(flow.last_seen, now).min(owner.max_idle());
        let ended = flow.state & (state::FIN | state::RST) != 0 && idle >= ENDED_TTL;
        if ended || ticks(idle) >= flow.idle_ticks {
            suspects.push((*key, *flow, owner.max_idle()));
        }
    })?;
    for record in &mut counts.moving {
        let reply = ended_replies.get(&record.reply_key());
        record.states[1] = reply.map_or(0, |state| state & (state::FIN | state::RST));
    }
    // Flows that begin during the count may be counted twice, but never missed: the count serves a limit.
    let now_there = kernel.dsr_flows()?;
    let come = now_there.flows.saturating_sub(before);
    kernel.set_dsr_flows(one_way + come)?;
    counts.is_dsr_full = one_way + come >= now_there.max_flows;
    // Half-open flows are included: closing a host's flows means all of them.
    Kernel::for_each_flow(&kernel.half_open, |key, flow| {
        let pair = (flow.service, flow.host);
        if is_reply(flow) || ticks(duration_between(flow.last_seen, now)) >= flow.idle_ticks {
            return;
        }
        if is_doomed(&pair) {
            doomed.push((*key, *flow));
        } else {
            *counts.pairs.entry(pair).or_default() += 1;
        }
    })?;
    for (key, flow, max_idle) in suspects {
        if stops() {
            return Ok(counts);
        }
        let other = (flow.mode == mode::NAT).then(|| reverse_key(&flow, key.protocol));
        let partner = match &other {
            Some(other) => kernel.established.get::<Key, L4Flow>(other)?,
            None => None,
        };
        // Since it was read, the entry may have been reused for a new flow.
        let is_the_same = |now: Option<L4Flow>| now.is_some_and(|now| now.last_seen == flow.last_seen);
        if has_ended(&flow, partner.as_ref(), now, max_idle)
            && is_the_same(kernel.established.get::<Key, L4Flow>(&key)?)
        {
            kernel.end_flow(&key)?;
            if let Some(other) = &other {
                kernel.end_flow(other)?;
            }
        }
    }
    for (key, flow) in doomed {
        if stops() {
            return Ok(counts);
        }
        close(kernel, &key, &flow)?;
        counts.closed += 1;
    }
    Ok(counts)
}

/// Returns whether a connection no longer counts against its source. A source that sends a reset but continues has not
/// ended the connection.
fn is_conn_closed(flow: &L4Flow, now: u32) -> bool {
    let ends = if flow.mode == mode::NAT {
        state::RST
    } else {
        state::RST | state::FIN
    };
    flow.state & state::CONN_CLOSED != 0
        || (flow.state & ends != 0 && duration_between(flow.last_seen, now) >= RESET_TIMEOUT)
}

/// Returns whether a flow has ended, judged by both its directions.
fn has_ended(flow: &L4Flow, partner: Option<&L4Flow>, now: u32, max_idle: Duration) -> bool {
    let quiet = |flow: &L4Flow| duration_between(flow.last_seen, now).min(max_idle);
    let idle = partner.map_or_else(|| quiet(flow), |partner| quiet(flow).min(quiet(partner)));
    if ticks(idle) >= flow.idle_ticks {
        return true;
    }
    if idle < ENDED_TTL {
        return false;
    }
    let either = |bit: u16| flow.state & bit != 0 || partner.is_some_and(|partner| partner.state & bit != 0);
    let both = |bit: u16| flow.state & bit != 0 && partner.is_none_or(|partner| partner.state & bit != 0);
    either(state::RST) || both(state::FIN)
}

/// Ends a flow: removes its entries, and sends a reset to both ends if possible.
fn close(kernel: &Kernel, key: &Key, flow: &L4Flow) -> io::Result<()> {
    let other = (flow.mode == mode::NAT).then(|| reverse_key(flow, key.protocol));
    let reply = match &other {
        Some(other) => match kernel.established.get::<Key, L4Flow>(other)? {
            Some(reply) => Some(reply),
            None => kernel.half_open.get::<Key, L4Flow>(other)?,
        },
        None => None,
    };
    kernel.remove_flow(key)?;
    if let Some(other) = &other {
        kernel.remove_flow(other)?;
    }
    if key.protocol != IPPROTO_TCP {
        return Ok(());
    }
    let at = |address, port: u32| SocketAddr::new(from_words(address), port as u16);
    let (client, vip) = (at(key.source, key.ports >> 16), at(key.destination, key.ports));
    let (ours, host) = (at(flow.source, flow.ports >> 16), at(flow.destination, flow.ports));
    // A missing peer needs no reset.
    let _ = reset::reset_one(vip, client, flow.ack, reply.map_or(0, |reply| reply.ack));
    if let Some(reply) = reply {
        let _ = reset::reset_one(ours, host, reply.ack, flow.ack);
    }
    Ok(())
}
