//! Pairing of the legs: a host's SYN-ACK completes a flow, and from then on both legs are known.

use signalbox_common::{
    Reason,
    cut::{
        Tcp, Tuple, bits,
        flow::{
            ANSWERED, EARLY_FIN, Entry, FIN_UNKNOWN, FINISHED, OFFERED_SACK, OFFERED_SCALE, OFFERED_STAMPS, state, why,
        },
        handshake,
    },
};

use super::{
    PASS, Verdict,
    ingress::may_be_fragmented,
    maps::{SHAKES, TUPLES, pending},
    skb::{Family, View, milliseconds, tick},
};

const BPF_NOEXIST: u64 = 1;

#[inline(never)]
pub fn complete<F: Family>(view: &mut View, tuple: &Tuple) -> Verdict {
    let miss = Verdict::new(Reason::CutMiss, PASS);
    let Some(tcp) = Tcp::read(view, F::TCP) else {
        return miss;
    };
    let Some((index, flow)) = pending(u32::from(tcp.destination)) else {
        return miss;
    };
    // SAFETY: a non-null element of the array; until it is cut, only packets of leg B's handshake write it.
    let flow = unsafe { &mut *flow };
    if flow.state != state::CONNECTING || flow.tuple(1) != *tuple || tcp.ack != flow.first_b {
        return miss;
    }
    let unfit = |flow: &mut signalbox_common::cut::Flow, reason: u8| {
        flow.why = reason;
        flow.state = state::UNFIT;
        Verdict::new(Reason::CutUnfit, PASS)
    };
    let Some(offer) = handshake::offer(view, F::TCP, &tcp) else {
        return unfit(flow, why::MALFORMED);
    };
    if may_be_fragmented::<F>(view) != Some(false) {
        return unfit(flow, why::FRAGMENTS);
    }
    // The legs' options were made equal in our SYN: leg A's stand in these bits.
    let have = flow.ways[0].flags as u8;
    if (have ^ offer.bits) & OFFERED_STAMPS != 0 {
        return unfit(flow, why::STAMPS);
    }
    if (have ^ offer.bits) & OFFERED_SACK != 0 {
        return unfit(flow, why::SACK);
    }
    // Userspace has left the segment size that the client was told here.
    if u32::from(offer.mss) < flow.owed_end {
        return unfit(flow, why::SEGMENT);
    }
    // The client was told our own scale before we knew the host.
    if !handshake::is_exact_enough(tcp.window, offer.scale, flow.scale_a >> 4) {
        return unfit(flow, why::WINDOW);
    }
    if offer.bits & OFFERED_SCALE == 0 {
        // The host has none: our socket uses none on leg B either.
        flow.scale_b = 0;
    } else {
        flow.scale_b = (flow.scale_b & 15) | offer.scale << 4;
    }
    let now = tick();
    let first_host = tcp.seq.wrapping_add(1);
    flow.first_host = first_host;
    // `d2` and `t2` held leg A's part so far.
    flow.ways[0].ack = flow.d2;
    flow.d2 = flow.d2.wrapping_sub(first_host);
    flow.t2 = flow.t2.wrapping_add(milliseconds()).wrapping_sub(offer.stamp);
    flow.ways[1].ack = flow.first_b;
    flow.ways[1].high = first_host;
    flow.ways[0].seen = now;
    flow.ways[1].seen = now;
    // The client's flags held the options of leg A.
    flow.ways[0].flags = 0;
    flow.ways[1].flags = 0;
    flow.sent_b = flow.first_b;
    flow.owed_end = flow.first_b;
    let (a, b) = (flow.tuple(0), flow.tuple(1));
    if TUPLES.insert(&b, &Entry::new(index, 1), BPF_NOEXIST).is_err() {
        return unfit(flow, why::TABLE_FULL);
    }
    flow.state = state::CUT;
    if TUPLES.insert(&a, &Entry::new(index, 0), BPF_NOEXIST).is_err() {
        let _ = TUPLES.remove(&b);
        return unfit(flow, why::TABLE_FULL);
    }
    // Read last: a FIN that comes later finds the entry, and is forwarded. One that another CPU handles at this moment
    // goes to leg A's socket, unknown here: userspace finds it there, or its sender repeats it.
    let progress = SHAKES.get_ptr(&a).map_or(0, |shake| unsafe { (*shake).progress });
    if progress & FINISHED != 0 {
        bits::set(&mut flow.ways[0].flags, EARLY_FIN);
    } else if progress & ANSWERED == 0 {
        // The handshake was evicted, or begun anew by a SYN.
        bits::set(&mut flow.ways[0].flags, FIN_UNKNOWN);
    }
    Verdict::new(Reason::CutPaired, PASS)
}
