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
        CutFlow, DirState,
        flow::{FlowRef, HANDED_OFF, LAST_REQUEST, MTU_EXCEEDED, NO_IP_ID, RESYNC, TS_DELTA_KNOWN, TS_DELTA_UNKNOWN},
        rewrite::{self, HeaderRewrite, TimestampRewrite},
        track::{self, FlowProgress},
    },
    net::{
        Buffer, Diff, Tcp, addresses, atomic,
        header::{AT_CHECKSUM, FIN, RST, SYN},
        seq,
    },
};

use super::{
    DROP, Verdict,
    maps::notify_ended,
    skb::{ETH_HEADER, Family, PacketView, TCP, context_field, monotonic_ms, tick},
};

const BPF_F_PSEUDO_HDR: u64 = 1 << 4;
/// Value of `tc_index` that marks a packet whose next hop is learned when it leaves.
pub const TC_INDEX_LEARN_HOP: u32 = 0x5b02;
/// Lifetime of a next hop, in ticks: about a second. Neighbours and routes change.
pub const HOP_LIFETIME_TICKS: u32 = 950;

/// A next hop: interface and Ethernet addresses, or an interface whose neighbour the kernel has to find.
pub struct NextHop {
    pub ifindex: u32,
    pub macs: Option<[u32; 3]>,
}

