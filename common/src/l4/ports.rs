//! Source addresses and ports for new flows of mode `nat`.

use super::abi::{Flow, Key, PortBit, Service, service, state};
use super::decide::{Scratch, answers, flow_hash};
use super::{kernel::Kernel, track};
use crate::{Reason, hash};

/// Source ports that are tried for a new flow of mode `nat`: with two in three taken, one flow in a thousand finds
/// none.
const TRIES: u32 = 16;
/// Number of the first tries, which are always the same ports for a flow, and taken only if they are free. The later
/// ones may also be taken from a flow that nobody has confirmed for a while.
const FIXED_TRIES: u32 = 8;

/// Finds a source address and port for a new flow, and remembers the direction of its replies.
#[inline(always)]
pub(super) fn map_ports<K: Kernel>(kernel: &K, s: &mut Scratch, service: &Service, now: u32) -> Reason {
    let (index, key) = (s.forward.host, s.seen.key);
    let (Some(host), Some(config)) = (kernel.host(index), kernel.config()) else {
        return Reason::L4NoHost;
    };
    let mut port = key.ports & 0xffff;
    if service.flags & service::HAS_PORTS != 0
        && let Some(other) = kernel.port(service.number, index)
    {
        port = u32::from(other);
    }
    let (sources, ports, first) = (host.sources, config.ports, config.first_port);
    if sources == 0 || ports == 0 {
        return Reason::L4NoPort;
    }
    s.reply = Flow {
        source: key.destination,
        destination: key.source,
        ports: key.ports.rotate_left(16),
        state: state::REPLY,
        packets: 0,
        bytes: 0,
        ack: 0,
        ..s.forward
    };
    s.reverse = Key {
        source: host.address,
        destination: [0; 4],
        ports: 0,
        protocol: key.protocol,
    };
    // From the client's own numbers: a flow that has been forgotten most often finds its port again.
    let start = flow_hash(&key);
    let mut tried = 0;
    while tried < TRIES {
        // A hash for each try: draws that follow each other at a distance would meet the same crowded neighbourhood.
        let mut draw = start.wrapping_add(u64::from(tried));
        if tried >= FIXED_TRIES {
            // Other ports at the next tick, should all of these be taken.
            draw = draw.wrapping_add(u64::from(now) << 32);
        }
        let draw = hash::mix(draw);
        tried += 1;
        let Some(source) = kernel.source(host.first_source + draw as u32 % sources) else {
            return Reason::L4NoPort;
        };
        let ours = first + (draw >> 32) as u32 % ports;
        s.reverse.destination = source;
        s.reverse.ports = port << 16 | (ours & 0xffff);
        // A listener on a prefix may have it: its guard would take answers for a client's packets.
        if kernel.is_guarded_anywhere(PortBit::of(&s.reverse)) {
            continue;
        }
        if kernel.established(&s.reverse).is_some() {
            continue;
        }
        let mut fresh = true;
        if let Some(other) = kernel.opening(&s.reverse) {
            let may_go = tried > FIXED_TRIES && track::is_over(now.wrapping_sub(other.seen), config.opening);
            if !answers(other, &key) && !may_go {
                continue;
            }
            fresh = false;
        } else if kernel.is_local(&s.reverse) {
            continue;
        }
        if kernel.open(&s.reverse, &s.reply, fresh) {
            s.forward.source = source;
            s.forward.destination = host.address;
            s.forward.ports = (ours & 0xffff) << 16 | port;
            return Reason::L4Opened;
        }
    }
    Reason::L4NoPort
}
