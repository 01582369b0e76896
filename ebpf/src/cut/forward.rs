//! Forwarding of a cut flow's packets: rewritten for the other leg, and redirected.

use aya_ebpf::{
    EbpfContext as _,
    bindings::bpf_fib_lookup as FibParams,
    helpers::{bpf_csum_update, bpf_fib_lookup, bpf_l4_csum_replace, bpf_redirect, bpf_redirect_neigh},
    programs::TcContext,
};
use signalbox_common::{
    Reason,
    cut::{
        Buffer, Diff, Flow, Tcp, Way, bits,
        flow::{DRAINED, Entry, NARROW, STAMPS_FIXED, UNNUMBERED},
        header::{AT_CHECKSUM, FIN, RST, SYN},
        rewrite::{self, Change, Stamps},
        seq,
        track::{self, Noted},
    },
};

use super::{
    DROP, Verdict,
    maps::tell,
    skb::{ETH, Family, TCP, View, field, milliseconds, tick},
};

const BPF_F_PSEUDO_HDR: u64 = 1 << 4;
/// Value of `tc_index` that marks a packet whose next hop is learnt when it leaves.
pub const LEARN: u32 = 0x5b02;
/// Lifetime of a next hop, in ticks: about a second. Neighbours and routes change.
pub const HOP_TICKS: u32 = 950;

/// A next hop: interface and Ethernet addresses, or an interface whose neighbour the kernel has to find.
pub struct Hop {
    pub ifindex: u32,
    pub macs: Option<[u32; 3]>,
}

#[inline(never)]
pub fn packet<F: Family>(ctx: &TcContext, view: &mut View, tcp: &Tcp, entry: &Entry, flow: &mut Flow) -> Verdict {
    let dropped = Verdict::new(Reason::CutMalformed, DROP);
    let now = tick();
    let length = match F::payload(view, ctx.len()) {
        Some(all) if all >= tcp.length => all - tcp.length,
        _ => return dropped,
    };
    let from_client = entry.way == 0;
    let (source, destination, mut change) = if from_client {
        (
            &raw const flow.local,
            &raw const flow.backend,
            Change {
                source: flow.ports_b as u16,
                destination: (flow.ports_b >> 16) as u16,
                seq: flow.d1,
                ack: 0u32.wrapping_sub(flow.d2),
                scale_from: flow.scale_a & 15,
                scale_to: flow.scale_b & 15,
                answered_for: 0,
            },
        )
    } else {
        (
            &raw const flow.vip,
            &raw const flow.client,
            Change {
                source: flow.ports_a as u16,
                destination: (flow.ports_a >> 16) as u16,
                seq: flow.d2,
                ack: 0u32.wrapping_sub(flow.d1),
                scale_from: flow.scale_b >> 4,
                scale_to: flow.scale_a >> 4,
                answered_for: answered_for(tcp, flow),
            },
        )
    };
    let seq = tcp.seq.wrapping_add(change.seq);
    if from_client && length == 0 && tcp.flags & (SYN | FIN | RST) == 0 {
        change.seq = change.seq.wrapping_sub(ahead(seq, flow));
    }
    // SAFETY: fields of the array's element, which do not change while the flow lives.
    let (source, destination) = unsafe { (&*source, &*destination) };
    let (fixed, t1, t2) = (flow.ways[0].flags & STAMPS_FIXED != 0, flow.t1, flow.t2);
    let mut stamps = if from_client {
        Stamps {
            value: t1,
            fixed,
            // Of several packets at once each may find that nothing is fixed yet: all come to nearly the same.
            clock: if fixed {
                0
            } else {
                flow.ways[1].stamp.wrapping_add(milliseconds())
            },
            echo: Some(0u32.wrapping_sub(t2)),
            written: None,
        }
    } else {
        Stamps {
            value: t2,
            fixed: true,
            clock: 0,
            echo: fixed.then_some(0u32.wrapping_sub(t1)),
            written: None,
        }
    };
    let Some(l4) = rewrite::tcp(view, F::TCP, tcp, &change, &mut stamps) else {
        return dropped;
    };
    let l3 = match addresses::<F>(view, Some(source), destination) {
        Some(Some(diff)) => diff,
        Some(None) => return Verdict::new(Reason::CutHops, DROP),
        None => return dropped,
    };
    if F::VERSION == 4 && !from_client && flow.ways[1].flags & NARROW != 0 {
        let is_super = field(ctx, |skb| unsafe { &raw const (*skb).gso_size }) != 0;
        match fragmentable(view, tcp.seq, is_super) {
            Some(true) => {}
            Some(false) => bits::set(&mut flow.ways[1].flags, UNNUMBERED),
            None => return dropped,
        }
    }
    let ack = tcp.ack.wrapping_add(change.ack);
    let believed = track::plausible(flow, from_client, seq, ack);
    let [first, second] = &mut flow.ways;
    let (way, peer) = if from_client {
        (first, &*second)
    } else {
        (second, &*first)
    };
    if from_client {
        if let Some(written) = stamps.written {
            if fixed {
                // Packets overtake each other. What leg B's socket sends must not seem older than any of them.
                way.stamp = seq::later(written, way.stamp);
            } else {
                way.stamp = written;
                flow.t1 = stamps.value;
                bits::set(&mut way.flags, STAMPS_FIXED);
            }
        }
    }
    way.seen = now;
    bits::add(&mut way.packets, 1);
    let noted = track::note(way, peer, tcp, length, seq, ack, believed);
    if noted != Noted::Open {
        tell(entry.index);
    }
    let hop = next_hop(way, now);
    match send::<F>(ctx, view, &hop, F::TCP + AT_CHECKSUM, l3, l4) {
        Some(action) => Verdict::new(Reason::CutForwarded, action),
        None => dropped,
    }
}

