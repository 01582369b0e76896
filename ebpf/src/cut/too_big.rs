//! "Packet too big": the program informs the sender of a packet that exceeds the next link's MTU, as a router would.
//!
//! The kernel informs the senders of packets that it routes. Packets of a cut flow are redirected, and would be lost at
//! a link whose MTU was lowered during the flow.

use aya_ebpf::{
    EbpfContext as _,
    bindings::bpf_adj_room_mode::BPF_ADJ_ROOM_MAC,
    helpers::{bpf_check_mtu, bpf_redirect, bpf_skb_adjust_room, bpf_skb_change_tail},
    programs::TcContext,
};
use signalbox_common::{
    Reason,
    cut::{CutFlow, flow::MTU_EXCEEDED},
    net::{
        Buffer, Tuple,
        too_big::{self, TooBig},
    },
};

use super::{
    DROP, Verdict,
    ingress::may_be_fragmented,
    skb::{ETH_HEADER, Family, PacketView, context_field},
};

/// Flag of `bpf_check_mtu`: measures a super-packet by the segments that it will be cut into.
const BPF_MTU_CHK_SEGS: u64 = 1;

/// MTU of the interface that a packet leaves by, if the packet is larger.
#[inline(always)]
pub fn exceeded_mtu(ctx: &TcContext, ifindex: u32) -> Option<u32> {
    let mut mtu = 0u32;
    // SAFETY: the helper writes the number.
    let outcome = unsafe { bpf_check_mtu(ctx.as_ptr(), ifindex, &raw mut mtu, 0, BPF_MTU_CHK_SEGS) };
    (outcome > 0).then_some(mtu)
}

/// Whether the sender wants the message: an IPv4 packet that routers may fragment is simply lost.
#[inline(always)]
pub fn accepts_too_big<F: Family>(view: &PacketView, flow: &CutFlow) -> bool {
    F::VERSION == 6 || (flow.dirs[1].flags & MTU_EXCEEDED == 0 && may_be_fragmented::<F>(view) == Some(false))
}

/// Turns the packet into the ICMP message, and sends that back.
#[inline(never)]
pub fn send_too_big<F: Family>(ctx: &TcContext, tuple: &Tuple, mtu: u32) -> Verdict {
    let action = write_too_big::<F>(ctx, tuple, mtu).unwrap_or(DROP);
    Verdict::new(Reason::CutTooBig, action)
}

#[inline(always)]
fn write_too_big<F: Family>(ctx: &TcContext, tuple: &Tuple, mtu: u32) -> Option<i32> {
    let version = u32::from(F::VERSION);
    let skb = ctx.skb.skb;
    let view = PacketView::current(ctx);
    let (a, b, c) = (view.u32(0)?, view.u32(4)?, view.u32(8)?);
    // SAFETY: helpers on the context's own packet.
    unsafe {
        if bpf_skb_change_tail(skb, ETH_HEADER + too_big::quoted_length(version), 0) != 0
            || bpf_skb_adjust_room(skb, too_big::headers_length(version) as i32, BPF_ADJ_ROOM_MAC as u32, 0) != 0
        {
            return None;
        }
    }
    let mut view = PacketView::new(
        ctx,
        ETH_HEADER + too_big::headers_length(version) + too_big::quoted_length(version),
    );
    // Ethernet addresses swapped: back to the sender.
    view.set_u32(0, b << 16 | c >> 16)?;
    view.set_u32(4, c << 16 | a >> 16)?;
    view.set_u32(8, a << 16 | b >> 16)?;
    let about = TooBig {
        version,
        source: &tuple.source,
        destination: &tuple.destination,
        mtu,
    };
    too_big::write(&mut view, ETH_HEADER, &about)?;
    // SAFETY: a helper without memory arguments.
    Some(unsafe { bpf_redirect(context_field(ctx, |skb| &raw const (*skb).ifindex), 0) as i32 })
}
