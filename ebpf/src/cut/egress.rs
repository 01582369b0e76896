//! Egress hook of tier `cut`: handshakes and cut flows, as this machine's own sockets send them.

use aya_ebpf::{
    helpers::{bpf_l4_csum_replace, bpf_skb_store_bytes},
    programs::TcContext,
};
use signalbox_common::{
    Reason,
    cut::{
        Buffer, Diff, Flow, Tcp, Tuple, bits,
        flow::{
            ANSWERED, COOKIE_LATE, DOUBTED, DRAINED, Entry, MAY_FRAGMENT, OFFERED_SACK, OFFERED_SCALE, OFFERED_STAMPS,
            ORPHANED, OWED_KNOWN, STAMPS_FIXED, SUPERSEDED, state, why,
        },
        handshake,
        header::{ACK, AT_ACK, AT_CHECKSUM, AT_FLAGS, AT_SEQ, FIN, FIXED, RST, SYN},
        options::find,
        seq,
    },
    parts::CUT_V6,
};

use super::{
    DROP, PASS, Verdict,
    forward::{HOP_TICKS, LEARN},
    maps::{CUT_CONFIG, FLOWS, SHAKES, TUPLES, pending, tell},
    skb::{ETH, Family, IPV4, IPV6, Shared, TCP, V4, V6, View, field, milliseconds, tick, tuple},
};
use crate::parts;

#[inline(always)]
pub fn decide(ctx: &TcContext) -> Verdict {
    let forwarded = field(ctx, |skb| unsafe { &raw const (*skb).ingress_ifindex });
    let mark = field(ctx, |skb| unsafe { &raw const (*skb).tc_index });
    if forwarded != 0 && mark != LEARN {
        return Verdict::new(Reason::CutLeaves, PASS);
    }
    let tagged = field(ctx, |skb| unsafe { &raw const (*skb).vlan_present });
    let protocol = field(ctx, |skb| unsafe { &raw const (*skb).protocol });
    let learn = forwarded != 0;
    if tagged != 0 {
        Verdict::NONE
    } else if protocol == IPV4 {
        of_family::<V4>(ctx, learn)
    } else if protocol == IPV6 && parts::has(CUT_V6) {
        of_family::<V6>(ctx, learn)
    } else {
        Verdict::NONE
    }
}

#[inline(never)]
fn of_family<F: Family>(ctx: &TcContext, learn: bool) -> Verdict {
    understood::<F>(ctx, learn).unwrap_or(Verdict::NONE)
}

#[inline(always)]
fn understood<F: Family>(ctx: &TcContext, learn: bool) -> Option<Verdict> {
    let view = View::new(ctx, F::TCP + FIXED);
    let plain = F::VERSION == 6 || (view.u8(ETH)? == 0x45 && view.u16(ETH + 6)? & 0x3fff == 0);
    if !plain || view.u8(F::PROTOCOL)? != TCP {
        return None;
    }
    let tcp = Tcp::read(&view, F::TCP)?;
    let arriving = tuple::<F, _>(&view, F::TCP)?.reversed();
    // SAFETY: the value is copied at once.
    let Some(entry) = (unsafe { TUPLES.get(&arriving) }).copied() else {
        return match (tcp.has(SYN), tcp.has(ACK)) {
            (true, true) => Some(answer::<F>(ctx, &view, &arriving, &tcp)),
            (true, false) => Some(offer::<F>(ctx, &view, &arriving, &tcp)),
            _ => None,
        };
    };
    // SAFETY: a non-null element of the array, each field of which is read or written whole.
    let flow = unsafe { &mut *FLOWS.get_ptr_mut(entry.index)? };
    if learn {
        // A forwarded packet, on the leg that the other direction arrives on.
        let way = &mut flow.ways[(!entry.way & 1) as usize];
        way.hop_ifindex = field(ctx, |skb| unsafe { &raw const (*skb).ifindex });
        way.macs = macs(&view)?;
        way.hop_until = tick().wrapping_add(HOP_TICKS);
        return Some(Verdict::new(Reason::CutLearnt, PASS));
    }
    if tcp.has(SYN) && entry.way == 1 && !tcp.has(ACK) {
        if flow.ended() {
            // The ports of a flow that is over: free for whoever wants them.
            bits::set(&mut flow.ways[1].flags, SUPERSEDED);
            let _ = TUPLES.remove(&arriving);
            return Some(offer::<F>(ctx, &view, &arriving, &tcp));
        }
        // Another connection was given the ports of a live flow: it must try again with others.
        return Some(refuse(&tcp));
    }
    if entry.way == 0 && tcp.has(SYN | ACK) && flow.ways[0].flags & DOUBTED != 0 {
        return Some(answer::<F>(ctx, &view, &arriving, &tcp));
    }
    Some(spoken::<F>(ctx, &view, &tcp, &entry, flow))
}

