//! Going through flows: which have ended, which are to be closed, how many there are.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use signalbox_common::l4::abi::state;
use signalbox_common::l4::decide::other_way;
use signalbox_common::l4::{Flow, Key, mode};

use super::{FlowView, protocol};
use crate::datapath::cut::from_words;
use crate::kernel::cut::reset;
use crate::kernel::cut::table::{between, tick};
use crate::kernel::l4::Layer4 as Kernel;

const TCP: u32 = 6;
/// How long a connection is known after both have said that they have ended it, or one has reset it.
const ENDED: Duration = Duration::from_secs(10);

/// How many flows there are, and how many have been closed.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) hosts: HashMap<u32, u32>,
    pub(super) services: HashMap<u16, u32>,
    pub(super) pairs: HashMap<(u16, u32), u32>,
    pub(super) closed: usize,
}

/// Ticks of the programs' clock.
pub(super) fn ticks(time: Duration) -> u32 {
    u32::try_from(time.as_nanos() >> 20)
        .unwrap_or(u32::MAX / 4)
        .min(u32::MAX / 4)
}

/// Whether it is the host's direction.
pub(super) fn is_reply(flow: &Flow) -> bool {
    flow.state & state::REPLY != 0
}

/// Removes what has ended, closes what `closes` says.
pub(super) fn sweep(kernel: &Kernel, closes: impl Fn(&Flow) -> bool) -> io::Result<Counts> {
    let now = tick();
    let mut counts = Counts::default();
    let (mut suspects, mut doomed) = (Vec::new(), Vec::new());
    Kernel::each_flow(&kernel.established, |key, flow| {
        let idle = between(flow.seen, now);
        if !is_reply(flow) && closes(flow) {
            doomed.push((*key, *flow));
            return;
        }
        let ended = flow.state & (state::FIN | state::RST) != 0 && idle >= ENDED;
        if ended || ticks(idle) >= flow.idle {
            suspects.push((*key, *flow));
        }
        if !is_reply(flow) {
            *counts.hosts.entry(flow.host).or_default() += 1;
            *counts.services.entry(flow.service).or_default() += 1;
            *counts.pairs.entry((flow.service, flow.host)).or_default() += 1;
        }
    })?;
    for (key, flow) in suspects {
        let other = (flow.mode == mode::NAT).then(|| other_way(&flow, key.protocol));
        let partner = match &other {
            Some(other) => kernel.established.get::<Key, Flow>(other)?,
            None => None,
        };
        if !is_over(&flow, partner.as_ref(), now) {
            continue;
        }
        kernel.remove_flow(&key)?;
        if let Some(other) = &other {
            kernel.remove_flow(other)?;
        }
    }
    // Those that have not been confirmed, too: whoever closes a host's flows means all of them.
    let mut opening = Vec::new();
    Kernel::each_flow(&kernel.opening, |key, flow| {
        if !is_reply(flow) && closes(flow) {
            opening.push((*key, *flow));
        }
    })?;
    counts.closed = doomed.len();
    for (key, flow) in doomed.into_iter().chain(opening) {
        close(kernel, &key, &flow)?;
    }
    Ok(counts)
}

/// Whether a flow has ended, by both its directions.
fn is_over(flow: &Flow, partner: Option<&Flow>, now: u32) -> bool {
    let quiet = |flow: &Flow| between(flow.seen, now);
    let idle = partner.map_or_else(|| quiet(flow), |partner| quiet(flow).min(quiet(partner)));
    if ticks(idle) >= flow.idle {
        return true;
    }
    if idle < ENDED {
        return false;
    }
    let either = |bit: u16| flow.state & bit != 0 || partner.is_some_and(|partner| partner.state & bit != 0);
    let both = |bit: u16| flow.state & bit != 0 && partner.is_none_or(|partner| partner.state & bit != 0);
    either(state::RST) || both(state::FIN)
}

/// Ends a flow: it is forgotten, and both its ends are told, where they can be.
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
    // An end that is gone needs not be told.
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
