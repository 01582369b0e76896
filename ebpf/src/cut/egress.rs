//! Egress hook of tier `cut`: handshakes and cut flows, as this machine's own sockets send them.

use aya_ebpf::{
    helpers::{bpf_l4_csum_replace, bpf_skb_store_bytes},
    programs::TcContext,
};
use signalbox_common::{
    Reason,
    cut::{
        CutFlow, PendingFlow,
        flow::{
            CLIENT_FIN_SEEN, FlowRef, HANDED_OFF, HANDOFF_KNOWN, IS_PEEKED, LAST_REQUEST, MAX_COOKIE_TS_LAG_MS,
            MAY_FRAGMENT, OFFERED_SCALE, ORPHANED, RESYNC, SOCKETS_CLOSED, SYN_ACK_SEEN, SYN_ON_LIVE_FLOW,
            TS_DELTA_KNOWN, ineligible, state,
        },
        handshake,
        pending::HOLD,
    },
    net::{
        Buffer, Diff, Tcp, Tuple, atomic,
        header::{ACK, AT_ACK, AT_CHECKSUM, AT_FLAGS, AT_SEQ, FIN, RST, SYN, TCP_HEADER},
        options::find_options,
        seq,
    },
    parts::CUT_V6,
};

use super::{
    DROP, PASS, Verdict,
    forward::{HOP_LIFETIME_TICKS, TC_INDEX_LEARN_HOP},
    maps::{CUT_CONFIG, CUT_CT, CUT_FLOWS, notify_ended, pending_flow},
    skb::{
        ETH_HEADER, Family, IPV4, IPV6, PacketView, SocketPacket, TCP, V4, V6, context_field, monotonic_ms, read_tuple,
        tick,
    },
};
use crate::{handshakes::CUT_HANDSHAKES, parts};

#[inline(always)]
pub fn decide(ctx: &TcContext) -> Verdict {
    let forwarded = context_field(ctx, |skb| unsafe { &raw const (*skb).ingress_ifindex });
    let mark = context_field(ctx, |skb| unsafe { &raw const (*skb).tc_index });
    if forwarded != 0 && mark != TC_INDEX_LEARN_HOP {
        return Verdict::new(Reason::CutEgressForwarded, PASS);
    }
    let tagged = context_field(ctx, |skb| unsafe { &raw const (*skb).vlan_present });
    let protocol = context_field(ctx, |skb| unsafe { &raw const (*skb).protocol });
    let learn = forwarded != 0;
    if tagged != 0 {
        Verdict::UNHANDLED
    } else if protocol == IPV4 {
        decide_family::<V4>(ctx, learn)
    } else if protocol == IPV6 && parts::has(CUT_V6) {
        decide_family::<V6>(ctx, learn)
    } else {
        Verdict::UNHANDLED
    }
}

#[inline(never)]
fn decide_family<F: Family>(ctx: &TcContext, learn: bool) -> Verdict {
    parse::<F>(ctx, learn).unwrap_or(Verdict::UNHANDLED)
}

#[inline(always)]
fn parse<F: Family>(ctx: &TcContext, learn: bool) -> Option<Verdict> {
    let view = PacketView::new(ctx, F::TCP + TCP_HEADER);
    let plain = F::VERSION == 6 || (view.u8(ETH_HEADER)? == 0x45 && view.u16(ETH_HEADER + 6)? & 0x3fff == 0);
    if !plain || view.u8(F::PROTOCOL)? != TCP {
        return None;
    }
    let tcp = Tcp::read(&view, F::TCP)?;
    let arriving = read_tuple::<F, _>(&view, F::TCP)?.reversed();
    // SAFETY: the value is copied at once.
    let Some(entry) = (unsafe { CUT_CT.get(&arriving) }).copied() else {
        return match (tcp.has(SYN), tcp.has(ACK)) {
            (true, true) => Some(record_syn_ack::<F>(ctx, &view, &arriving, &tcp)),
            (true, false) => Some(rewrite_leg_b_syn::<F>(ctx, &view, &arriving, &tcp)),
            _ => None,
        };
    };
    // SAFETY: a non-null element of the array, each field of which is read or written whole.
    let flow = unsafe { &mut *CUT_FLOWS.get_ptr_mut(entry.index)? };
    if learn {
        // A forwarded packet, on the leg that the other direction arrives on.
        let dir = &mut flow.dirs[(!entry.dir & 1) as usize];
        dir.hop_ifindex = context_field(ctx, |skb| unsafe { &raw const (*skb).ifindex });
        dir.macs = macs(&view)?;
        dir.hop_expires = tick().wrapping_add(HOP_LIFETIME_TICKS);
        return Some(Verdict::new(Reason::CutNextHopLearned, PASS));
    }
    if tcp.has(SYN) && entry.dir == 1 && !tcp.has(ACK) {
        // The ports of a flow that is over: free for another connection, unless they are being freed at this moment.
        if flow.ended() && flow.dirs[1].supersede() {
            let _ = CUT_CT.remove(&arriving);
            return Some(rewrite_leg_b_syn::<F>(ctx, &view, &arriving, &tcp));
        }
        // Another connection was given the ports of a live flow: it must try again with other ports.
        return Some(refuse_port(&tcp));
    }
    if entry.dir == 0 && tcp.has(SYN | ACK) && flow.dirs[0].flags & SYN_ON_LIVE_FLOW != 0 {
        return Some(record_syn_ack::<F>(ctx, &view, &arriving, &tcp));
    }
    Some(on_socket_packet::<F>(ctx, &view, &tcp, &entry, flow))
}

