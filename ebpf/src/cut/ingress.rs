//! Ingress hook of tier `cut`: finds the packets of cut flows, and records handshakes.

use aya_ebpf::{helpers::bpf_l4_csum_replace, maps::lpm_trie::Key, programs::TcContext};
use signalbox_common::{
    Reason,
    cut::{
        Buffer, Diff, Shake, Tcp, Tuple, bits,
        flow::{ANSWERED, CLOSED, DOUBTED, Entry, FINISHED, Flow, MAY_FRAGMENT, RESET, SUPERSEDED, state},
        handshake,
        header::{ACK, AT_ACK, AT_CHECKSUM, AT_FLAGS, AT_SEQ, FIN, FIXED, RST, SYN},
        seq, track,
    },
    parts::CUT_V6,
    steer::{STEER_FIXED_BITS, SteerKey},
};

use super::{
    DROP, PASS, Verdict, forward, icmp,
    maps::{CUT_BINDINGS, FLOWS, SHAKES, TUPLES, tell},
    pair, share,
    skb::{ETH, Family, IPV4, IPV6, TCP, V4, V6, View, field, tuple},
    too_big,
};
use crate::parts;

const MOST_HEADERS: u32 = 60;
const BOTH: u8 = SYN | ACK;

#[inline(always)]
pub fn decide(ctx: &TcContext) -> Verdict {
    // A tagged packet comes again, untagged, at the VLAN's own interface.
    let tagged = field(ctx, |skb| unsafe { &raw const (*skb).vlan_present });
    let protocol = field(ctx, |skb| unsafe { &raw const (*skb).protocol });
    if tagged != 0 {
        Verdict::NONE
    } else if protocol == IPV4 {
        of_family::<V4>(ctx)
    } else if protocol == IPV6 && parts::has(CUT_V6) {
        of_family::<V6>(ctx)
    } else {
        Verdict::NONE
    }
}

#[inline(always)]
fn of_family<F: Family>(ctx: &TcContext) -> Verdict {
    understood::<F>(ctx).unwrap_or(Verdict::NONE)
}

#[inline(always)]
fn understood<F: Family>(ctx: &TcContext) -> Option<Verdict> {
    // No more bytes than every packet's decision needs: the part that is not linear yet has to be copied.
    let mut view = View::new(ctx, F::TCP + FIXED);
    let protocol = view.u8(F::PROTOCOL)?;
    if F::VERSION == 4 {
        let first = view.u8(ETH)?;
        let fragment = view.u16(ETH + 6)?;
        if first != 0x45 || fragment & 0x3fff != 0 {
            if protocol != TCP || fragment & 0x1fff != 0 {
                return None;
            }
            view = View::new(ctx, F::TCP + MOST_HEADERS);
            let ports = ETH + u32::from(first & 15) * 4;
            let reason = if first == 0x45 {
                Reason::CutFragment
            } else {
                Reason::CutExtended
            };
            return Some(unless_ours::<F>(&view, ports, reason));
        }
    } else if matches!(protocol, 0 | 43 | 44 | 60) {
        // Hop-by-hop, routing, fragment or destination options, then TCP: what a connection of ours could be hidden in.
        // A long one, or a second, is the kernel's business, as a packet of no flow: its reset is kept in by `cut_out`.
        view = View::new(ctx, F::TCP + MOST_HEADERS);
        if view.u8(F::TCP)? != TCP {
            return None;
        }
        let length = u32::from(view.u8(F::TCP + 1)? & 15) * 8 + 8;
        let ports = F::TCP + if protocol == 44 { 8 } else { length };
        return Some(unless_ours::<F>(&view, ports, Reason::CutExtended));
    }
    if protocol == F::ICMP {
        view = View::new(ctx, F::TCP + MOST_HEADERS);
        return Some(icmp::error::<F>(ctx, &mut view));
    }
    if protocol != TCP {
        return None;
    }
    let tuple = tuple::<F, _>(&view, F::TCP)?;
    // SAFETY: the value is copied at once.
    let Some(entry) = (unsafe { TUPLES.get(&tuple) }).copied() else {
        // A packet of no cut flow: the beginning of one, perhaps.
        let flags = view.u8(F::TCP + AT_FLAGS)?;
        if flags & FIN != 0
            && let Some(shake) = SHAKES.get_ptr_mut(&tuple)
        {
            let ack = view.u32(F::TCP + AT_ACK)?;
            // We have said nothing yet that it could acknowledge: whoever does not know our number is not the client.
            // SAFETY: a non-null element; one byte is written, which nobody else writes by now.
            unsafe {
                if (*shake).first_vip == ack {
                    (*shake).progress |= FINISHED;
                }
            }
        }
        if flags & SYN != 0 {
            view = View::new(ctx, F::TCP + MOST_HEADERS);
        }
        return Some(match flags & (SYN | ACK) {
            SYN => opening::<F>(ctx, &mut view, &tuple),
            BOTH => pair::complete::<F>(&mut view, &tuple),
            _ => Verdict::new(Reason::CutMiss, PASS),
        });
    };
    let Some(flow) = FLOWS.get_ptr_mut(entry.index) else {
        return Some(Verdict::new(Reason::CutMiss, PASS));
    };
    // SAFETY: a non-null element of the array. Other CPUs and userspace may write other fields at the same time; each
    // is read or written whole.
    let flow = unsafe { &mut *flow };
    let Some(tcp) = Tcp::read(&view, F::TCP) else {
        return Some(Verdict::new(Reason::CutMalformed, DROP));
    };
    view = View::new(ctx, F::TCP + tcp.length);
    Some(ours::<F>(ctx, &mut view, &tuple, &tcp, &entry, flow))
}

