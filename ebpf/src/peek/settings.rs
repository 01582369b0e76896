//! Settings that userspace writes, and options that clients are offered.

use aya_ebpf::helpers::bpf_ktime_get_ns;
use signalbox_common::{
    cut::flow::OFFERED_SCALE,
    peek::abi::{MAX_CLIENT_MSS, PeekConfig},
};

use super::{maps::PEEK_CONFIG, segment::segment_room};
use crate::{
    cut::skb::{Family, tick},
    packet_view::hide_from_compiler,
};

/// Window scale that clients are offered: that of the kernel's own sockets with buffers of its default size.
pub const OUR_SCALE: u8 = 10;

/// Whether the options have a window scale, as a factor: a choice by the bit would become a negation, which verifiers
/// before 6.17 do not follow.
#[inline(always)]
pub fn scale_factor(offered: u8) -> u8 {
    const { assert!(OFFERED_SCALE == 1) };
    hide_from_compiler(u32::from(offered & OFFERED_SCALE)) as u8
}

/// The settings.
#[inline(always)]
pub fn config() -> Option<&'static PeekConfig> {
    PEEK_CONFIG.get(0)
}

/// Whether userspace was alive a moment ago.
#[inline(always)]
pub fn is_alive(config: &PeekConfig) -> bool {
    config.is_alive(tick())
}

/// MSS that clients are offered.
#[inline(always)]
pub fn our_mss<F: Family>() -> Option<u16> {
    let mss = config()?.mss;
    let mss = if mss == 0 || mss > MAX_CLIENT_MSS {
        MAX_CLIENT_MSS
    } else {
        mss
    };
    Some(if F::VERSION == 6 { mss - 20 } else { mss } as u16)
}

/// Window that a client is offered: as many bytes as two segments to a host have.
#[inline(always)]
pub fn room_for_first_data<F: Family>(has_timestamps: bool) -> Option<u16> {
    Some(2 * segment_room(our_mss::<F>()?, has_timestamps))
}

/// `CLOCK_MONOTONIC` in units of 1024 ns, modulo 2^32.
#[inline(always)]
pub fn micros() -> u32 {
    // SAFETY: reads a clock.
    (unsafe { bpf_ktime_get_ns() } >> 10) as u32
}