#[inline(always)]
fn refuse_port(tcp: &Tcp) -> Verdict {
    if let Some((_, flow)) = pending_flow(u32::from(tcp.source)) {
        // SAFETY: as above.
        let flow = unsafe { &mut *flow };
        // A reason that was found before stays.
        if flow.state == state::REQUESTED {
            flow.mark_ineligible(state::REQUESTED, ineligible::PORT_BUSY);
        }
    }
    Verdict::new(Reason::CutRefused, DROP)
}

#[inline(always)]
fn macs(view: &PacketView) -> Option<[u32; 3]> {
    Some([view.u32(0)?, view.u32(4)?, view.u32(8)?])
}

/// Decides about a packet that a socket of a cut flow sends.
#[inline(never)]
fn on_socket_packet<F: Family>(
    ctx: &TcContext,
    view: &PacketView,
    tcp: &Tcp,
    entry: &FlowRef,
    flow: &mut CutFlow,
) -> Verdict {
    let silenced = Verdict::new(Reason::CutSilenced, DROP);
    // SAFETY: aligned, whole; userspace writes them through its mapping.
    let (now, handoff_state) = unsafe {
        (
            (&raw const flow.state).read_volatile(),
            (&raw const flow.handoff_state).read_volatile(),
        )
    };
    // A reset gets the number that the other end expects: at any other the receiver would send a challenge (RFC 5961).
    let expected = flow.dirs[(entry.dir & 1) as usize].ack;
    if now == state::CLOSING && flow.dirs[(entry.dir & 1) as usize].flags & RESYNC != 0 {
        // That number is not known yet. Userspace, which sends this packet, makes the other end say it.
        let asks = tcp.flags & (SYN | FIN | RST) == 0 && handoff_state == SOCKETS_CLOSED;
        return if asks {
            Verdict::new(Reason::CutReset, PASS)
        } else {
            silenced
        };
    }
    if now == state::CLOSING && tcp.has(RST) {
        return match turn_into_reset::<F>(ctx, tcp, expected) {
            Some(()) => Verdict::new(Reason::CutReset, PASS),
            None => silenced,
        };
    }
    // The host of a long answer was made to pause: userspace sends it the client's window once the sockets are gone.
    let waits = entry.dir == 1 && flow.dirs[0].flags & LAST_REQUEST != 0;
    if waits && now == state::CUT && handoff_state == SOCKETS_CLOSED && tcp.flags & (SYN | FIN | RST) == 0 {
        return Verdict::new(Reason::CutHandoff, PASS);
    }
    if now != state::CUT || handoff_state >= HANDED_OFF {
        return silenced;
    }
    let Some(all) = F::payload_length(view, ctx.len()) else {
        return silenced;
    };
    let end = tcp.end(all.wrapping_sub(tcp.length));
    // The client's own FIN, which came before the flow was cut, is handed off with the other bytes.
    let is_early_fin = entry.dir == 1 && handoff_state == HANDOFF_KNOWN && end == flow.handoff_end;
    if tcp.flags & RST != 0 || tcp.flags & FIN != 0 && !is_early_fin {
        // Sockets are closed when all is handed off. A socket that is closed earlier has lost its process, and with it
        // the bytes that were to be handed off: both ends must know.
        atomic::set(&mut flow.dirs[(entry.dir & 1) as usize].flags, ORPHANED);
        if flow.dirs[0].flags & flow.dirs[1].flags & ORPHANED != 0 {
            flow.state = state::CLOSING;
        }
        notify_ended(entry.index);
        return match turn_into_reset::<F>(ctx, tcp, expected) {
            Some(()) => Verdict::new(Reason::CutReset, PASS),
            None => silenced,
        };
    }
    if entry.dir == 0 {
        // Leg A's socket has nothing to send: acknowledgements come from the host now.
        return silenced;
    }
    flow.snd_nxt_b = seq::later(end, flow.snd_nxt_b);
    // The client has acknowledged bytes that the socket has never seen. The host drops a packet whose acknowledgement
    // is much too old (RFC 5961, section 5.2).
    let ack = seq::later(flow.dirs[0].ack.wrapping_sub(flow.seq_delta_out), tcp.ack);
    let stamp = if flow.dirs[0].flags & TS_DELTA_KNOWN != 0 {
        Some(flow.dirs[0].ts_val)
    } else {
        None
    };
    rewrite_ack_and_ts::<F>(ctx, tcp, ack, stamp);
    Verdict::new(Reason::CutHandoff, PASS)
}

