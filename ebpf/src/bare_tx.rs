//! XDP program `bare_tx`: the least that a program can do with a packet. It is the baseline of measurements; signalbox
//! itself never attaches it.

use aya_ebpf::{bindings::xdp_action::XDP_TX, macros::xdp, programs::XdpContext};

#[xdp]
pub fn bare_tx(_ctx: XdpContext) -> u32 {
    XDP_TX
}
