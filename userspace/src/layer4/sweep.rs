//! Sweeps over the flows: removes ended flows, closes flows, and counts.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use signalbox_common::l4::abi::state;
use signalbox_common::l4::decide::other_way;
use signalbox_common::l4::{Flow, Key, mode};
use signalbox_common::shield::{CrowdKey, source};

use super::guarded::Limited;
use super::{FlowView, protocol};
use crate::datapath::cut::from_words;
use crate::kernel::cut::reset;
use crate::kernel::cut::table::{between, tick};
use crate::kernel::l4::Layer4 as Kernel;

const TCP: u32 = 6;
/// Time that a connection is kept after both sides have ended it, or one has reset it.
const ENDED_TTL: Duration = Duration::from_secs(10);
/// Time without packets after which a reset counts as accepted.
const RESET_TIMEOUT: Duration = Duration::from_secs(1);

/// Service and host, by their numbers.
pub(super) type Pair = (u16, u32);

/// Counts of flows, and of flows that were closed.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Flows that both sides have confirmed.
    pub(super) established: HashMap<Pair, u32>,
    /// All flows, opening and established.
    pub(super) pairs: HashMap<Pair, u32>,
    pub(super) closed: usize,
    /// Established flows by source, where a guard limits these.
    pub(super) crowd: HashMap<CrowdKey, u32>,
    /// Time when counting began, Unix time in milliseconds; 0: never.
    pub(super) began_ms: u64,
    /// Beginning of the count before.
    pub(super) before_ms: u64,
    /// True if flows of direct return have taken all the room that they may have.
    pub(super) one_way_full: bool,
    /// Hosts with flows in this count or the one before.
    pub(super) busy: HashSet<u32>,
}

impl Counts {
    /// Adds the results of the count before.
    pub(super) fn after(mut self, before: &Self) -> Self {
        self.before_ms = before.began_ms;
        let hosts = self.pairs.keys().chain(before.pairs.keys()).map(|(_, host)| *host);
        self.busy = hosts.collect();
        self
    }
}

/// Converts a time to ticks of the programs' clock.
pub(super) fn ticks(time: Duration) -> u32 {
    u32::try_from(time.as_nanos() >> 20)
        .unwrap_or(u32::MAX / 4)
        .min(u32::MAX / 4)
}

/// Returns whether an entry is for the direction from the host.
pub(super) fn is_reply(flow: &Flow) -> bool {
    flow.state & state::REPLY != 0
}

