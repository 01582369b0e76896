//! Sharing of the host's packets with leg B's socket, which needs the host's acknowledgements until all is handed off.
//!
//! The host's packet goes on to the client whole. The socket gets a copy of its header without data, which acknowledges
//! no more than the socket has sent. So the socket never acknowledges a byte that it does not own.

use aya_ebpf::{
    helpers::{bpf_clone_redirect, bpf_l4_csum_replace, bpf_skb_change_tail, bpf_skb_store_bytes},
    programs::TcContext,
};
use signalbox_common::{
    Reason,
    cut::{
        CutFlow,
        flow::{EARLY_FIN, FIRST_DATA_HELD, HANDED_OFF, HANDOFF_KNOWN, HANDOFF_UNKNOWN, PEER_FIN_ACKED},
        track,
    },
    net::{
        Buffer, Diff, Tcp, atomic,
        header::{ACK, AT_CHECKSUM, AT_FLAGS, FIN, RST, SYN, TCP_HEADER},
        seq,
    },
};

use super::{
    DROP, PASS, Verdict,
    skb::{ETH_HEADER, Family, PacketView, context_field},
};

const BPF_F_INGRESS: u64 = 1;
const BPF_F_RECOMPUTE_CSUM: u64 = 1;

/// Value of `tc_index` that marks a packet which comes again to be forwarded.
pub const TC_INDEX_CLONE: u32 = 0x5b01;

/// Whether leg B's socket needs this packet of the host's; marks the flow as handed off once the host has
/// acknowledged everything.
#[inline(always)]
pub fn socket_needs(ctx: &TcContext, tcp: &Tcp, flow: &mut CutFlow) -> bool {
    // SAFETY: aligned, whole; userspace writes both through its mapping, the end first.
    let (handoff_state, handoff_end) = unsafe {
        (
            (&raw const flow.handoff_state).read_volatile(),
            (&raw const flow.handoff_end).read_volatile(),
        )
    };
    if !tcp.has(ACK) {
        return false;
    }
    // The client's FIN that came before the cut is the last item to hand off.
    if flow.dirs[0].flags & EARLY_FIN != 0
        && flow.dirs[1].flags & PEER_FIN_ACKED == 0
        && handoff_state != HANDOFF_UNKNOWN
        && seq::reaches(tcp.ack, handoff_end)
        && is_from_host(tcp, flow)
        && is_handoff_current(flow, handoff_end)
    {
        atomic::set(&mut flow.dirs[1].flags, PEER_FIN_ACKED);
    }
    if handoff_state >= HANDED_OFF {
        return false;
    }
    if handoff_state == HANDOFF_KNOWN
        && seq::reaches(tcp.ack, handoff_end)
        && is_from_host(tcp, flow)
        && is_handoff_current(flow, handoff_end)
    {
        flow.mark_handed_off();
        return false;
    }
    if tcp.has(RST) {
        return false;
    }
    !is_clone(ctx)
}

/// Whether `handoff_end` is the current [`CutFlow::handoff_end`]. CPUs that reorder loads (Arm) may have read it before
/// the word beside it, and so before userspace wrote either. An exchange is a barrier there, and is needed once in a
/// flow's life.
#[inline(always)]
fn is_handoff_current(flow: &mut CutFlow, handoff_end: u32) -> bool {
    atomic::exchange(&mut flow.handoff_end, handoff_end, handoff_end)
}

/// Whether a packet can be from the host, by its numbers. Checked only while leg B's socket has something to deliver.
#[inline(always)]
fn is_from_host(tcp: &Tcp, flow: &CutFlow) -> bool {
    track::is_in_window(
        flow,
        false,
        tcp.seq.wrapping_add(flow.seq_delta_out),
        tcp.ack.wrapping_sub(flow.seq_delta_in),
    )
}

/// Sends a clone of the packet through this program again, to be forwarded; the original is left for the socket.
#[inline(always)]
pub fn loop_clone(ctx: &TcContext) {
    let skb = ctx.skb.skb;
    let ifindex = context_field(ctx, |skb| unsafe { &raw const (*skb).ifindex });
    // SAFETY: a writable field of the context; a helper that clones the packet.
    unsafe {
        (&raw mut (*skb).tc_index).write_volatile(TC_INDEX_CLONE);
        bpf_clone_redirect(skb, ifindex, BPF_F_INGRESS);
        (&raw mut (*skb).tc_index).write_volatile(0);
    }
}

/// Whether a packet was sent through this program again by [`loop_clone`].
#[inline(always)]
pub fn is_clone(ctx: &TcContext) -> bool {
    context_field(ctx, |skb| unsafe { &raw const (*skb).tc_index }) == TC_INDEX_CLONE
}

