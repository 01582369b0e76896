//! Ingress hook of tier `cut`: finds the packets of cut flows, and records handshakes.

use aya_ebpf::{helpers::bpf_l4_csum_replace, maps::lpm_trie::Key, programs::TcContext};
use signalbox_common::{
    Reason,
    cut::{
        Handshake,
        flow::{
            CLIENT_FIN_SEEN, CutFlow, FlowRef, HEADER_UNACKED, MAY_FRAGMENT, RESET, SOCKETS_CLOSED, SYN_ACK_SEEN,
            SYN_ON_LIVE_FLOW, TC_INDEX_HEADER_LOST, state,
        },
        handshake, track,
    },
    net::{
        Buffer, Diff, Tcp, Tuple, atomic,
        header::{ACK, AT_ACK, AT_CHECKSUM, AT_FLAGS, AT_SEQ, FIN, RST, SYN, TCP_HEADER},
        seq,
    },
    parts::CUT_V6,
    steer::{STEER_FIXED_BITS, SteerKey},
};

use super::{
    DROP, PASS, Verdict, chain, forward, icmp,
    maps::{CUT_BINDINGS, CUT_CT, CUT_FLOWS, notify_ended},
    pair, share,
    skb::{ARP, ETH_HEADER, Family, IPV4, IPV6, PacketView, TCP, V4, V6, context_field, read_tuple, tick},
    too_big,
};
use crate::{handshakes::CUT_HANDSHAKES, packet_view::is_of_vlan, parts};

const MAX_TCP_HEADER: u32 = 60;
const SYN_ACK: u8 = SYN | ACK;

#[inline(always)]
pub fn decide(ctx: &TcContext) -> Verdict {
    let is_of_vlan = is_of_vlan(ctx);
    let protocol = context_field(ctx, |skb| unsafe { &raw const (*skb).protocol });
    if is_of_vlan {
        Verdict::UNHANDLED
    } else if protocol == IPV4 {
        decide_family::<V4>(ctx)
    } else if protocol == IPV6 && parts::has(CUT_V6) {
        decide_family::<V6>(ctx)
    } else if protocol == ARP {
        chain::on_arp(ctx)
    } else {
        Verdict::UNHANDLED
    }
}

#[inline(always)]
fn decide_family<F: Family>(ctx: &TcContext) -> Verdict {
    parse::<F>(ctx).unwrap_or(Verdict::UNHANDLED)
}

#[inline(always)]
fn parse<F: Family>(ctx: &TcContext) -> Option<Verdict> {
    // No more bytes than every packet's decision needs: the part that is not linear yet must be copied.
    let mut view = PacketView::new(ctx, F::TCP + TCP_HEADER);
    let protocol = view.u8(F::PROTOCOL)?;
    if F::VERSION == 4 {
        let first = view.u8(ETH_HEADER)?;
        let fragment = view.u16(ETH_HEADER + 6)?;
        if first != 0x45 || fragment & 0x3fff != 0 {
            if protocol != TCP || fragment & 0x1fff != 0 {
                return None;
            }
            view = PacketView::new(ctx, F::TCP + MAX_TCP_HEADER);
            let ports = ETH_HEADER + u32::from(first & 15) * 4;
            let reason = if first == 0x45 {
                Reason::CutFragment
            } else {
                Reason::CutExtended
            };
            return Some(drop_if_cut::<F>(&view, ports, reason));
        }
    } else if matches!(protocol, 0 | 43 | 44 | 60) {
        // Hop-by-hop, routing, fragment or destination options, then TCP: a connection of ours could be hidden there. A
        // long header, or a second one, is left to the kernel, whose reset `cut_out` keeps in.
        view = PacketView::new(ctx, F::TCP + MAX_TCP_HEADER);
        if view.u8(F::TCP)? != TCP {
            return None;
        }
        let length = u32::from(view.u8(F::TCP + 1)? & 15) * 8 + 8;
        let ports = F::TCP + if protocol == 44 { 8 } else { length };
        return Some(drop_if_cut::<F>(&view, ports, Reason::CutExtended));
    }
    if protocol == F::ICMP {
        view = PacketView::new(ctx, F::TCP + MAX_TCP_HEADER);
        return Some(icmp::on_icmp_error::<F>(ctx, &mut view));
    }
    if protocol != TCP {
        return None;
    }
    let tuple = read_tuple::<F, _>(&view, F::TCP)?;
    // SAFETY: the value is copied at once.
    let Some(entry) = (unsafe { CUT_CT.get(&tuple) }).copied() else {
        // A packet of no cut flow: the beginning of one, perhaps.
        let flags = view.u8(F::TCP + AT_FLAGS)?;
        if flags & FIN != 0
            && let Some(handshake) = CUT_HANDSHAKES.get_ptr_mut(&tuple)
        {
            let ack = view.u32(F::TCP + AT_ACK)?;
            // We have said nothing yet that it could acknowledge: a sender without our number is not the client.
            // SAFETY: a non-null element; one byte is written, which nothing else writes by now.
            unsafe {
                if (*handshake).isn_vip == ack {
                    (*handshake).progress |= CLIENT_FIN_SEEN;
                }
            }
        }
        if flags & SYN != 0 {
            view = PacketView::new(ctx, F::TCP + MAX_TCP_HEADER);
        }
        return Some(match flags & (SYN | ACK) {
            SYN => record_syn::<F>(ctx, &mut view, &tuple),
            SYN_ACK => pair::complete::<F>(&mut view, &tuple),
            _ => chain::send_to_former_owner::<F>(ctx, &tuple),
        });
    };
    let Some(flow) = CUT_FLOWS.get_ptr_mut(entry.index) else {
        return Some(Verdict::new(Reason::CutMiss, PASS));
    };
    // SAFETY: a non-null element of the array. Other CPUs and userspace may write other fields at the same time; each
    // is read or written whole.
    let flow = unsafe { &mut *flow };
    let Some(tcp) = Tcp::read(&view, F::TCP) else {
        return Some(Verdict::new(Reason::CutMalformed, DROP));
    };
    view = PacketView::new(ctx, F::TCP + tcp.length);
    Some(on_cut_packet::<F>(ctx, &mut view, &tuple, &tcp, &entry, flow))
}

