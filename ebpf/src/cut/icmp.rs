//! ICMP errors about packets of cut flows, translated for the packet's sender.

use aya_ebpf::programs::TcContext;
use signalbox_common::{
    Reason,
    cut::{
        Buffer, Diff, Flow, Tuple, bits,
        flow::{DRAINED, NARROW, UNNUMBERED, state},
        icmp::{
            AT_CHECKSUM, HEADER, Quoted, V4_EXCEEDED, V4_TOO_BIG, V4_UNREACHABLE, V6_EXCEEDED, V6_TOO_BIG,
            V6_UNREACHABLE, quoted,
        },
        seq,
    },
};

use super::{
    DROP, PASS, Verdict,
    forward::{addresses, next_hop, send},
    maps::{FLOWS, TUPLES},
    share,
    skb::{ETH, Family, TCP, View, address, tick},
};

/// Handles "packet too big" from the way to a client. The host would lower the path MTU of the balancer's address, and
/// so of all clients, for ten minutes: instead routers may fragment this client's packets. `seq` is the packet's
/// number.
#[inline(always)]
fn too_big(flow: &mut Flow, seq: u32) -> Verdict {
    let (acknowledged, sent) = (flow.ways[0].ack, flow.ways[1].high.wrapping_add(flow.d2));
    if seq::reaches(seq, acknowledged) && !seq::after(seq, sent) {
        bits::set(&mut flow.ways[1].flags, NARROW);
    }
    Verdict::new(Reason::CutIcmp, DROP)
}

#[inline(never)]
pub fn error<F: Family>(ctx: &TcContext, view: &mut View) -> Verdict {
    translated::<F>(ctx, view).unwrap_or(Verdict::NONE)
}

#[inline(always)]
fn translated<F: Family>(ctx: &TcContext, view: &mut View) -> Option<Verdict> {
    let kind = view.u8(F::TCP)?;
    let about_a_packet = if F::VERSION == 4 {
        matches!(kind, V4_UNREACHABLE | V4_EXCEEDED)
    } else {
        matches!(kind, V6_UNREACHABLE | V6_TOO_BIG | V6_EXCEEDED)
    };
    // The quoted IP header, and behind it the first eight bytes of the TCP header.
    let inner = F::TCP + HEADER;
    let inner_tcp = inner + F::TCP - ETH;
    if !about_a_packet || view.u8(inner + F::PROTOCOL - ETH)? != TCP {
        return None;
    }
    if F::VERSION == 4 && view.u8(inner)? != 0x45 {
        return None;
    }
    let at_source = inner + F::SOURCE - ETH;
    let at_destination = at_source + 4 * F::WORDS as u32;
    // The quoted packet went the other way.
    let arriving = Tuple {
        source: address::<F, _>(view, at_destination)?,
        destination: address::<F, _>(view, at_source)?,
        ports: view.u32(inner_tcp)?.rotate_left(16),
    };
    let miss = Some(Verdict::new(Reason::CutMiss, PASS));
    // SAFETY: the value is copied at once.
    let Some(entry) = (unsafe { TUPLES.get(&arriving) }).copied() else {
        return miss;
    };
    let Some(flow) = FLOWS.get_ptr_mut(entry.index) else {
        return miss;
    };
    // SAFETY: a non-null element of the array, each field of which is read or written whole.
    let flow = unsafe { &mut *flow };
    if flow.state != state::CUT {
        return Some(Verdict::new(Reason::CutClosing, DROP));
    }
    // SAFETY: aligned, whole; userspace changes it through its mapping.
    let drained = unsafe { (&raw const flow.drained).read_volatile() };
    if entry.way == 1 && drained < DRAINED && !share::is_again(ctx) {
        // The error may be about a packet of leg B's socket, which must hear of it, too.
        share::again(ctx);
        return Some(Verdict::new(Reason::CutShared, PASS));
    }
    let is_told = flow.ways[1].flags & UNNUMBERED != 0;
    if F::VERSION == 4 && entry.way == 0 && kind == V4_UNREACHABLE && view.u8(F::TCP + 1)? == V4_TOO_BIG && !is_told {
        return Some(too_big(flow, view.u32(inner_tcp + 4)?));
    }
    // The quoted packet went out on this leg and came in on the other, from its peer: the peer gets the error.
    let (us, peer, ports, seq) = if entry.way == 0 {
        (&flow.local, &flow.backend, flow.ports_b, 0u32.wrapping_sub(flow.d2))
    } else {
        (&flow.vip, &flow.client, flow.ports_a, 0u32.wrapping_sub(flow.d1))
    };
    let mut diff = Diff::default();
    let mut header = Diff::default();
    let mut i = 0;
    while i < F::WORDS {
        let from = 4 - F::WORDS + i;
        let (source, destination) = (at_source + 4 * i as u32, at_destination + 4 * i as u32);
        header.u32(view.u32(source)?, peer[from]);
        header.u32(view.u32(destination)?, us[from]);
        view.set_u32(source, peer[from])?;
        view.set_u32(destination, us[from])?;
        i += 1;
    }
    diff.and(header);
    if F::VERSION == 4 {
        let old = view.u16(inner + 10)?;
        let new = header.applied(old);
        view.set_u16(inner + 10, new)?;
        diff.u16(old, new);
    }
    diff.and(quoted(view, inner_tcp, &Quoted { ports, seq })?);
    // The source address, a router's, stays: only the destination changes.
    let outer = match addresses::<F>(view, None, peer)? {
        Some(diff) => diff,
        None => return Some(Verdict::new(Reason::CutHops, DROP)),
    };
    if F::VERSION == 6 {
        diff.and(outer);
    }
    // Always computed by its sender, never left to hardware: so it is kept here.
    let checksum = view.u16(F::TCP + AT_CHECKSUM)?;
    view.set_u16(F::TCP + AT_CHECKSUM, diff.applied(checksum))?;
    let way = &flow.ways[(entry.way & 1) as usize];
    let hop = next_hop(way, tick());
    let nothing = Diff::default();
    let action = send::<F>(ctx, view, &hop, F::TCP + AT_CHECKSUM, nothing, nothing)?;
    Some(Verdict::new(Reason::CutIcmp, action))
}