#[inline(never)]
pub fn forward_packet<F: Family>(
    ctx: &TcContext,
    view: &mut PacketView,
    tcp: &Tcp,
    entry: &FlowRef,
    flow: &mut CutFlow,
) -> Verdict {
    let dropped = Verdict::new(Reason::CutMalformed, DROP);
    let Some(options) = rewrite::options(view, F::TCP, tcp) else {
        return dropped;
    };
    let now = tick();
    let length = match F::payload_length(view, ctx.len()) {
        Some(all) if all >= tcp.length => all - tcp.length,
        _ => return dropped,
    };
    let from_client = entry.dir == 0;
    // The host gets another request than the client has sent: none of the client's bytes fits its place.
    if from_client && length > 0 && flow.dirs[0].flags & LAST_REQUEST != 0 {
        return Verdict::new(Reason::CutBehindRequest, DROP);
    }
    if (flow.dirs[0].flags | flow.dirs[1].flags) & RESYNC != 0 {
        track::resync(flow, from_client, tcp, length);
    }
    let (source, destination, mut change) = if from_client {
        (
            &raw const flow.local,
            &raw const flow.host_addr,
            HeaderRewrite {
                source: flow.ports_b as u16,
                destination: (flow.ports_b >> 16) as u16,
                seq_delta: flow.seq_delta_in,
                ack_delta: 0u32.wrapping_sub(flow.seq_delta_out),
                scale_from: flow.scale_a & 15,
                scale_to: flow.scale_b & 15,
                ack_ahead: 0,
            },
        )
    } else {
        (
            &raw const flow.vip,
            &raw const flow.client,
            HeaderRewrite {
                source: flow.ports_a as u16,
                destination: (flow.ports_a >> 16) as u16,
                seq_delta: flow.seq_delta_out,
                ack_delta: 0u32.wrapping_sub(flow.seq_delta_in),
                scale_from: flow.scale_b >> 4,
                scale_to: flow.scale_a >> 4,
                ack_ahead: ack_ahead(tcp, flow),
            },
        )
    };
    let seq = tcp.seq.wrapping_add(change.seq_delta);
    if from_client && length == 0 && tcp.flags & (SYN | FIN | RST) == 0 {
        change.seq_delta = change.seq_delta.wrapping_sub(seq_beyond_window(seq, flow));
    }
    // SAFETY: fields of the array's element, which do not change while the flow lives.
    let (source, destination) = unsafe { (&*source, &*destination) };
    let (fixed, host_fixed, t1, t2) = (
        flow.dirs[0].flags & TS_DELTA_KNOWN != 0,
        flow.dirs[1].flags & TS_DELTA_UNKNOWN == 0,
        flow.ts_delta_in,
        flow.ts_delta_out,
    );
    let mut stamps = if from_client {
        TimestampRewrite {
            val_delta: t1,
            is_known: fixed,
            // Several packets at once may each find that nothing is fixed yet: all compute nearly the same offset.
            first_val: if fixed {
                0
            } else {
                flow.dirs[1].ts_val.wrapping_add(monotonic_ms())
            },
            ecr_delta: host_fixed.then_some(0u32.wrapping_sub(t2)),
            written: None,
        }
    } else {
        TimestampRewrite {
            val_delta: t2,
            is_known: host_fixed,
            first_val: if host_fixed {
                0
            } else {
                flow.leg_a_clock().wrapping_add(monotonic_ms())
            },
            ecr_delta: fixed.then_some(0u32.wrapping_sub(t1)),
            written: None,
        }
    };
    let Some(l4) = rewrite::tcp(view, F::TCP, tcp, &options, &change, &mut stamps) else {
        return dropped;
    };
    let l3 = match write_addresses::<F>(view, Some(source), destination) {
        Some(Some(diff)) => diff,
        Some(None) => return Verdict::new(Reason::CutHops, DROP),
        None => return dropped,
    };
    if F::VERSION == 4 && !from_client && flow.dirs[1].flags & MTU_EXCEEDED != 0 {
        let is_super = context_field(ctx, |skb| unsafe { &raw const (*skb).gso_size }) != 0;
        match clear_df(view, tcp.seq, is_super) {
            Some(true) => {}
            Some(false) => atomic::set(&mut flow.dirs[1].flags, NO_IP_ID),
            None => return dropped,
        }
    }
    let ack = tcp.ack.wrapping_add(change.ack_delta);
    let believed = track::is_in_window(flow, from_client, seq, ack);
    let [first, second] = &mut flow.dirs;
    let (dir, peer) = if from_client {
        (first, &*second)
    } else {
        (second, &*first)
    };
    if from_client {
        if let Some(written) = stamps.written {
            if fixed {
                // Packets overtake each other. The packets of leg B's socket must not seem older than any of them.
                dir.ts_val = seq::later(written, dir.ts_val);
            } else {
                dir.ts_val = written;
                flow.ts_delta_in = stamps.val_delta;
                atomic::set(&mut dir.flags, TS_DELTA_KNOWN);
            }
        }
    } else if !host_fixed && stamps.written.is_some() {
        // The offset first: a CPU that finds the flag cleared uses the offset.
        flow.ts_delta_out = stamps.val_delta;
        atomic::clear(&mut dir.flags, TS_DELTA_UNKNOWN);
    }
    dir.last_seen = now;
    atomic::add(&mut dir.packets, 1);
    let noted = track::record(dir, peer, tcp, length, seq, ack, believed);
    if noted != FlowProgress::Open {
        notify_ended(entry.index);
    }
    let hop = cached_next_hop(dir, now);
    match redirect::<F>(ctx, view, &hop, F::TCP + AT_CHECKSUM, l3, l4) {
        Some(action) => Verdict::new(Reason::CutForwarded, action),
        None => dropped,
    }
}

/// Distance of a client's bare acknowledgement from the host's `RCV.NXT`. It may be beyond the host's window while
/// userspace still delivers, and after bytes that the host does not get. A host drops such a segment together with its
/// acknowledgement (RFC 9293, section 3.4). At `RCV.NXT` it is always acceptable.
#[inline(always)]
fn seq_beyond_window(seq: u32, flow: &CutFlow) -> u32 {
    // SAFETY: aligned, whole; userspace writes it through its mapping.
    let handoff_state = unsafe { (&raw const flow.handoff_state).read_volatile() };
    let expected = flow.dirs[1].ack;
    // Another balancer has carried this flow: the number is unknown until a packet of the host says it.
    let is_behind_request = flow.dirs[0].flags & LAST_REQUEST != 0 && flow.dirs[1].flags & RESYNC == 0;
    if (handoff_state < HANDED_OFF || is_behind_request) && seq::after(seq, expected) {
        seq.wrapping_sub(expected)
    } else {
        0
    }
}