/// Verdict on a packet that cannot be rewritten. It is dropped if it belongs to a cut flow, since the kernel would
/// answer it with a reset.
#[inline(always)]
fn drop_if_cut<F: Family>(view: &PacketView, ports: u32, reason: Reason) -> Verdict {
    let Some(tuple) = read_tuple::<F, _>(view, ports) else {
        return Verdict::new(Reason::CutMiss, PASS);
    };
    // SAFETY: only its presence is checked.
    if unsafe { CUT_CT.get(&tuple) }.is_some() {
        Verdict::new(reason, DROP)
    } else {
        Verdict::new(Reason::CutMiss, PASS)
    }
}

#[inline(always)]
fn on_cut_packet<F: Family>(
    ctx: &TcContext,
    view: &mut PacketView,
    tuple: &Tuple,
    tcp: &Tcp,
    entry: &FlowRef,
    flow: &mut CutFlow,
) -> Verdict {
    // SAFETY: aligned, whole; userspace changes it through its mapping.
    let mut now = unsafe { (&raw const flow.state).read_volatile() };
    // A packet that is dropped is sent again, and finds the entry gone.
    let closing = Verdict::new(Reason::CutClosing, DROP);
    if now == state::SHADOW {
        now = promote(ctx, entry, flow);
    }
    // Never forwarded: a host that keeps the old connection in TIME_WAIT would accept it without a routing decision.
    if entry.dir == 0 && tcp.has(SYN) && (now == state::CLOSING || now == state::CUT && flow.ended()) {
        if !supersede(tuple, flow) {
            return closing;
        }
        // SAFETY: aligned, whole; userspace writes it through its mapping.
        if unsafe { (&raw const flow.handoff_state).read_volatile() } != SOCKETS_CLOSED {
            return reset_stale_socket::<F>(ctx, tcp, flow.handoff_end.wrapping_sub(flow.seq_delta_in));
        }
        record_syn::<F>(ctx, view, tuple);
        return Verdict::new(Reason::CutSuperseded, PASS);
    }
    if now != state::CUT {
        // The acknowledgement number is kept up to date for the resets that userspace sends.
        let (there, back) = if entry.dir == 0 {
            (flow.seq_delta_in, flow.seq_delta_out)
        } else {
            (flow.seq_delta_out, flow.seq_delta_in)
        };
        let (number, ack) = (tcp.seq.wrapping_add(there), tcp.ack.wrapping_sub(back));
        if now == state::CLOSING {
            track::resync(flow, entry.dir == 0, tcp, 0);
        }
        if tcp.flags & (ACK | RST) == ACK && track::is_in_window(flow, entry.dir == 0, number, ack) {
            let dir = &mut flow.dirs[(entry.dir & 1) as usize];
            dir.ack = seq::later(tcp.ack, dir.ack);
        }
        return closing;
    }
    if tcp.has(SYN) {
        if entry.dir == 1 {
            return share::on_host_syn::<F>(ctx, tcp, flow);
        }
        // A stray SYN does no harm to a listening socket. A real client confirms the answer.
        atomic::set(&mut flow.dirs[0].flags, SYN_ON_LIVE_FLOW);
        record_syn::<F>(ctx, view, tuple);
        return Verdict::new(Reason::CutSynOnLiveFlow, PASS);
    }
    if entry.dir == 0 && flow.dirs[0].flags & SYN_ON_LIVE_FLOW != 0 && confirms_handshake(tuple, tcp) {
        // The client has given up the old connection.
        atomic::set(&mut flow.dirs[0].flags, RESET);
        notify_ended(entry.index);
        return superseded_or(closing, supersede(tuple, flow));
    }
    if entry.dir == 0 && is_of_new_connection(tcp, flow) {
        return superseded_or(closing, supersede(tuple, flow));
    }
    if entry.dir == 1 && share::socket_needs(ctx, tcp, flow) {
        return share::send_ack_to_socket::<F>(ctx, tcp, flow);
    }
    // A link's MTU is looked up no more often than its neighbour's address. A packet dropped until then is sent again.
    if let Some(ifindex) = forward::refresh_next_hop::<F>(ctx, flow, entry.dir)
        && let Some(mtu) = too_big::exceeded_mtu(ctx, ifindex)
        && too_big::accepts_too_big::<F>(view, flow)
    {
        return too_big::send_too_big::<F>(ctx, tuple, mtu);
    }
    if flow.dirs[0].flags & HEADER_UNACKED != 0 {
        match judge_before_header(tcp, entry, flow) {
            BeforeHeader::Forward => {}
            BeforeHeader::Drop => return Verdict::new(Reason::CutHeaderLost, DROP),
            BeforeHeader::Repeat => {
                // SAFETY: a writable field of the context.
                unsafe { (&raw mut (*ctx.skb.skb).tc_index).write_volatile(TC_INDEX_HEADER_LOST) };
                return Verdict::new(Reason::CutHeaderLost, PASS);
            }
        }
    }
    forward::forward_packet::<F>(ctx, view, tcp, entry, flow)
}

