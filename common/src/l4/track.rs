//! Connection tracking of a service's flows: confirmation, end, idle time.

use super::abi::{L4Flow, state};
use crate::net::header::{ACK, FIN, RST, SYN};
use crate::net::ip::TCP;
use crate::net::{Key, ParsedHeaders};

/// How far a client's acknowledgement may be ahead of the host's first byte, and still show that it has heard the host.
const MAX_ACK_AHEAD: u32 = 1 << 24;

/// Records a packet in its direction of a flow.
#[inline(always)]
pub fn record(flow: &mut L4Flow, seen: &ParsedHeaders, now: u32) {
    // A host repeats an unanswered SYN-ACK for a minute: that must not keep the port from other flows.
    let again = flow.state & (state::REPLY | state::ANSWERED) == state::REPLY | state::ANSWERED && has_syn(seen);
    if !again {
        flow.last_seen = now;
    }
    flow.packets = flow.packets.wrapping_add(1);
    flow.bytes = flow.bytes.wrapping_add(seen.length as u64);
    let mut state = flow.state;
    if seen.key.protocol == TCP {
        let flags = seen.flags as u8;
        if flags & ACK != 0 {
            flow.ack = seen.ack;
        }
        if flags & FIN != 0 {
            state |= state::FIN;
        }
        if flags & RST != 0 {
            state |= state::RST;
        }
    }
    if state & (state::REPLY | state::ANSWERED) == state::REPLY {
        // A SYN takes one number.
        flow.first_reply_ack = seen.seq.wrapping_add((seen.flags >> 1) & 1);
        state |= state::ANSWERED;
    }
    flow.set_state(state);
}

/// Whether a packet is TCP and has its SYN bit set.
#[inline(always)]
fn has_syn(seen: &ParsedHeaders) -> bool {
    seen.key.protocol == TCP && seen.flags as u8 & SYN != 0
}

/// Whether `reply` is the host's direction of the flow with the client's key `key`.
#[inline(always)]
pub(super) fn is_reply_of(reply: &L4Flow, key: &Key) -> bool {
    reply.destination == key.source && reply.ports == key.ports.rotate_left(16) && reply.source == key.destination
}

/// Whether a client's packet shows that it has heard the host, whose direction `reply` is. A forged source hears
/// nothing: its flow stays among those that may be evicted.
#[inline(always)]
#[must_use]
pub fn confirms(seen: &ParsedHeaders, reply: &L4Flow) -> bool {
    if reply.state & state::ANSWERED == 0 {
        return false;
    }
    if seen.key.protocol != TCP {
        return true;
    }
    let flags = seen.flags as u8;
    flags & (ACK | SYN | RST) == ACK && seen.ack.wrapping_sub(reply.first_reply_ack) < MAX_ACK_AHEAD
}

/// Whether a packet of a client begins a new connection on the addresses and ports of a flow that has ended.
#[inline(always)]
#[must_use]
pub fn is_new_connection(seen: &ParsedHeaders, flow: &L4Flow, now: u32) -> bool {
    if flow.state & state::REPLY != 0 {
        return false;
    }
    let idle = now.wrapping_sub(flow.last_seen);
    if seen.key.protocol != TCP {
        return is_expired(idle, flow.idle_ticks);
    }
    seen.flags as u8 & (SYN | ACK | RST) == SYN
        && (flow.state & (state::FIN | state::RST) != 0 || is_expired(idle, flow.idle_ticks))
}

/// Whether `ticks` exceed `most`. A time that seems older than half of the clock's range is newer than now.
#[inline(always)]
#[must_use]
pub const fn is_expired(ticks: u32, most: u32) -> bool {
    ticks > most && ticks < 1 << 31
}
