//! ICMP errors about packets of cut flows, translated for the packet's sender.

use aya_ebpf::programs::TcContext;
use signalbox_common::{
    Reason,
    cut::{
        CutFlow,
        flow::{HANDED_OFF, MTU_EXCEEDED, NO_IP_ID, state},
    },
    net::{
        Buffer, Diff, Tuple, atomic,
        icmp::{AT_CHECKSUM, ICMP_HEADER, QuotedChange, V4_TOO_BIG, V4_UNREACHABLE, is_error, rewrite_quoted},
        seq,
    },
};

use super::{
    DROP, PASS, Verdict,
    forward::{cached_next_hop, redirect, write_addresses},
    maps::{CUT_CT, CUT_FLOWS},
    share,
    skb::{ETH_HEADER, Family, PacketView, TCP, read_address, tick},
};

/// Handles "packet too big" from the path to a client. The host would lower the path MTU of the balancer's address, and
/// so of all clients, for ten minutes. Instead, routers may fragment this client's packets. `seq` is the packet's
/// number.
#[inline(always)]
fn note_path_mtu(flow: &mut CutFlow, seq: u32) -> Verdict {
    let (acknowledged, sent) = (flow.dirs[0].ack, flow.dirs[1].snd_max.wrapping_add(flow.seq_delta_out));
    if seq::reaches(seq, acknowledged) && !seq::after(seq, sent) {
        atomic::set(&mut flow.dirs[1].flags, MTU_EXCEEDED);
    }
    Verdict::new(Reason::CutIcmp, DROP)
}

#[inline(never)]
pub fn on_icmp_error<F: Family>(ctx: &TcContext, view: &mut PacketView) -> Verdict {
    translate::<F>(ctx, view).unwrap_or(Verdict::UNHANDLED)
}

#[inline(always)]
fn translate<F: Family>(ctx: &TcContext, view: &mut PacketView) -> Option<Verdict> {
    let kind = view.u8(F::TCP)?;
    let version = u32::from(F::VERSION);
    // The quoted IP header, and after it the first eight bytes of the TCP header.
    let inner = F::TCP + ICMP_HEADER;
    let inner_tcp = inner + F::TCP - ETH_HEADER;
    if !is_error(version, kind) || view.u8(inner + F::PROTOCOL - ETH_HEADER)? != TCP {
        return None;
    }
    if F::VERSION == 4 && view.u8(inner)? != 0x45 {
        return None;
    }
    let at_source = inner + F::SOURCE - ETH_HEADER;
    let at_destination = at_source + 4 * F::ADDRESS_WORDS as u32;
    // The quoted packet went in the other direction.
    let arriving = Tuple {
        source: read_address::<F, _>(view, at_destination)?,
        destination: read_address::<F, _>(view, at_source)?,
        ports: view.u32(inner_tcp)?.rotate_left(16),
    };
    let miss = Some(Verdict::new(Reason::CutMiss, PASS));
    // SAFETY: the value is copied at once.
    let Some(entry) = (unsafe { CUT_CT.get(&arriving) }).copied() else {
        return miss;
    };
    let Some(flow) = CUT_FLOWS.get_ptr_mut(entry.index) else {
        return miss;
    };
    // SAFETY: a non-null element of the array, each field of which is read or written whole.
    let flow = unsafe { &mut *flow };
    if flow.state != state::CUT {
        return Some(Verdict::new(Reason::CutClosing, DROP));
    }
    // SAFETY: aligned, whole; userspace changes it through its mapping.
    let handoff_state = unsafe { (&raw const flow.handoff_state).read_volatile() };
    if entry.dir == 1 && handoff_state < HANDED_OFF && !share::is_clone(ctx) {
        // The error may be about a packet of leg B's socket, which must get it, too.
        share::loop_clone(ctx);
        return Some(Verdict::new(Reason::CutShared, PASS));
    }
    let is_told = flow.dirs[1].flags & NO_IP_ID != 0;
    if F::VERSION == 4 && entry.dir == 0 && kind == V4_UNREACHABLE && view.u8(F::TCP + 1)? == V4_TOO_BIG && !is_told {
        return Some(note_path_mtu(flow, view.u32(inner_tcp + 4)?));
    }
    // The quoted packet went out on this leg and came in on the other, from its peer: the peer gets the error.
    let (us, peer, ports, seq) = if entry.dir == 0 {
        (
            &flow.local,
            &flow.host_addr,
            flow.ports_b,
            0u32.wrapping_sub(flow.seq_delta_out),
        )
    } else {
        (
            &flow.vip,
            &flow.client,
            flow.ports_a,
            0u32.wrapping_sub(flow.seq_delta_in),
        )
    };
    let change = QuotedChange {
        source: peer,
        destination: us,
        ports,
        seq_delta: Some(seq),
    };
    let mut diff = rewrite_quoted(view, version, inner, inner_tcp, &change)?;
    // The source address, a router's, stays: only the destination changes.
    let outer = match write_addresses::<F>(view, None, peer)? {
        Some(diff) => diff,
        None => return Some(Verdict::new(Reason::CutHops, DROP)),
    };
    if F::VERSION == 6 {
        diff.merge(outer);
    }
    // Its sender always computes it and never leaves it to hardware, so it is updated here.
    let checksum = view.u16(F::TCP + AT_CHECKSUM)?;
    view.set_u16(F::TCP + AT_CHECKSUM, diff.apply_to(checksum))?;
    let dir = &flow.dirs[(entry.dir & 1) as usize];
    let hop = cached_next_hop(dir, tick());
    let nothing = Diff::default();
    let action = redirect::<F>(ctx, view, &hop, F::TCP + AT_CHECKSUM, nothing, nothing)?;
    Some(Verdict::new(Reason::CutIcmp, action))
}