/// Removes ended flows, and closes those of which `is_doomed` is true; `stops` ends the sweep half-way.
pub(super) fn sweep(
    kernel: &Kernel,
    limited: &Limited,
    is_doomed: impl Fn(&Pair) -> bool,
    stops: &dyn Fn() -> bool,
) -> io::Result<Counts> {
    let now = tick();
    let mut counts = Counts {
        began_ms: crate::state::unix_ms(),
        ..Counts::default()
    };
    let (mut suspects, mut doomed) = (Vec::new(), Vec::new());
    let (mut one_way, before) = (0, kernel.one_way()?.flows);
    Kernel::each_flow(&kernel.established, |key, flow| {
        let pair = (flow.service, flow.host);
        if !is_reply(flow) {
            if is_doomed(&pair) {
                doomed.push((*key, *flow));
                return;
            }
            *counts.established.entry(pair).or_default() += 1;
            one_way += u64::from(flow.mode != mode::NAT);
            let is_open = !has_parted(flow, now);
            if let Some((guard, rules)) = limited.services.get(&flow.service).filter(|_| is_open) {
                let source = source::masked(&key.source, rules);
                *counts.crowd.entry(CrowdKey { source, guard: *guard }).or_default() += 1;
            }
            *counts.pairs.entry(pair).or_default() += 1;
        }
        let idle = between(flow.seen, now);
        let ended = flow.state & (state::FIN | state::RST) != 0 && idle >= ENDED_TTL;
        if ended || ticks(idle) >= flow.idle {
            suspects.push((*key, *flow));
        }
    })?;
    // Flows that began meanwhile may be counted twice, rather than not at all: the count serves a limit.
    let now_there = kernel.one_way()?;
    let come = now_there.flows.saturating_sub(before);
    kernel.set_one_way(one_way + come)?;
    counts.one_way_full = one_way + come >= now_there.most;
    // Opening flows are included: closing a host's flows means all of them.
    Kernel::each_flow(&kernel.opening, |key, flow| {
        let pair = (flow.service, flow.host);
        if is_reply(flow) || ticks(between(flow.seen, now)) >= flow.idle {
            return;
        }
        if is_doomed(&pair) {
            doomed.push((*key, *flow));
        } else {
            *counts.pairs.entry(pair).or_default() += 1;
        }
    })?;
    for (key, flow) in suspects {
        if stops() {
            return Ok(counts);
        }
        let other = (flow.mode == mode::NAT).then(|| other_way(&flow, key.protocol));
        let partner = match &other {
            Some(other) => kernel.established.get::<Key, Flow>(other)?,
            None => None,
        };
        // The entry may belong to a new flow since it was read.
        let is_the_same = |now: Option<Flow>| now.is_some_and(|now| now.seen == flow.seen);
        if is_over(&flow, partner.as_ref(), now) && is_the_same(kernel.established.get::<Key, Flow>(&key)?) {
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

/// Returns whether a connection no longer counts against its source. A source that sends a reset and goes on has ended
/// nothing.
fn has_parted(flow: &Flow, now: u32) -> bool {
    let ends = if flow.mode == mode::NAT {
        state::RST
    } else {
        state::RST | state::FIN
    };
    flow.state & state::PARTED != 0 || (flow.state & ends != 0 && between(flow.seen, now) >= RESET_TIMEOUT)
}

/// Returns whether a flow has ended, judged by both its directions.
fn is_over(flow: &Flow, partner: Option<&Flow>, now: u32) -> bool {
    let quiet = |flow: &Flow| between(flow.seen, now);
    let idle = partner.map_or_else(|| quiet(flow), |partner| quiet(flow).min(quiet(partner)));
    if ticks(idle) >= flow.idle {
        return true;
    }
    if idle < ENDED_TTL {
        return false;
    }
    let either = |bit: u16| flow.state & bit != 0 || partner.is_some_and(|partner| partner.state & bit != 0);
    let both = |bit: u16| flow.state & bit != 0 && partner.is_none_or(|partner| partner.state & bit != 0);
    either(state::RST) || both(state::FIN)
}

/// Ends a flow: removes its entries, and sends a reset to both ends, where possible.
fn close(kernel: &Kernel, key: &Key, flow: &Flow) -> io::Result<()> {
    let other = (flow.mode == mode::NAT).then(|| other_way(flow, key.protocol));
    let reply = match &other {
        Some(other) => match kernel.established.get::<Key, Flow>(other)? {
            Some(reply) => Some(reply),
            None => kernel.opening.get::<Key, Flow>(other)?,
        },
        None => None,
    };
    kernel.remove_flow(key)?;
    if let Some(other) = &other {
        kernel.remove_flow(other)?;
    }
    if key.protocol != TCP {
        return Ok(());
    }
    let at = |address, port: u32| SocketAddr::new(from_words(address), port as u16);
    let (client, vip) = (at(key.source, key.ports >> 16), at(key.destination, key.ports));
    let (ours, host) = (at(flow.source, flow.ports >> 16), at(flow.destination, flow.ports));
    // A peer that is gone needs no reset.
    let _ = reset::one(vip, client, flow.ack, reply.map_or(0, |reply| reply.ack));
    if let Some(reply) = reply {
        let _ = reset::one(ours, host, reply.ack, flow.ack);
    }
    Ok(())
}

/// A flow as the API shows it.
pub(super) fn view(key: &Key, flow: &Flow, service: String, kernel: &Kernel) -> FlowView {
    let host = if flow.mode == mode::NAT {
        flow.destination
    } else {
        kernel
            .host(flow.host)
            .ok()
            .flatten()
            .map_or([0; 4], |host| host.address)
    };
    FlowView {
        service,
        client: SocketAddr::new(from_words(key.source), (key.ports >> 16) as u16),
        listen: SocketAddr::new(from_words(key.destination), key.ports as u16),
        host: from_words(host),
        protocol: protocol(key.protocol),
        packets_in: flow.packets,
        bytes_in: flow.bytes,
        idle_seconds: between(flow.seen, tick()).as_secs_f64(),
    }
}