/// Bytes of the client's stream that userspace has to deliver and the host has not acknowledged. Leg A's socket has
/// acknowledged them, and a client drops an acknowledgement that is too old (RFC 5961, section 5.2; `tcp_ack`,
/// "TOO_OLD_ACK").
#[inline(always)]
fn ack_ahead(tcp: &Tcp, flow: &CutFlow) -> u32 {
    // SAFETY: aligned, whole; userspace writes both through its mapping.
    let (handoff_state, handoff_end) = unsafe {
        (
            (&raw const flow.handoff_state).read_volatile(),
            (&raw const flow.handoff_end).read_volatile(),
        )
    };
    if handoff_state < HANDED_OFF && seq::after(handoff_end, tcp.ack) {
        handoff_end.wrapping_sub(tcp.ack)
    } else {
        0
    }
}

/// Writes the IP addresses of the other leg and decrements the hop limit. Without a `source` the sender stays. Updates
/// an IPv4 header's checksum, and returns the difference to the TCP pseudo-header: `Some(None)` where no hop is left.
#[inline(always)]
pub fn write_addresses<F: Family>(
    view: &mut PacketView,
    source: Option<&[u32; 4]>,
    destination: &[u32; 4],
) -> Option<Option<Diff>> {
    let hops = view.u8(F::HOPS)?;
    if hops <= 1 {
        return Some(None);
    }
    view.set_u8(F::HOPS, hops - 1)?;
    addresses::write_addresses(view, ETH_HEADER, u32::from(F::VERSION), source, destination, 1).map(Some)
}

/// Clears the DF bit of an IPv4 packet. A packet with DF may have no identification, and its fragments need one. False
/// for a super-packet without one: its segments would all get the same, or be refused (`inet_gso_segment`,
/// net/ipv4/af_inet.c).
#[inline(always)]
fn clear_df(view: &mut PacketView, seq: u32, is_super: bool) -> Option<bool> {
    const DONT_FRAGMENT: u16 = 0x4000;
    let (id, old) = (view.u16(ETH_HEADER + 4)?, view.u16(ETH_HEADER + 6)?);
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
    view.set_u16(ETH_HEADER + 4, new_id)?;
    view.set_u16(ETH_HEADER + 6, old & !DONT_FRAGMENT)?;
    let checksum = view.u16(ETH_HEADER + 10)?;
    view.set_u16(ETH_HEADER + 10, header.apply_to(checksum))?;
    Some(true)
}

/// Next hop of a direction while it is valid; otherwise its interface alone.
#[inline(always)]
pub fn cached_next_hop(dir: &DirState, now: u32) -> NextHop {
    let known = (now.wrapping_sub(dir.hop_expires) as i32) < 0;
    NextHop {
        ifindex: dir.hop_ifindex,
        macs: if known { Some(dir.macs) } else { None },
    }
}

/// Looks up the next hop of a direction again if it has expired, and returns its interface then. Without a neighbour,
/// or where the machine does not forward (the lookup is refused), the next hop stays expired. The kernel's output path
/// then finds the neighbour, and `cut_out` reads the address from the packet.
#[inline(always)]
pub fn refresh_next_hop<F: Family>(ctx: &TcContext, flow: &mut CutFlow, dir: u32) -> Option<u32> {
    let now = tick();
    if (now.wrapping_sub(flow.dirs[(dir & 1) as usize].hop_expires) as i32) < 0 {
        return None;
    }
    look_up_next_hop::<F>(ctx, flow, dir, now);
    Some(flow.dirs[(dir & 1) as usize].hop_ifindex)
}