/// Rewrites the acknowledgement number and the TSval of leg B's socket. The client's clock goes on where the socket's
/// stopped, and the host must not see it run backwards (RFC 7323, PAWS).
#[inline(always)]
fn rewrite_ack_and_ts<F: Family>(ctx: &TcContext, tcp: &Tcp, ack: u32, stamp: Option<u32>) {
    let mut diff = Diff::default();
    let mut packet = SocketPacket(ctx);
    if ack != tcp.ack && packet.set_u32(F::TCP + AT_ACK, ack).is_some() {
        diff.u32(tcp.ack, ack);
    }
    if let Some(stamp) = stamp
        && let Some(found) = find_options(&mut packet, F::TCP + TCP_HEADER, tcp.length - TCP_HEADER)
        && found.timestamps != 0
        && let Some(old) = packet.u32(found.timestamps + 2)
        && packet.set_u32(found.timestamps + 2, stamp).is_some()
    {
        diff.u32_at(found.timestamps, old, stamp);
    }
    update_checksum::<F>(ctx, diff);
}

#[inline(always)]
fn update_checksum<F: Family>(ctx: &TcContext, diff: Diff) {
    // SAFETY: the helper checks the offset.
    unsafe { bpf_l4_csum_replace(ctx.skb.skb, F::TCP + AT_CHECKSUM, 0, diff.for_kernel(), 0) };
}

/// Turns the last packet of a dying socket into a reset at `expected`.
#[inline(always)]
fn turn_into_reset<F: Family>(ctx: &TcContext, tcp: &Tcp, expected: u32) -> Option<()> {
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
    update_checksum::<F>(ctx, diff);
    stored.then_some(())
}

/// Records our SYN-ACK to a client: leg A's half of a flow.
#[inline(never)]
fn record_syn_ack<F: Family>(ctx: &TcContext, view: &PacketView, arriving: &Tuple, tcp: &Tcp) -> Verdict {
    try_record_syn_ack::<F>(ctx, view, arriving, tcp).unwrap_or(Verdict::UNHANDLED)
}

#[inline(always)]
fn try_record_syn_ack<F: Family>(ctx: &TcContext, view: &PacketView, arriving: &Tuple, tcp: &Tcp) -> Option<Verdict> {
    let handshake = CUT_HANDSHAKES.get_ptr_mut(arriving)?;
    // SAFETY: a non-null element of the map; only packets of this handshake write it.
    let handshake = unsafe { &mut *handshake };
    if handshake.isn_client != tcp.ack {
        return None;
    }
    handshake.macs = macs(view)?;
    handshake.ifindex = context_field(ctx, |skb| unsafe { &raw const (*skb).ifindex });
    let mut packet = SocketPacket(ctx);
    let (offer, offsets) = handshake::find_options(&mut packet, F::TCP, tcp)?;
    let limit = mss_limit::<F>();
    if offer.mss > limit {
        let diff = handshake::limit_options(&mut packet, &offsets, u8::MAX, limit)?;
        update_checksum::<F>(ctx, diff);
    }
    let isn_vip = tcp.seq.wrapping_add(1);
    // A repeated SYN-ACK must not undo what the client's packets have recorded since.
    let kept = if handshake.isn_vip == isn_vip {
        MAY_FRAGMENT | CLIENT_FIN_SEEN
    } else {
        MAY_FRAGMENT
    };
    handshake.isn_vip = isn_vip;
    handshake.ts_clock = offer.ts_val.wrapping_sub(monotonic_ms());
    handshake.mss_vip = if offer.mss > limit { limit } else { offer.mss };
    handshake.scale_vip = offer.scale;
    handshake.agreed = offer.offered;
    if offer.offered & OFFERED_SCALE == 0 {
        handshake.scale_client = 0;
    }
    handshake.progress = SYN_ACK_SEEN | handshake.progress & kept;
    Some(Verdict::new(Reason::CutSynAckRecorded, PASS))
}