/// Distance of a client's bare acknowledgement from the host's `RCV.NXT`. While userspace still delivers, it may be
/// beyond the host's window, and a host drops such a segment, acknowledgement and all (RFC 9293, section 3.4); at
/// `RCV.NXT` it is always acceptable.
#[inline(always)]
fn ahead(seq: u32, flow: &Flow) -> u32 {
    // SAFETY: aligned, whole; userspace writes it through its mapping.
    let drained = unsafe { (&raw const flow.drained).read_volatile() };
    let expected = flow.ways[1].ack;
    if drained < DRAINED && seq::after(seq, expected) {
        seq.wrapping_sub(expected)
    } else {
        0
    }
}

/// Bytes of the client's stream that userspace answers for and the host has not acknowledged. Leg A's socket has
/// acknowledged them, and a client drops an acknowledgement that is too old (RFC 5961, section 5.2; `tcp_ack`,
/// "TOO_OLD_ACK").
#[inline(always)]
fn answered_for(tcp: &Tcp, flow: &Flow) -> u32 {
    // SAFETY: aligned, whole; userspace writes both through its mapping.
    let (drained, owed) = unsafe {
        (
            (&raw const flow.drained).read_volatile(),
            (&raw const flow.owed_end).read_volatile(),
        )
    };
    if drained < DRAINED && seq::after(owed, tcp.ack) {
        owed.wrapping_sub(tcp.ack)
    } else {
        0
    }
}

/// Writes the IP addresses of the other leg and takes one hop away; without a `source` the sender stays. Updates an
/// IPv4 header's checksum, and returns the difference to the TCP pseudo-header: `Some(None)` where no hop is left.
#[inline(always)]
pub fn addresses<F: Family>(
    view: &mut View,
    source: Option<&[u32; 4]>,
    destination: &[u32; 4],
) -> Option<Option<Diff>> {
    let mut diff = Diff::default();
    let hops = view.u8(F::HOPS)?;
    if hops <= 1 {
        return Some(None);
    }
    let length = 4 * F::WORDS as u32;
    let mut i = 0;
    while i < F::WORDS {
        let from = 4 - F::WORDS + i;
        let (at_source, at_destination) = (F::SOURCE + 4 * i as u32, F::SOURCE + length + 4 * i as u32);
        if let Some(source) = source {
            diff.u32(view.u32(at_source)?, source[from]);
            view.set_u32(at_source, source[from])?;
        }
        diff.u32(view.u32(at_destination)?, destination[from]);
        view.set_u32(at_destination, destination[from])?;
        i += 1;
    }
    view.set_u8(F::HOPS, hops - 1)?;
    if F::VERSION == 4 {
        let mut header = diff;
        header.u16(u16::from(hops) << 8, u16::from(hops - 1) << 8);
        let checksum = view.u16(ETH + 10)?;
        view.set_u16(ETH + 10, header.applied(checksum))?;
    }
    Some(Some(diff))
}

/// Clears the DF bit of an IPv4 packet. A packet with DF may have no identification, and its fragments need one; false
/// for a super-packet without: its segments would all get the same, or be refused (`inet_gso_segment`,
/// net/ipv4/af_inet.c).
#[inline(always)]
fn fragmentable(view: &mut View, seq: u32, is_super: bool) -> Option<bool> {
    const DONT_FRAGMENT: u16 = 0x4000;
    let (id, old) = (view.u16(ETH + 4)?, view.u16(ETH + 6)?);
    if id == 0 && is_super {
        return Some(false);
    }
    let folded = (seq >> 16 ^ seq) as u16;
    let new_id = match (id, folded) {
        (0, 0) => 1,
        (0, folded) => folded,
        (id, _) => id,
    };
    let mut header = Diff::default();
    header.u16(id, new_id);
    header.u16(old, old & !DONT_FRAGMENT);
    view.set_u16(ETH + 4, new_id)?;
    view.set_u16(ETH + 6, old & !DONT_FRAGMENT)?;
    let checksum = view.u16(ETH + 10)?;
    view.set_u16(ETH + 10, header.applied(checksum))?;
    Some(true)
}