#[inline(always)]
fn refuse(tcp: &Tcp) -> Verdict {
    if let Some((_, flow)) = pending(u32::from(tcp.source)) {
        // SAFETY: as above.
        let flow = unsafe { &mut *flow };
        if flow.state == state::WANTED {
            flow.why = why::PORT_BUSY;
            flow.state = state::UNFIT;
        }
    }
    Verdict::new(Reason::CutRefused, DROP)
}

#[inline(always)]
fn macs(view: &View) -> Option<[u32; 3]> {
    Some([view.u32(0)?, view.u32(4)?, view.u32(8)?])
}

/// Decides about a packet that a socket of a cut flow sends.
#[inline(never)]
fn spoken<F: Family>(ctx: &TcContext, view: &View, tcp: &Tcp, entry: &Entry, flow: &mut Flow) -> Verdict {
    let silenced = Verdict::new(Reason::CutSilenced, DROP);
    // SAFETY: aligned, whole; userspace writes them through its mapping.
    let (now, drained) = unsafe {
        (
            (&raw const flow.state).read_volatile(),
            (&raw const flow.drained).read_volatile(),
        )
    };
    // A reset is put at the number that the other end expects: it would be asked back elsewhere (RFC 5961).
    let expected = flow.ways[(entry.way & 1) as usize].ack;
    if now == state::CLOSING && tcp.has(RST) {
        return match reset_at::<F>(ctx, tcp, expected) {
            Some(()) => Verdict::new(Reason::CutReset, PASS),
            None => silenced,
        };
    }
    if now != state::CUT || drained >= DRAINED {
        return silenced;
    }
    let Some(all) = F::payload(view, ctx.len()) else {
        return silenced;
    };
    let end = tcp.end(all.wrapping_sub(tcp.length));
    // The client's own FIN, which came before the flow was cut, is owed with the rest.
    let owed = entry.way == 1 && drained == OWED_KNOWN && end == flow.owed_end;
    if tcp.flags & RST != 0 || tcp.flags & FIN != 0 && !owed {
        // Sockets are closed when they are drained, not before: their process has died. Both ends must know, since what
        // was owed is lost.
        bits::set(&mut flow.ways[(entry.way & 1) as usize].flags, ORPHANED);
        if flow.ways[0].flags & flow.ways[1].flags & ORPHANED != 0 {
            flow.state = state::CLOSING;
        }
        tell(entry.index);
        return match reset_at::<F>(ctx, tcp, expected) {
            Some(()) => Verdict::new(Reason::CutReset, PASS),
            None => silenced,
        };
    }
    if entry.way == 0 {
        // Leg A's socket has nothing to say: acknowledgements come from the host now.
        return silenced;
    }
    flow.sent_b = seq::later(end, flow.sent_b);
    // The client has acknowledged what the socket has never seen; the host drops what acknowledges too much less (RFC
    // 5961, section 5.2).
    let ack = seq::later(flow.ways[0].ack.wrapping_sub(flow.d2), tcp.ack);
    let stamp = if flow.ways[0].flags & STAMPS_FIXED != 0 {
        Some(flow.ways[0].stamp)
    } else {
        None
    };
    update::<F>(ctx, tcp, ack, stamp);
    Verdict::new(Reason::CutDrains, PASS)
}