/// Verdict on a packet that cannot be rewritten: dropped if it belongs to a cut flow, since the kernel would answer it
/// with a reset.
#[inline(always)]
fn unless_ours<F: Family>(view: &View, ports: u32, reason: Reason) -> Verdict {
    let Some(tuple) = tuple::<F, _>(view, ports) else {
        return Verdict::new(Reason::CutMiss, PASS);
    };
    // SAFETY: only looked whether it is there.
    if unsafe { TUPLES.get(&tuple) }.is_some() {
        Verdict::new(reason, DROP)
    } else {
        Verdict::new(Reason::CutMiss, PASS)
    }
}

#[inline(always)]
fn ours<F: Family>(
    ctx: &TcContext,
    view: &mut View,
    tuple: &Tuple,
    tcp: &Tcp,
    entry: &Entry,
    flow: &mut Flow,
) -> Verdict {
    // SAFETY: aligned, whole; userspace changes it through its mapping.
    let now = unsafe { (&raw const flow.state).read_volatile() };
    // Never forwarded: a host that keeps the old connection in TIME_WAIT would accept it, past every route.
    if entry.way == 0 && tcp.has(SYN) && (now == state::CLOSING || now == state::CUT && flow.ended()) {
        supersede(tuple, flow);
        // SAFETY: aligned, whole; userspace writes it through its mapping.
        if unsafe { (&raw const flow.drained).read_volatile() } != CLOSED {
            return unseat::<F>(ctx, tcp, flow.owed_end.wrapping_sub(flow.d1));
        }
        opening::<F>(ctx, view, tuple);
        return Verdict::new(Reason::CutSuperseded, PASS);
    }
    if now != state::CUT {
        // The acknowledgement number is kept up to date for the resets that userspace sends.
        let (there, back) = if entry.way == 0 {
            (flow.d1, flow.d2)
        } else {
            (flow.d2, flow.d1)
        };
        let (number, ack) = (tcp.seq.wrapping_add(there), tcp.ack.wrapping_sub(back));
        if tcp.flags & (ACK | RST) == ACK && track::plausible(flow, entry.way == 0, number, ack) {
            let way = &mut flow.ways[(entry.way & 1) as usize];
            way.ack = seq::later(tcp.ack, way.ack);
        }
        return Verdict::new(Reason::CutClosing, DROP);
    }
    if tcp.has(SYN) {
        if entry.way == 1 {
            return share::syn(tcp, flow);
        }
        // A stray SYN does no harm to a listening socket. A client in earnest confirms the answer.
        bits::set(&mut flow.ways[0].flags, DOUBTED);
        opening::<F>(ctx, view, tuple);
        return Verdict::new(Reason::CutDoubted, PASS);
    }
    if entry.way == 0 && flow.ways[0].flags & DOUBTED != 0 && confirms(tuple, tcp) {
        // The client has given up the old connection.
        bits::set(&mut flow.ways[0].flags, RESET);
        tell(entry.index);
        supersede(tuple, flow);
        return Verdict::new(Reason::CutSuperseded, PASS);
    }
    if entry.way == 0 && is_of_another(tcp, flow) {
        supersede(tuple, flow);
        return Verdict::new(Reason::CutSuperseded, PASS);
    }
    if entry.way == 1 && share::wanted(ctx, tcp, flow) {
        return share::acknowledgement::<F>(ctx, tcp, flow);
    }
    // A link's MTU is asked no more often than its neighbour's address: what is dropped until then comes again.
    if let Some(ifindex) = forward::refresh::<F>(ctx, flow, entry.way)
        && let Some(mtu) = too_big::exceeded(ctx, ifindex)
        && too_big::may_be_told::<F>(view, flow)
    {
        return too_big::tell::<F>(ctx, tuple, mtu);
    }
    forward::packet::<F>(ctx, view, tcp, entry, flow)
}