/// Next hop of a direction, while it is still good: its interface alone otherwise.
#[inline(always)]
pub fn next_hop(way: &Way, now: u32) -> Hop {
    let known = (now.wrapping_sub(way.hop_until) as i32) < 0;
    Hop {
        ifindex: way.hop_ifindex,
        macs: if known { Some(way.macs) } else { None },
    }
}

/// Looks the next hop of a direction up again, if it has expired, and returns its interface then. Without a neighbour,
/// or where the machine does not forward (the lookup is refused), it stays expired: the kernel's output path finds the
/// neighbour, and `cut_out` reads the address off the packet.
#[inline(always)]
pub fn refresh<F: Family>(ctx: &TcContext, flow: &mut Flow, way: u32) -> Option<u32> {
    let now = tick();
    if (now.wrapping_sub(flow.ways[(way & 1) as usize].hop_until) as i32) < 0 {
        return None;
    }
    look_up::<F>(ctx, flow, way, now);
    Some(flow.ways[(way & 1) as usize].hop_ifindex)
}

#[inline(never)]
fn look_up<F: Family>(ctx: &TcContext, flow: &mut Flow, way: u32, now: u32) -> u32 {
    let (source, destination) = if way == 0 {
        (&flow.local, &flow.backend)
    } else {
        (&flow.vip, &flow.client)
    };
    let way = &mut flow.ways[(way & 1) as usize];
    const SUCCESS: i64 = 0;
    const NO_NEIGHBOUR: i64 = 7;
    // SAFETY: all-zero parameters are valid; fields of unions are set by family, as the kernel reads them.
    unsafe {
        let mut params: FibParams = core::mem::zeroed();
        params.family = F::FIB_FAMILY;
        params.l4_protocol = TCP;
        params.ifindex = field(ctx, |skb| &raw const (*skb).ifindex);
        if F::WORDS == 1 {
            params.__bindgen_anon_3.ipv4_src = source[3].to_be();
            params.__bindgen_anon_4.ipv4_dst = destination[3].to_be();
        } else {
            params.__bindgen_anon_3.ipv6_src = source.map(u32::to_be);
            params.__bindgen_anon_4.ipv6_dst = destination.map(u32::to_be);
        }
        let found = bpf_fib_lookup(ctx.as_ptr(), &raw mut params, size_of::<FibParams>() as i32, 0);
        if found == SUCCESS || found == NO_NEIGHBOUR {
            way.hop_ifindex = params.ifindex;
        }
        if found != SUCCESS {
            return 0;
        }
        let [d0, d1, d2, d3, d4, d5] = params.dmac;
        let [s0, s1, s2, s3, s4, s5] = params.smac;
        way.macs = [
            u32::from_be_bytes([d0, d1, d2, d3]),
            u32::from_be_bytes([d4, d5, s0, s1]),
            u32::from_be_bytes([s2, s3, s4, s5]),
        ];
        way.hop_until = now.wrapping_add(HOP_TICKS);
        1
    }
}

/// Redirects the packet to the next hop. `l3` and `l4` are the differences, of the pseudo-header and of the rest, to
/// the checksum at `checksum`: one that hardware is to complete holds only the former yet.
#[inline(always)]
pub fn send<F: Family>(ctx: &TcContext, view: &mut View, hop: &Hop, checksum: u32, l3: Diff, l4: Diff) -> Option<i32> {
    if let Some(macs) = hop.macs {
        view.set_u32(0, macs[0])?;
        view.set_u32(4, macs[1])?;
        view.set_u32(8, macs[2])?;
    }
    let skb = ctx.skb.skb;
    if F::VERSION == 6 {
        // An IPv6 header has no checksum that would make up for its changes in the sum that a network card has left with
        // the packet (CHECKSUM_COMPLETE). For those of addresses the pseudo-header's helper corrects that sum, as is
        // right for IPv4 alone; the hop limit is one less.
        let mut header = l3;
        header.u16(1, 0);
        // SAFETY: a helper on the context's own packet; a packet without such a sum is left alone.
        unsafe { bpf_csum_update(skb, header.for_kernel() as u32) };
    }
    // SAFETY: helpers on the context's own packet, which is not looked at any more; `tc_index` is a writable field.
    let action = unsafe {
        bpf_l4_csum_replace(skb, checksum, 0, l4.for_kernel(), 0);
        bpf_l4_csum_replace(skb, checksum, 0, l3.for_kernel(), BPF_F_PSEUDO_HDR);
        if hop.macs.is_some() {
            bpf_redirect(hop.ifindex, 0)
        } else {
            (&raw mut (*skb).tc_index).write_volatile(LEARN);
            bpf_redirect_neigh(hop.ifindex, core::ptr::null_mut(), 0, 0)
        }
    };
    Some(action as i32)
}
