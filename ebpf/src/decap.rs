//! Object `decap`: `l4_decap` (XDP) runs on the hosts of services in mode `dsr-ipip`, where there is no tunnel device,
//! and removes the tunnel's header. Loaded by `signalbox unwrap`; stays until `signalbox detach`.
//!
//! The program logs nothing: no process is left to read its messages.
#![no_std]
#![no_main]
// For one compiler barrier, in `packet_view`; aya-ebpf uses the same feature.
#![feature(asm_experimental_arch)]

mod count;
#[expect(dead_code, reason = "layer4 writes the headers that this object removes")]
mod frame;
mod object;
#[expect(dead_code, reason = "the objects at TC use all of it")]
mod packet_view;

use aya_ebpf::{
    bindings::xdp_action::{XDP_ABORTED, XDP_PASS},
    helpers::bpf_xdp_adjust_head,
    macros::xdp,
    programs::XdpContext,
};
use signalbox_common::{Reason, net::Buffer};

use count::count;
use frame::{ETH_HEADER, IPV4, IPV6, TUNNEL_PROTOCOLS, ethertype};
use packet_view::PacketView;

/// Whether counters are pinned. Nothing reads this object's after a restart.
const OUTLIVES_PROCESS: bool = false;
/// Loops over parts of a packet, of which this program has none.
use signalbox_common::net::bounded_loop::CountedLoop as PacketLoop;

#[xdp]
pub fn l4_decap(ctx: XdpContext) -> u32 {
    match tunnel_header(&ctx) {
        Some((outer, version)) => decapsulate(&ctx, outer, version).unwrap_or(XDP_ABORTED),
        None => XDP_PASS,
    }
}

/// Length of a tunnel's outer header, and the inner packet's address family; `None` without a tunnel.
#[inline(always)]
fn tunnel_header(ctx: &XdpContext) -> Option<(u32, u32)> {
    let packet = PacketView::from_bounds(ctx.data(), ctx.data_end(), 0);
    let (protocol, length) = match packet.u16(12)? {
        // No options, no fragment.
        IPV4 if packet.u8(ETH_HEADER)? == 0x45 && packet.u16(ETH_HEADER + 6)? & 0x3fff == 0 => {
            (packet.u8(ETH_HEADER + 9)?, 20)
        }
        IPV6 => (packet.u8(ETH_HEADER + 6)?, 40),
        _ => return None,
    };
    let version = if protocol == TUNNEL_PROTOCOLS[0] {
        4
    } else if protocol == TUNNEL_PROTOCOLS[1] {
        6
    } else {
        return None;
    };
    (u32::from(packet.u8(ETH_HEADER + length)? >> 4) == version).then_some((length, version))
}

#[inline(always)]
fn decapsulate(ctx: &XdpContext, outer: u32, version: u32) -> Option<u32> {
    let packet = PacketView::from_bounds(ctx.data(), ctx.data_end(), 0);
    let c = packet.u32(8)?;
    let b = packet.u32(4)?;
    let a = packet.u32(0)?;
    // SAFETY: the helper checks the packet's length. No pointer into the packet is used again.
    if unsafe { bpf_xdp_adjust_head(ctx.ctx, outer as i32) } != 0 {
        return None;
    }
    let mut packet = PacketView::from_bounds(ctx.data(), ctx.data_end(), 0);
    packet.set_u16(12, ethertype(version))?;
    packet.set_u32(8, c)?;
    packet.set_u32(4, b)?;
    packet.set_u32(0, a)?;
    count(Reason::L4Decapsulated as u32);
    Some(XDP_PASS)
}
