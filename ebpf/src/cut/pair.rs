//! Pairing of the legs: a host's SYN-ACK completes a flow, and from then on both legs are known.

use signalbox_common::{
    Reason,
    cut::{
        Tcp, Tuple, atomic,
        flow::{
            CLIENT_FIN_SEEN, EARLY_FIN, EARLY_FIN_UNKNOWN, FlowRef, OFFERED_SACK, OFFERED_SCALE, OFFERED_TIMESTAMPS,
            SYN_ACK_SEEN, ineligible, state,
        },
        handshake,
    },
};

use super::{
    PASS, Verdict,
    ingress::may_be_fragmented,
    maps::{CUT_CT, CUT_HANDSHAKES, pending_flow},
    skb::{Family, PacketView, monotonic_ms, tick},
};

const BPF_NOEXIST: u64 = 1;

#[inline(never)]
pub fn complete<F: Family>(view: &mut PacketView, tuple: &Tuple) -> Verdict {
    let miss = Verdict::new(Reason::CutMiss, PASS);
    let Some(tcp) = Tcp::read(view, F::TCP) else {
        return miss;
    };
    let Some((index, flow)) = pending_flow(u32::from(tcp.destination)) else {
        return miss;
    };
    // SAFETY: a non-null element of the array; until it is cut, only packets of leg B's handshake write it.
    let flow = unsafe { &mut *flow };
    if flow.state != state::CONNECTING || flow.tuple(1) != *tuple || tcp.ack != flow.isn_b {
        return miss;
    }
    let mark_ineligible = |flow: &mut signalbox_common::cut::CutFlow, reason: u8| {
        flow.ineligible = reason;
        flow.state = state::INELIGIBLE;
        Verdict::new(Reason::CutIneligible, PASS)
    };
    let Some(offer) = handshake::read_options(view, F::TCP, &tcp) else {
        return mark_ineligible(flow, ineligible::MALFORMED);
    };
    if may_be_fragmented::<F>(view) != Some(false) {
        return mark_ineligible(flow, ineligible::FRAGMENTS);
    }
    // The legs' options were made equal in our SYN: leg A's stand in these bits.
    let have = flow.dirs[0].flags as u8;
    if (have ^ offer.offered) & OFFERED_TIMESTAMPS != 0 {
        return mark_ineligible(flow, ineligible::TIMESTAMPS);
    }
    if (have ^ offer.offered) & OFFERED_SACK != 0 {
        return mark_ineligible(flow, ineligible::SACK);
    }
    // Userspace has left the segment size that the client was told here.
    if u32::from(offer.mss) < flow.handoff_end {
        return mark_ineligible(flow, ineligible::MSS);
    }
    // The client was told our own scale before we knew the host.
    if !handshake::fits_scale(tcp.window, offer.scale, flow.scale_a >> 4) {
        return mark_ineligible(flow, ineligible::WINDOW_SCALE);
    }
    if offer.offered & OFFERED_SCALE == 0 {
        // The host has none: our socket uses none on leg B either.
        flow.scale_b = 0;
    } else {
        flow.scale_b = (flow.scale_b & 15) | offer.scale << 4;
    }
    let now = tick();
    let first_host = tcp.seq.wrapping_add(1);
    flow.isn_host = first_host;
    // `d2` and `t2` held leg A's part so far.
    flow.dirs[0].ack = flow.seq_delta_out;
    flow.seq_delta_out = flow.seq_delta_out.wrapping_sub(first_host);
    flow.ts_delta_out = flow
        .ts_delta_out
        .wrapping_add(monotonic_ms())
        .wrapping_sub(offer.ts_val);
    flow.dirs[1].ack = flow.isn_b;
    flow.dirs[1].snd_max = first_host;
    flow.dirs[0].last_seen = now;
    flow.dirs[1].last_seen = now;
    // The client's flags held the options of leg A.
    flow.dirs[0].flags = 0;
    flow.dirs[1].flags = 0;
    flow.snd_nxt_b = flow.isn_b;
    flow.handoff_end = flow.isn_b;
    let (a, b) = (flow.tuple(0), flow.tuple(1));
    if CUT_CT.insert(&b, &FlowRef::new(index, 1), BPF_NOEXIST).is_err() {
        return mark_ineligible(flow, ineligible::TABLE_FULL);
    }
    flow.state = state::CUT;
    if CUT_CT.insert(&a, &FlowRef::new(index, 0), BPF_NOEXIST).is_err() {
        let _ = CUT_CT.remove(&b);
        return mark_ineligible(flow, ineligible::TABLE_FULL);
    }
    // Read last: a FIN that comes later finds the entry, and is forwarded. One that another CPU handles at this moment
    // goes to leg A's socket, unknown here: userspace finds it there, or its sender repeats it.
    let progress = CUT_HANDSHAKES
        .get_ptr(&a)
        .map_or(0, |handshake| unsafe { (*handshake).progress });
    if progress & CLIENT_FIN_SEEN != 0 {
        atomic::set(&mut flow.dirs[0].flags, EARLY_FIN);
    } else if progress & SYN_ACK_SEEN == 0 {
        // The handshake was evicted, or begun anew by a SYN.
        atomic::set(&mut flow.dirs[0].flags, EARLY_FIN_UNKNOWN);
    }
    Verdict::new(Reason::CutPaired, PASS)
}
