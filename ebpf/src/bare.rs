//! XDP: the least that a program can do with a packet, to measure others by. signalbox itself never attaches it.

use aya_ebpf::{bindings::xdp_action::XDP_TX, macros::xdp, programs::XdpContext};

#[xdp]
pub fn bare_tx(_ctx: XdpContext) -> u32 {
    XDP_TX
}