/// Fates of a packet while the host has not acknowledged the PROXY header.
enum BeforeHeader {
    Forward,
    /// A client's byte in the header's place: the host would take it for the header.
    Drop,
    /// The client's first byte: the kernel peek sends it again with the header.
    Repeat,
}

/// Judges a packet of a flow whose header is on its way. Notes the host's acknowledgement of the header.
#[inline(always)]
fn judge_before_header(tcp: &Tcp, entry: &FlowRef, flow: &mut CutFlow) -> BeforeHeader {
    if entry.dir == 0 {
        let first = flow.first_byte();
        return if tcp.has(RST) || seq::after(tcp.seq, first) {
            BeforeHeader::Forward
        } else if tcp.seq == first {
            BeforeHeader::Repeat
        } else {
            BeforeHeader::Drop
        };
    }
    if tcp.has(ACK) && seq::reaches(tcp.ack, flow.handoff_end) {
        atomic::clear(&mut flow.dirs[0].flags, HEADER_UNACKED);
        // The flow GC announces the flow to other nodes from here on.
        notify_ended(entry.index);
    }
    BeforeHeader::Forward
}

#[inline(always)]
fn superseded_or(closing: Verdict, is_superseded: bool) -> Verdict {
    if is_superseded {
        Verdict::new(Reason::CutSuperseded, PASS)
    } else {
        closing
    }
}

/// Makes another balancer's flow one of ours, with a packet that is addressed to this machine: the flow's addresses have
/// moved here. Returns the flow's state.
#[inline(always)]
fn promote(ctx: &TcContext, entry: &FlowRef, flow: &mut CutFlow) -> u32 {
    /// Value of `pkt_type` of a packet whose link-layer destination is this machine (include/uapi/linux/if_packet.h).
    const PACKET_HOST: u32 = 0;
    if context_field(ctx, |skb| unsafe { &raw const (*skb).pkt_type }) != PACKET_HOST {
        return state::SHADOW;
    }
    // Its idle time begins now: the packets that its former owner has seen since are not known.
    let now = tick();
    (flow.dirs[0].last_seen, flow.dirs[1].last_seen) = (now, now);
    if atomic::exchange(&mut flow.state, state::SHADOW, state::CUT) {
        notify_ended(entry.index);
        return state::CUT;
    }
    // Another packet has promoted it, or userspace is removing it.
    // SAFETY: aligned, whole; userspace changes it through its mapping.
    unsafe { (&raw const flow.state).read_volatile() }
}

/// Whether a packet confirms a new connection on the tuple of a flow that is over. The new SYN was answered by a cookie
/// before this program could see it; the kernel knows the cookie. Initial sequence numbers of one tuple follow the
/// clock (RFC 6528), and so do cookies: both may lie in the old connection's windows, but after its end.
#[inline(always)]
fn is_of_new_connection(tcp: &Tcp, flow: &CutFlow) -> bool {
    // SAFETY: aligned, whole; userspace writes it through its mapping.
    let closed = unsafe { (&raw const flow.handoff_state).read_volatile() } == SOCKETS_CLOSED;
    if !closed || !flow.ended() || tcp.flags & (SYN | RST | ACK) != ACK {
        return false;
    }
    seq::after(tcp.seq, flow.dirs[0].snd_max)
        || !track::is_in_window(
            flow,
            true,
            tcp.seq.wrapping_add(flow.seq_delta_in),
            tcp.ack.wrapping_sub(flow.seq_delta_out),
        )
}

