//! Source addresses and ports for new flows of mode `nat`.

use super::abi::{L4Flow, Service, service, state};
use super::maps::{LocalSocket, Maps};
use super::scratch::PacketScratch;
use super::track;
use crate::net::Key;
use crate::net::target::PortBit;
use crate::net::tuple::flow_hash;
use crate::{Reason, hash};

/// Source ports that are tried for a new flow of mode `nat`: with two in three in use, one flow in a thousand finds
/// none.
const MAX_PORT_TRIES: u32 = 16;
/// Number of the first tries, which are always the same ports for a flow, and used only if they are free. The later
/// ones may also replace a flow that has not been confirmed for a while.
const FIXED_TRIES: u32 = 8;

/// Finds a source address and port for a new flow, and remembers the direction of its replies.
#[inline(always)]
pub(super) fn allocate_port<K: Maps>(kernel: &K, s: &mut PacketScratch, service: &Service, now: u32) -> Reason {
    let (index, key) = (s.forward_flow.host, s.seen.key);
    let (Some(host), Some(config)) = (kernel.host(index), kernel.config()) else {
        return Reason::L4NoHost;
    };
    let mut port = key.ports & 0xffff;
    if service.flags & service::HAS_PORTS != 0
        && let Some(other) = kernel.host_port(service.number, index)
    {
        port = u32::from(other);
    }
    let sources = host.source_count;
    // Nodes that have an address one after the other, or at once, never use the same port of its sources.
    let (first, ports, step) = if service.group == 0 {
        (config.first_port, config.port_count, 1)
    } else {
        let step = config.floating_port_step;
        (config.floating_first_port, config.floating_port_count, step)
    };
    let first_source = host.first_source + service.group * sources;
    if sources == 0 || ports == 0 {
        return Reason::L4NoPort;
    }
    s.reply_flow = L4Flow {
        source: key.destination,
        destination: key.source,
        ports: key.ports.rotate_left(16),
        state: state::REPLY,
        packets: 0,
        bytes: 0,
        ack: 0,
        ..s.forward_flow
    };
    s.reverse_key = Key {
        source: host.address,
        destination: [0; 4],
        ports: 0,
        protocol: key.protocol,
    };
    // From the client's own numbers: a forgotten flow most often finds its port again.
    let start = flow_hash(&key);
    let mut tried = 0;
    while tried < MAX_PORT_TRIES {
        // A hash for each try: draws at a fixed distance would meet the same crowded ports.
        let mut draw = start.wrapping_add(u64::from(tried));
        if tried >= FIXED_TRIES {
            // Other ports at the next tick, should all of these be taken.
            draw = draw.wrapping_add(u64::from(now) << 32);
        }
        let draw = hash::mix(draw);
        tried += 1;
        let Some(source) = kernel.nat_source(first_source + draw as u32 % sources) else {
            return Reason::L4NoPort;
        };
        let ours = first + (draw >> 32) as u32 % ports * step;
        s.reverse_key.destination = source;
        s.reverse_key.ports = port << 16 | (ours & 0xffff);
        // A listener on a prefix may have it: its guard would mistake answers for a client's packets.
        if kernel.is_wildcard_guarded(PortBit::of(&s.reverse_key)) {
            continue;
        }
        if kernel.established(&s.reverse_key).is_some() {
            continue;
        }
        let mut fresh = true;
        if let Some(other) = kernel.half_open(&s.reverse_key) {
            let may_go =
                tried > FIXED_TRIES && track::is_expired(now.wrapping_sub(other.last_seen), config.half_open_ticks);
            if !track::is_reply_of(other, &key) && !may_go {
                continue;
            }
            fresh = false;
        } else if kernel.local_socket(&s.reverse_key) != LocalSocket::None {
            continue;
        }
        if kernel.insert_half_open(&s.reverse_key, &s.reply_flow, fresh) {
            s.forward_flow.source = source;
            s.forward_flow.destination = host.address;
            s.forward_flow.ports = (ours & 0xffff) << 16 | port;
            return Reason::L4Opened;
        }
    }
    Reason::L4NoPort
}