/// MSS that fits all interfaces that carry legs.
#[inline(always)]
fn mss_limit<F: Family>() -> u16 {
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
fn rewrite_leg_b_syn<F: Family>(ctx: &TcContext, view: &PacketView, arriving: &Tuple, tcp: &Tcp) -> Verdict {
    try_rewrite_leg_b_syn::<F>(ctx, view, arriving, tcp).unwrap_or(Verdict::UNHANDLED)
}

#[inline(always)]
fn try_rewrite_leg_b_syn<F: Family>(
    ctx: &TcContext,
    view: &PacketView,
    arriving: &Tuple,
    tcp: &Tcp,
) -> Option<Verdict> {
    let (_, flow) = pending_flow(u32::from(tcp.source))?;
    // SAFETY: a non-null element of the array; until it is cut, only packets of leg B's handshake write it.
    let flow = unsafe { &mut *flow };
    // SAFETY: aligned, whole. Userspace and other CPUs change the state: a flow in another state is left alone.
    let seen = unsafe { (&raw const flow.state).read_volatile() };
    let first = seen == state::REQUESTED;
    if !first && seen != state::CONNECTING || flow.tuple(1) != *arriving {
        return None;
    }
    if flow.marks & IS_PEEKED != 0 {
        // Userspace repeats the SYN of a program, which has the right options.
        return None;
    }
    let refused = |flow: &mut PendingFlow, reason: u8| {
        flow.mark_ineligible(seen, reason);
        Some(Verdict::new(Reason::CutRefused, PASS))
    };
    let client = flow.tuple(0);
    // SAFETY: copied at once.
    let handshake = match unsafe { CUT_HANDSHAKES.get(&client) } {
        Some(handshake) if handshake.progress & SYN_ACK_SEEN != 0 => *handshake,
        _ => return refused(flow, ineligible::NO_HANDSHAKE),
    };
    if handshake.progress & MAY_FRAGMENT != 0 {
        return refused(flow, ineligible::FRAGMENTS);
    }
    // SAFETY: only its presence is checked.
    if unsafe { CUT_CT.get(&client) }.is_some() {
        return refused(flow, ineligible::PORT_BUSY);
    }
    let hop = macs(view)?;
    let mut packet = SocketPacket(ctx);
    let limit = mss_limit::<F>();
    let mss = if handshake.mss_client < limit {
        handshake.mss_client
    } else {
        limit
    };
    let Some((ours, offsets)) = handshake::find_options(&mut packet, F::TCP, tcp) else {
        return refused(flow, ineligible::MALFORMED);
    };
    // Userspace has asked for the client's scale: the client's window can then be announced exactly.
    if handshake.agreed & ours.offered & OFFERED_SCALE != 0 && ours.scale > handshake.scale_client {
        return refused(flow, ineligible::WINDOW_SCALE);
    }
    // Options that this machine does not offer at all cannot be agreed on: the host's answer will show it.
    let Some(mut diff) = handshake::limit_options(&mut packet, &offsets, handshake.agreed, mss) else {
        return refused(flow, ineligible::MALFORMED);
    };
    diff.merge(handshake::clear_ecn(&mut packet, F::TCP, tcp)?);
    update_checksum::<F>(ctx, diff);
    if first {
        let now = tick();
        flow.isn_client = handshake.isn_client;
        flow.isn_vip = handshake.isn_vip;
        flow.isn_b = tcp.seq.wrapping_add(1);
        flow.ts_clock_b = ours.ts_val.wrapping_sub(monotonic_ms());
        // With a SYN cookie the clock of leg A's socket may be later than its SYN-ACK. The clock is known to a
        // millisecond or two, so a smaller difference counts as none.
        let late = flow.ts_clock_a.wrapping_sub(handshake.ts_clock);
        if !(2..=MAX_COOKIE_TS_LAG_MS + 2).contains(&late) {
            flow.ts_clock_a = handshake.ts_clock;
        }
        flow.scale_a = handshake.scale_client | handshake.scale_vip << 4;
        flow.scale_b = if handshake.agreed & OFFERED_SCALE != 0 {
            ours.scale
        } else {
            0
        };
        flow.mss_vip = handshake.mss_vip;
        flow.agreed = flow.agreed & HOLD | u32::from(handshake.agreed);
        flow.dirs[0].hop_ifindex = context_field(ctx, |skb| unsafe { &raw const (*skb).ifindex });
        flow.dirs[0].macs = hop;
        flow.dirs[0].hop_expires = now.wrapping_add(HOP_LIFETIME_TICKS);
        flow.dirs[1].hop_ifindex = handshake.ifindex;
        flow.dirs[1].macs = handshake.macs;
        flow.dirs[1].hop_expires = now.wrapping_add(HOP_LIFETIME_TICKS);
        atomic::exchange(&mut flow.state, state::REQUESTED, state::CONNECTING);
    }
    Some(Verdict::new(Reason::CutSynRewritten, PASS))
}