/// Removes the client's entry of `CUT_CT`, which is then free for another flow. False where another CPU is doing that.
#[inline(always)]
fn supersede(tuple: &Tuple, flow: &mut CutFlow) -> bool {
    let is_ours = flow.dirs[0].supersede();
    if is_ours {
        let _ = CUT_CT.remove(tuple);
    }
    is_ours
}

/// Closes leg A's socket, which userspace is about to close and which would treat the SYN as a stray one. The packet
/// becomes a reset at `expected`, the number of the first byte that the socket has not received. The SYN is injected
/// again after it.
#[inline(never)]
fn reset_stale_socket<F: Family>(ctx: &TcContext, tcp: &Tcp, expected: u32) -> Verdict {
    share::loop_clone(ctx);
    let mut view = PacketView::current(ctx);
    let mut diff = Diff::default();
    let flags = (tcp.flags & !SYN) | RST;
    diff.u32(tcp.seq, expected);
    diff.u16(u16::from(tcp.flags), u16::from(flags));
    let written = view
        .set_u32(F::TCP + AT_SEQ, expected)
        .and_then(|()| view.set_u8(F::TCP + AT_FLAGS, flags));
    if written.is_none() {
        return Verdict::new(Reason::CutMalformed, DROP);
    }
    // SAFETY: the helper checks the offset. The view is not used any more.
    unsafe { bpf_l4_csum_replace(ctx.skb.skb, F::TCP + AT_CHECKSUM, 0, diff.for_kernel(), 0) };
    Verdict::new(Reason::CutStaleSocketReset, PASS)
}

/// Whether routers may fragment the packet, and those that follow it.
#[inline(always)]
pub fn may_be_fragmented<F: Family>(view: &PacketView) -> Option<bool> {
    const DONT_FRAGMENT: u16 = 0x4000;
    Some(F::VERSION == 4 && view.u16(ETH_HEADER + 6)? & DONT_FRAGMENT == 0)
}

/// Whether a packet is the third one of a handshake with our listening socket.
#[inline(always)]
fn confirms_handshake(tuple: &Tuple, tcp: &Tcp) -> bool {
    // SAFETY: a non-null element, of which numbers are read.
    CUT_HANDSHAKES.get_ptr(tuple).is_some_and(|handshake| unsafe {
        (*handshake).progress & SYN_ACK_SEEN != 0
            && tcp.seq == (*handshake).isn_client
            && tcp.has(ACK)
            && tcp.ack == (*handshake).isn_vip
    })
}

/// Records a client's SYN, if it is for one of our bindings.
#[inline(never)]
fn record_syn<F: Family>(ctx: &TcContext, view: &mut PacketView, tuple: &Tuple) -> Verdict {
    try_record_syn::<F>(ctx, view, tuple).unwrap_or(Verdict::UNHANDLED)
}

#[inline(always)]
fn try_record_syn<F: Family>(ctx: &TcContext, view: &mut PacketView, tuple: &Tuple) -> Option<Verdict> {
    let miss = Some(Verdict::new(Reason::CutMiss, PASS));
    let tcp = Tcp::read(view, F::TCP)?;
    let mut addr = [0u8; 16];
    let mut i = 0;
    while i < 16 {
        addr[i] = tuple.destination[i / 4].to_be_bytes()[i % 4];
        i += 1;
    }
    let key = Key::new(STEER_FIXED_BITS + 128, SteerKey::new(tcp.destination, F::VERSION, addr));
    if CUT_BINDINGS.get(&key).is_none() {
        return miss;
    }
    let Some(offer) = handshake::read_options(view, F::TCP, &tcp) else {
        return miss;
    };
    let may_fragment = may_be_fragmented::<F>(view)?;
    let handshake = Handshake {
        progress: if may_fragment { MAY_FRAGMENT } else { 0 },
        isn_client: tcp.seq.wrapping_add(1),
        mss_client: offer.mss,
        scale_client: offer.scale,
        ..Handshake::default()
    };
    let _ = CUT_HANDSHAKES.insert(tuple, &handshake, 0);
    let diff = handshake::clear_ecn(view, F::TCP, &tcp)?;
    if diff != Default::default() {
        // SAFETY: the helper checks the offset. The view is not used any more.
        unsafe { bpf_l4_csum_replace(ctx.skb.skb, F::TCP + AT_CHECKSUM, 0, diff.for_kernel(), 0) };
    }
    Some(Verdict::new(Reason::CutSynRecorded, PASS))
}