#[inline(never)]
fn look_up_next_hop<F: Family>(ctx: &TcContext, flow: &mut CutFlow, dir: u32, now: u32) -> u32 {
    let (source, destination) = if dir == 0 {
        (&flow.local, &flow.host_addr)
    } else {
        (&flow.vip, &flow.client)
    };
    let dir = &mut flow.dirs[(dir & 1) as usize];
    const SUCCESS: i64 = 0;
    const NO_NEIGHBOUR: i64 = 7;
    // SAFETY: all-zero parameters are valid; fields of unions are set by family, as the kernel reads them.
    unsafe {
        let mut params: FibParams = core::mem::zeroed();
        params.family = F::ADDRESS_FAMILY;
        params.l4_protocol = TCP;
        params.ifindex = context_field(ctx, |skb| &raw const (*skb).ifindex);
        if F::ADDRESS_WORDS == 1 {
            params.__bindgen_anon_3.ipv4_src = source[3].to_be();
            params.__bindgen_anon_4.ipv4_dst = destination[3].to_be();
        } else {
            params.__bindgen_anon_3.ipv6_src = source.map(u32::to_be);
            params.__bindgen_anon_4.ipv6_dst = destination.map(u32::to_be);
        }
        let found = bpf_fib_lookup(ctx.as_ptr(), &raw mut params, size_of::<FibParams>() as i32, 0);
        if found == SUCCESS || found == NO_NEIGHBOUR {
            dir.hop_ifindex = params.ifindex;
        }
        if found != SUCCESS {
            return 0;
        }
        let [d0, d1, d2, d3, d4, d5] = params.dmac;
        let [s0, s1, s2, s3, s4, s5] = params.smac;
        dir.macs = [
            u32::from_be_bytes([d0, d1, d2, d3]),
            u32::from_be_bytes([d4, d5, s0, s1]),
            u32::from_be_bytes([s2, s3, s4, s5]),
        ];
        dir.hop_expires = now.wrapping_add(HOP_LIFETIME_TICKS);
        1
    }
}

/// Redirects the packet to the next hop. `l3` and `l4` are differences to the checksum at `checksum`: of the
/// pseudo-header, and of the rest. A checksum that hardware is to complete holds only the pseudo-header so far.
#[inline(always)]
pub fn redirect<F: Family>(
    ctx: &TcContext,
    view: &mut PacketView,
    hop: &NextHop,
    checksum: u32,
    l3: Diff,
    l4: Diff,
) -> Option<i32> {
    if let Some(macs) = hop.macs {
        view.set_u32(0, macs[0])?;
        view.set_u32(4, macs[1])?;
        view.set_u32(8, macs[2])?;
    }
    let skb = ctx.skb.skb;
    if F::VERSION == 6 {
        // A network card may have left a sum with the packet (CHECKSUM_COMPLETE). An IPv6 header has no checksum of its
        // own that makes up for its changes in that sum. The pseudo-header's helper corrects the sum for addresses,
        // which is right for IPv4 alone; the hop limit is one less.
        let mut header = l3;
        header.u16(1, 0);
        // SAFETY: a helper on the context's own packet; a packet without such a sum is left alone.
        unsafe { bpf_csum_update(skb, header.for_kernel() as u32) };
    }
    // SAFETY: helpers on the context's own packet, which is not read any more; `tc_index` is a writable field.
    let action = unsafe {
        bpf_l4_csum_replace(skb, checksum, 0, l4.for_kernel(), 0);
        bpf_l4_csum_replace(skb, checksum, 0, l3.for_kernel(), BPF_F_PSEUDO_HDR);
        if hop.macs.is_some() {
            bpf_redirect(hop.ifindex, 0)
        } else {
            (&raw mut (*skb).tc_index).write_volatile(TC_INDEX_LEARN_HOP);
            bpf_redirect_neigh(hop.ifindex, core::ptr::null_mut(), 0, 0)
        }
    };
    Some(action as i32)
}