/// Rewrites the acknowledgement number and the TSval of leg B's socket: the client's clock goes on where the socket's
/// stopped, and the host must not see it run backwards (RFC 7323, PAWS).
#[inline(always)]
fn update<F: Family>(ctx: &TcContext, tcp: &Tcp, ack: u32, stamp: Option<u32>) {
    let mut diff = Diff::default();
    let mut packet = Shared(ctx);
    if ack != tcp.ack && packet.set_u32(F::TCP + AT_ACK, ack).is_some() {
        diff.u32(tcp.ack, ack);
    }
    if let Some(stamp) = stamp
        && let Some(found) = find(&mut packet, F::TCP + FIXED, tcp.length - FIXED)
        && found.stamps != 0
        && let Some(old) = packet.u32(found.stamps + 2)
        && packet.set_u32(found.stamps + 2, stamp).is_some()
    {
        diff.u32_at(found.stamps, old, stamp);
    }
    checksum::<F>(ctx, diff);
}

#[inline(always)]
fn checksum<F: Family>(ctx: &TcContext, diff: Diff) {
    // SAFETY: the helper checks the offset.
    unsafe { bpf_l4_csum_replace(ctx.skb.skb, F::TCP + AT_CHECKSUM, 0, diff.for_kernel(), 0) };
}

/// Turns the last packet of a dying socket into a reset at `expected`.
#[inline(always)]
fn reset_at<F: Family>(ctx: &TcContext, tcp: &Tcp, expected: u32) -> Option<()> {
    let mut diff = Diff::default();
    diff.u32(tcp.seq, expected);
    let flags = (tcp.flags & !FIN) | RST;
    diff.u16(u16::from(tcp.flags), u16::from(flags));
    let seq = expected.to_be();
    // SAFETY: the helper reads the value and checks the offset; also below.
    let stored = unsafe {
        bpf_skb_store_bytes(ctx.skb.skb, F::TCP + AT_SEQ, (&raw const seq).cast(), 4, 0) == 0
            && bpf_skb_store_bytes(ctx.skb.skb, F::TCP + AT_FLAGS, (&raw const flags).cast(), 1, 0) == 0
    };
    checksum::<F>(ctx, diff);
    stored.then_some(())
}

/// Records our SYN-ACK to a client: leg A's half of a flow.
#[inline(never)]
fn answer<F: Family>(ctx: &TcContext, view: &View, arriving: &Tuple, tcp: &Tcp) -> Verdict {
    answered::<F>(ctx, view, arriving, tcp).unwrap_or(Verdict::NONE)
}

#[inline(always)]
fn answered<F: Family>(ctx: &TcContext, view: &View, arriving: &Tuple, tcp: &Tcp) -> Option<Verdict> {
    let shake = SHAKES.get_ptr_mut(arriving)?;
    // SAFETY: a non-null element of the map; only packets of this handshake write it.
    let shake = unsafe { &mut *shake };
    if shake.first_client != tcp.ack {
        return None;
    }
    shake.macs = macs(view)?;
    shake.ifindex = field(ctx, |skb| unsafe { &raw const (*skb).ifindex });
    let mut packet = Shared(ctx);
    let offer = handshake::offer(&mut packet, F::TCP, tcp)?;
    let limit = segment_limit::<F>();
    if offer.mss > limit {
        let diff = handshake::mirror(&mut packet, F::TCP, tcp, u8::MAX, limit)?;
        checksum::<F>(ctx, diff);
    }
    shake.first_vip = tcp.seq.wrapping_add(1);
    shake.clock = offer.stamp.wrapping_sub(milliseconds());
    shake.mss_vip = if offer.mss > limit { limit } else { offer.mss };
    shake.scale_vip = offer.scale;
    shake.agreed = offer.bits;
    if offer.bits & OFFERED_SCALE == 0 {
        shake.scale_client = 0;
    }
    shake.progress = ANSWERED | shake.progress & MAY_FRAGMENT;
    Some(Verdict::new(Reason::CutAnswered, PASS))
}

/// MSS that all interfaces that carry legs can take.
#[inline(always)]
fn segment_limit<F: Family>() -> u16 {
    let limit = CUT_CONFIG.get(0).map_or(0, |config| config.mss);
    let limit = if F::VERSION == 6 {
        limit.saturating_sub(20)
    } else {
        limit
    };
    if limit == 0 || limit > 0xffff {
        u16::MAX
    } else {
        limit as u16
    }
}

/// Edits leg B's SYN to offer what leg A has, and no more.
#[inline(never)]
fn offer<F: Family>(ctx: &TcContext, view: &View, arriving: &Tuple, tcp: &Tcp) -> Verdict {
    offered::<F>(ctx, view, arriving, tcp).unwrap_or(Verdict::NONE)
}