/// Whether a packet confirms a new connection on the tuple of a flow that is over, whose SYN was answered by a cookie
/// before this program could see it. The kernel knows the cookie. Initial sequence numbers of one tuple go on by the
/// clock (RFC 6528), and so do cookies: both may lie in the old connection's windows, but behind its end.
#[inline(always)]
fn is_of_another(tcp: &Tcp, flow: &Flow) -> bool {
    // SAFETY: aligned, whole; userspace writes it through its mapping.
    let closed = unsafe { (&raw const flow.drained).read_volatile() } == CLOSED;
    if !closed || !flow.ended() || tcp.flags & (SYN | RST | ACK) != ACK {
        return false;
    }
    seq::after(tcp.seq, flow.ways[0].high)
        || !track::plausible(flow, true, tcp.seq.wrapping_add(flow.d1), tcp.ack.wrapping_sub(flow.d2))
}

/// Removes the client's entry of `TUPLES`: free for another flow.
#[inline(always)]
fn supersede(tuple: &Tuple, flow: &mut Flow) {
    bits::set(&mut flow.ways[0].flags, SUPERSEDED);
    let _ = TUPLES.remove(tuple);
}

/// Closes leg A's socket, which userspace is about to close and which would take the SYN for a stray one: the packet
/// becomes a reset at `expected`, the number of the first byte that the socket has not received, and the SYN comes
/// again behind it.
#[inline(never)]
fn unseat<F: Family>(ctx: &TcContext, tcp: &Tcp, expected: u32) -> Verdict {
    share::again(ctx);
    let mut view = View::now(ctx);
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
    Verdict::new(Reason::CutUnseated, PASS)
}

/// Whether routers may fragment the packet, and those that follow it.
#[inline(always)]
pub fn may_be_fragmented<F: Family>(view: &View) -> Option<bool> {
    const DONT_FRAGMENT: u16 = 0x4000;
    Some(F::VERSION == 4 && view.u16(ETH + 6)? & DONT_FRAGMENT == 0)
}

/// Whether a packet is the third one of a handshake with our listening socket.
#[inline(always)]
fn confirms(tuple: &Tuple, tcp: &Tcp) -> bool {
    // SAFETY: a non-null element, of which numbers are read.
    SHAKES.get_ptr(tuple).is_some_and(|shake| unsafe {
        (*shake).progress & ANSWERED != 0
            && tcp.seq == (*shake).first_client
            && tcp.has(ACK)
            && tcp.ack == (*shake).first_vip
    })
}

/// Records a client's SYN, if it is for one of our bindings.
#[inline(never)]
fn opening<F: Family>(ctx: &TcContext, view: &mut View, tuple: &Tuple) -> Verdict {
    remembered::<F>(ctx, view, tuple).unwrap_or(Verdict::NONE)
}

#[inline(always)]
fn remembered<F: Family>(ctx: &TcContext, view: &mut View, tuple: &Tuple) -> Option<Verdict> {
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
    let Some(offer) = handshake::offer(view, F::TCP, &tcp) else {
        return miss;
    };
    let may_fragment = may_be_fragmented::<F>(view)?;
    let shake = Shake {
        progress: if may_fragment { MAY_FRAGMENT } else { 0 },
        first_client: tcp.seq.wrapping_add(1),
        mss_client: offer.mss,
        scale_client: offer.scale,
        ..Shake::default()
    };
    let _ = SHAKES.insert(tuple, &shake, 0);
    let diff = handshake::without_ecn(view, F::TCP, &tcp)?;
    if diff != Default::default() {
        // SAFETY: the helper checks the offset. The view is not used any more.
        unsafe { bpf_l4_csum_replace(ctx.skb.skb, F::TCP + AT_CHECKSUM, 0, diff.for_kernel(), 0) };
    }
    Some(Verdict::new(Reason::CutOpening, PASS))
}