/// Verdict on a host's SYN or SYN-ACK of a cut flow. A host that repeats its SYN-ACK has not seen the socket's answer.
/// Once the socket is closed, the client must send that answer.
#[inline(never)]
pub fn on_host_syn<F: Family>(ctx: &TcContext, tcp: &Tcp, flow: &CutFlow) -> Verdict {
    let is_ours = tcp.ack == flow.isn_b && tcp.seq.wrapping_add(1) == flow.isn_host;
    // Without a socket, the kernel peek handles it: it still has the first data.
    if tcp.has(ACK) && (flow.handoff_state < HANDED_OFF || flow.dirs[0].flags & FIRST_DATA_HELD != 0) {
        return Verdict::new(Reason::CutToSocket, PASS);
    }
    if tcp.flags & (SYN | ACK | RST | FIN) == SYN | ACK && is_ours && clear_syn::<F>(ctx, tcp) {
        loop_clone(ctx);
    }
    Verdict::new(Reason::CutStray, DROP)
}

/// Makes a SYN-ACK a keep-alive probe (RFC 9293, section 3.8.4). The client has that number already, and its answer is
/// the acknowledgement that the host waits for.
#[inline(always)]
fn clear_syn<F: Family>(ctx: &TcContext, tcp: &Tcp) -> bool {
    let flags = tcp.flags & !SYN;
    let mut diff = Diff::default();
    diff.u16(u16::from(tcp.flags), u16::from(flags));
    // SAFETY: the helpers read the value and check the offsets.
    unsafe {
        bpf_skb_store_bytes(ctx.skb.skb, F::TCP + AT_FLAGS, (&raw const flags).cast(), 1, 0) == 0
            && bpf_l4_csum_replace(ctx.skb.skb, F::TCP + AT_CHECKSUM, 0, diff.for_kernel(), 0) == 0
    }
}

/// Sends a clone of the packet through this program again, to be forwarded, and cuts the original down to a bare
/// acknowledgement for leg B's socket.
#[inline(never)]
pub fn send_ack_to_socket<F: Family>(ctx: &TcContext, tcp: &Tcp, flow: &CutFlow) -> Verdict {
    let failed = Verdict::new(Reason::CutMalformed, DROP);
    loop_clone(ctx);
    // SAFETY: a helper on the context's own packet.
    if unsafe { bpf_skb_change_tail(ctx.skb.skb, F::TCP + TCP_HEADER, 0) } != 0 {
        return failed;
    }
    // Not more than the socket has sent, or it would refuse the acknowledgement (RFC 9293, section 3.10.7.4).
    let ack = if seq::after(tcp.ack, flow.snd_nxt_b) {
        flow.snd_nxt_b
    } else {
        tcp.ack
    };
    match write_bare_ack::<F>(ctx, tcp, flow.isn_host, ack) {
        Some(()) => Verdict::new(Reason::CutShared, PASS),
        None => failed,
    }
}

#[inline(always)]
fn write_bare_ack<F: Family>(ctx: &TcContext, tcp: &Tcp, seq: u32, ack: u32) -> Option<()> {
    let ports = u32::from(tcp.source) << 16 | u32::from(tcp.destination);
    let mut header = [
        ports,
        seq,
        ack,
        0x5000_0000 | u32::from(ACK) << 16 | u32::from(tcp.window),
        0,
    ];
    let view = PacketView::current(ctx);
    let mut sum = 0u64;
    let mut i = 0;
    while i < 2 * F::ADDRESS_WORDS {
        sum += u64::from(view.u32(F::SOURCE + 4 * i as u32)?);
        i += 1;
    }
    sum += u64::from(super::skb::TCP) + u64::from(TCP_HEADER);
    for word in header {
        sum += u64::from(word);
    }
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    header[4] = u32::from(!(sum as u16)) << 16;
    let length = if F::VERSION == 4 { 20 + TCP_HEADER } else { TCP_HEADER } as u16;
    let at = if F::VERSION == 4 {
        ETH_HEADER + 2
    } else {
        ETH_HEADER + 4
    };
    let old = view.u16(at)?;
    let mut diff = Diff::default();
    diff.u16(old, length);
    let checksum = if F::VERSION == 4 {
        diff.apply_to(view.u16(ETH_HEADER + 10)?)
    } else {
        0
    };
    let bytes = header.map(u32::to_be);
    store(ctx, F::TCP, &bytes)?;
    store(ctx, at, &length.to_be())?;
    if F::VERSION == 4 {
        store(ctx, ETH_HEADER + 10, &checksum.to_be())?;
    }
    Some(())
}

#[inline(always)]
fn store<T>(ctx: &TcContext, at: u32, value: &T) -> Option<()> {
    let len = size_of::<T>() as u32;
    let from = core::ptr::from_ref(value).cast();
    // SAFETY: the helper reads the value, and checks the offset.
    let ret = unsafe { bpf_skb_store_bytes(ctx.skb.skb, at, from, len, BPF_F_RECOMPUTE_CSUM) };
    (ret == 0).then_some(())
}