#[inline(always)]
fn offered<F: Family>(ctx: &TcContext, view: &View, arriving: &Tuple, tcp: &Tcp) -> Option<Verdict> {
    let (_, flow) = pending(u32::from(tcp.source))?;
    // SAFETY: a non-null element of the array; until it is cut, only packets of leg B's handshake write it.
    let flow = unsafe { &mut *flow };
    let first = flow.state == state::WANTED;
    if !first && flow.state != state::CONNECTING || flow.tuple(1) != *arriving {
        return None;
    }
    let refused = |flow: &mut Flow, reason: u8| {
        flow.why = reason;
        flow.state = state::UNFIT;
        Some(Verdict::new(Reason::CutRefused, PASS))
    };
    let client = flow.tuple(0);
    // SAFETY: copied at once.
    let shake = match unsafe { SHAKES.get(&client) } {
        Some(shake) if shake.progress & ANSWERED != 0 => *shake,
        _ => return refused(flow, why::NO_HANDSHAKE),
    };
    if shake.progress & MAY_FRAGMENT != 0 {
        return refused(flow, why::FRAGMENTS);
    }
    // SAFETY: only looked whether it is there.
    if unsafe { TUPLES.get(&client) }.is_some() {
        return refused(flow, why::PORT_BUSY);
    }
    let hop = macs(view)?;
    let mut packet = Shared(ctx);
    let limit = segment_limit::<F>();
    let mss = if shake.mss_client < limit {
        shake.mss_client
    } else {
        limit
    };
    let Some(ours) = handshake::offer(&mut packet, F::TCP, tcp) else {
        return refused(flow, why::MALFORMED);
    };
    // Userspace has asked for the client's scale: what the client takes can then be told exactly.
    if shake.agreed & ours.bits & OFFERED_SCALE != 0 && ours.scale > shake.scale_client {
        return refused(flow, why::WINDOW);
    }
    // Options that this machine does not offer at all cannot be had: the host's answer will show it.
    let Some(mut diff) = handshake::mirror(&mut packet, F::TCP, tcp, shake.agreed, mss) else {
        return refused(flow, why::MALFORMED);
    };
    diff.and(handshake::without_ecn(&mut packet, F::TCP, tcp)?);
    checksum::<F>(ctx, diff);
    if first {
        let now = tick();
        flow.first_b = tcp.seq.wrapping_add(1);
        // `d1` held bytes injected less bytes consumed.
        flow.d1 = flow.d1.wrapping_add(flow.first_b).wrapping_sub(shake.first_client);
        flow.d2 = shake.first_vip;
        flow.ways[1].stamp = ours.stamp.wrapping_sub(milliseconds());
        // The clock of leg A's socket may be later than its SYN-ACK, if that had a cookie; it can be told to a
        // millisecond or two, and a smaller difference is none.
        let late = flow.t2.wrapping_sub(shake.clock);
        if !(2..=COOKIE_LATE + 2).contains(&late) {
            flow.t2 = shake.clock;
        }
        flow.scale_a = shake.scale_client | shake.scale_vip << 4;
        flow.scale_b = if shake.agreed & OFFERED_SCALE != 0 {
            ours.scale
        } else {
            0
        };
        // MSS and options of leg A stand here until the host's SYN-ACK: `pair::complete` reads and replaces them.
        flow.owed_end = u32::from(shake.mss_vip);
        flow.ways[0].flags = u32::from(shake.agreed & (OFFERED_SACK | OFFERED_STAMPS | OFFERED_SCALE));
        flow.ways[0].high = shake.first_client;
        flow.ways[0].hop_ifindex = field(ctx, |skb| unsafe { &raw const (*skb).ifindex });
        flow.ways[0].macs = hop;
        flow.ways[0].hop_until = now.wrapping_add(HOP_TICKS);
        flow.ways[1].hop_ifindex = shake.ifindex;
        flow.ways[1].macs = shake.macs;
        flow.ways[1].hop_until = now.wrapping_add(HOP_TICKS);
        flow.state = state::CONNECTING;
    }
    Some(Verdict::new(Reason::CutOffered, PASS))
}
