//! TC program of the kernel peek: SYNs are answered by cookies, and first data is routed to a host. From the host's
//! SYN-ACK on, a flow belongs to tier `cut`, whose program runs before this one and carries it.
//!
//! Decisions from bytes and numbers alone are in `signalbox_common::peek`. Minimum kernel: 5.17
//! (`bpf_loop`). From 6.9 on the kernel makes the sockets of connections that are passed up
//! (`bpf_sk_assign_tcp_reqsk`, net/core/filter.c).

mod burst;
mod choose;
mod claim;
mod client;
mod cookie_keys;
mod early;
mod first;
mod frame;
mod guesses;
mod hop;
mod host;
mod keep;
pub mod kernel_loop;
mod limits;
mod maps;
mod parts;
mod pass_up;
mod proxy;
mod read;
mod release;
mod repair;
mod segment;
mod settings;
mod waiting;
mod wildcard;

use aya_ebpf::{macros::classifier, programs::TcContext};
use signalbox_common::{
    Reason,
    net::{
        Buffer as _, Tcp,
        header::{ACK, RST, SYN},
    },
};

use crate::{
    count::count,
    cut::skb::{ETH_HEADER, Family, IPV4, IPV6, PacketView, TCP, V4, V6, context_field, read_tuple},
    packet_view::is_of_vlan,
};
use maps::PEEK_SEGMENT;
use segment::Segment;

/// Action that leaves the packet to the next program, or to the kernel (`TCX_NEXT`).
const PASS: i32 = -1;
const DROP: i32 = 2;
/// Value of `pkt_type` of a packet whose link-layer destination is this machine (include/uapi/linux/if_packet.h).
const PACKET_HOST: u32 = 0;

#[classifier]
pub fn peek_in(ctx: TcContext) -> i32 {
    let is_of_vlan = is_of_vlan(&ctx);
    // Frames for other machines, which an interface in promiscuous mode sees too.
    let pkt_type = context_field(&ctx, |skb| unsafe { &raw const (*skb).pkt_type });
    let protocol = context_field(&ctx, |skb| unsafe { &raw const (*skb).protocol });
    if is_of_vlan || pkt_type != PACKET_HOST {
        miss()
    } else if protocol == IPV4 {
        decide::<V4>(&ctx)
    } else if protocol == IPV6 {
        decide::<V6>(&ctx)
    } else {
        miss()
    }
}

/// Counts an exit and returns its action.
#[inline(always)]
fn exit(reason: Reason, action: i32) -> i32 {
    count(reason as u32);
    action
}

/// Leaves a packet alone.
#[inline(always)]
fn miss() -> i32 {
    exit(Reason::PeekMiss, PASS)
}

#[inline(always)]
fn decide<F: Family>(ctx: &TcContext) -> i32 {
    let Some(segment) = PEEK_SEGMENT.get_ptr_mut(0) else {
        return miss();
    };
    // SAFETY: this CPU's element.
    let segment = unsafe { &mut *segment };
    if parse::<F>(ctx, segment).is_none() {
        return miss();
    }
    match segment.tcp.flags & (SYN | ACK | RST) {
        SYN => client::on_syn::<F>(ctx, segment),
        ACK => client::on_segment::<F>(ctx, segment),
        flags if flags == SYN | ACK => host::on_syn_ack::<F>(ctx, segment),
        flags if flags & RST != 0 => waiting::on_reset(segment),
        _ => miss(),
    }
}

#[inline(always)]
fn parse<F: Family>(ctx: &TcContext, segment: &mut Segment) -> Option<()> {
    const MAX_TCP_HEADER: u32 = 60;
    let view = PacketView::new(ctx, F::TCP + MAX_TCP_HEADER);
    let is_plain = F::VERSION == 6 || (view.u8(ETH_HEADER)? == 0x45 && view.u16(ETH_HEADER + 6)? & 0x3fff == 0);
    if !is_plain || view.u8(F::PROTOCOL)? != TCP {
        return None;
    }
    segment.tcp = Tcp::read(&view, F::TCP)?;
    segment.tuple = read_tuple::<F, _>(&view, F::TCP)?;
    segment.payload = F::payload_length(&view, ctx.len())?.checked_sub(segment.tcp.length)?;
    Some(())
}
