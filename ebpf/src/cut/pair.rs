//! Pairing of the legs: a host's SYN-ACK completes a flow, and from then on both legs are known.

use aya_log_ebpf::warn;
use signalbox_common::{
    Reason,
    cut::{
        CutFlow,
        flow::{
            CLIENT_FIN_SEEN, EARLY_FIN, EARLY_FIN_UNKNOWN, FlowRef, HANDOFF_UNKNOWN, HEADER_UNACKED, IS_PEEKED,
            OFFERED_SACK, OFFERED_SCALE, OFFERED_TIMESTAMPS, PAIRED, SOCKETS_CLOSED, SYN_ACK_SEEN, ineligible, state,
        },
        handshake,
        pending::HOLD,
    },
    net::{Tcp, Tuple, atomic},
};

use super::{
    DROP, PASS, Verdict,
    ingress::may_be_fragmented,
    maps::{CUT_CT, pending_flow},
    skb::{Family, PacketView, monotonic_ms, tick},
};
use crate::{clock, handshakes::CUT_HANDSHAKES};

const BPF_NOEXIST: u64 = 1;

#[inline(never)]
pub fn complete<F: Family>(view: &mut PacketView, tuple: &Tuple) -> Verdict {
    let miss = Verdict::new(Reason::CutMiss, PASS);
    let Some(tcp) = Tcp::read(view, F::TCP) else {
        return miss;
    };
    let Some((index, pending)) = pending_flow(u32::from(tcp.destination)) else {
        return miss;
    };
    // SAFETY: a non-null element of the array; until it is cut, only packets of leg B's handshake write it.
    let pending = unsafe { &mut *pending };
    // SAFETY: aligned, whole; userspace and other CPUs change it.
    let seen = unsafe { (&raw const pending.state).read_volatile() };
    let is_answered = seen == state::CONNECTING || seen == state::PAIRING;
    if !is_answered || pending.tuple(1) != *tuple || tcp.ack != pending.isn_b {
        return miss;
    }
    // The CPU that claims the flow completes it. Another CPU with a copy of this packet would undo changes by the
    // flow's next packets. And the kernel must not see the answer before the flow is complete.
    if !atomic::exchange(&mut pending.state, state::CONNECTING, state::PAIRING) {
        return Verdict::new(Reason::CutStray, DROP);
    }
    // SAFETY: aligned, whole. Userspace may just have asked another host for the flow's client.
    if unsafe { (&raw const pending.isn_b).read_volatile() } != tcp.ack {
        atomic::exchange(&mut pending.state, state::PAIRING, state::CONNECTING);
        return miss;
    }
    let Some(offer) = handshake::read_options(view, F::TCP, &tcp) else {
        return ineligible_for(pending.as_carried(), ineligible::MALFORMED);
    };
    if may_be_fragmented::<F>(view) != Some(false) {
        return ineligible_for(pending.as_carried(), ineligible::FRAGMENTS);
    }
    // The legs' options were made equal in our SYN.
    let agreed = pending.agreed as u8;
    if (agreed ^ offer.offered) & OFFERED_TIMESTAMPS != 0 {
        return ineligible_for(pending.as_carried(), ineligible::TIMESTAMPS);
    }
    if (agreed ^ offer.offered) & OFFERED_SACK != 0 {
        return ineligible_for(pending.as_carried(), ineligible::SACK);
    }
    if offer.mss < pending.mss_vip {
        return ineligible_for(pending.as_carried(), ineligible::MSS);
    }
    // The client was told our own scale before we knew the host.
    if !handshake::fits_scale(tcp.window, offer.scale, pending.scale_a >> 4) {
        return ineligible_for(pending.as_carried(), ineligible::WINDOW_SCALE);
    }
    let (a, b) = (pending.tuple(0), pending.tuple(1));
    let now = tick();
    let isn_host = tcp.seq.wrapping_add(1);
    let (isn_vip, isn_client, seq_delta_in) = (pending.isn_vip, pending.isn_client, pending.seq_delta_in());
    let (ts_clock_a, ts_clock_b) = (pending.ts_clock_a, pending.ts_clock_b);
    let holds = pending.agreed & HOLD != 0;
    let injected = pending.injected;
    let flow = pending.as_carried();
    if offer.offered & OFFERED_SCALE == 0 {
        // The host has none: our socket uses none on leg B either.
        flow.scale_b = 0;
    } else {
        flow.scale_b = (flow.scale_b & 15) | offer.scale << 4;
    }
    flow.seq_delta_in = seq_delta_in;
    flow.seq_delta_out = isn_vip.wrapping_sub(isn_host);
    // The first packet of the client shows which clock leg B's host must see.
    flow.ts_delta_in = 0;
    flow.ts_delta_out = ts_clock_a.wrapping_add(monotonic_ms()).wrapping_sub(offer.ts_val);
    // A program's flow has no sockets.
    flow.handoff_state = if flow.marks & IS_PEEKED == 0 {
        HANDOFF_UNKNOWN
    } else {
        SOCKETS_CLOSED
    };
    // A program's flow has its first byte after the header that the program sends in front of it.
    flow.handoff_end = if flow.marks & IS_PEEKED == 0 {
        flow.isn_b
    } else {
        flow.isn_b.wrapping_add(injected)
    };
    flow.snd_nxt_b = flow.isn_b;
    flow.isn_host = isn_host;
    flow.dirs[0].ack = isn_vip;
    flow.dirs[0].snd_max = isn_client;
    flow.dirs[0].last_seen = now;
    flow.dirs[1].ack = flow.isn_b;
    flow.dirs[1].snd_max = isn_host;
    flow.dirs[1].ts_val = ts_clock_b;
    flow.dirs[1].last_seen = now;
    if flow.handoff_end != flow.isn_b {
        // Before the client's tuple leads here: no byte of the client's must take the header's place.
        atomic::set(&mut flow.dirs[0].flags, HEADER_UNACKED);
    }
    if holds {
        // Last of all: userspace writes to the entry from now on.
        return match atomic::exchange(&mut flow.state, state::PAIRING, state::HELD) {
            true => Verdict::new(Reason::CutHeld, PASS),
            false => miss,
        };
    }
    if let Err(errno) = CUT_CT.insert(&b, &FlowRef::new(index, 1), BPF_NOEXIST) {
        return no_room(flow, state::PAIRING, errno);
    }
    // Before the client's tuple leads here: its packets are not dropped. Userspace may have given up the flow.
    if !atomic::exchange(&mut flow.state, state::PAIRING, state::CUT) {
        let _ = CUT_CT.remove(&b);
        return miss;
    }
    if let Err(errno) = CUT_CT.insert(&a, &FlowRef::new(index, 0), BPF_NOEXIST) {
        let _ = CUT_CT.remove(&b);
        return no_room(flow, state::CUT, errno);
    }
    // Read last: a FIN that comes later finds the entry, and is forwarded. A FIN that another CPU handles at this
    // moment goes to leg A's socket, unknown here: userspace finds it there, or its sender repeats it.
    let progress = CUT_HANDSHAKES
        .get_ptr(&a)
        .map_or(0, |handshake| unsafe { (*handshake).progress });
    if progress & CLIENT_FIN_SEEN != 0 {
        atomic::set(&mut flow.dirs[0].flags, EARLY_FIN);
    } else if progress & SYN_ACK_SEEN == 0 {
        // The handshake was evicted, or another SYN has replaced it.
        atomic::set(&mut flow.dirs[0].flags, EARLY_FIN_UNKNOWN);
    }
    // Last of all: before this, userspace must neither read leg A's queue nor close a socket, and the kernel peek must not
    // send the first data.
    atomic::set(&mut flow.dirs[0].flags, PAIRED);
    Verdict::new(Reason::CutPaired, PASS)
}

#[inline(always)]
fn no_room(flow: &mut CutFlow, from: u32, errno: i32) -> Verdict {
    if clock::may_log() {
        warn!(
            (),
            "A connection is not cut, because CUT_CT takes no entry: errno={}", errno
        );
    }
    flow.mark_ineligible(from, ineligible::TABLE_FULL);
    Verdict::new(Reason::CutIneligible, PASS)
}

#[inline(always)]
fn ineligible_for(flow: &mut CutFlow, reason: u8) -> Verdict {
    flow.mark_ineligible(state::PAIRING, reason);
    Verdict::new(Reason::CutIneligible, PASS)
}
