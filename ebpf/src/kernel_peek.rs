//! Object `kernel_peek`: `peek_in` (TC) routes connections by their first data, without a socket. Loaded by
//! `signalbox::kernel::Peek`; runs after `cut_in` at the same interfaces and ends with the process. `peek_hold` (socket
//! filter) keeps packets from sockets that userspace is making.
#![no_std]
#![no_main]
// For compiler barriers and atomic instructions; aya-ebpf uses the same feature.
#![feature(asm_experimental_arch)]

#[expect(dead_code, reason = "other objects write a log")]
mod clock;
mod count;
mod handshakes;
mod object;
mod packet_view;
#[expect(dead_code, reason = "this object has no parts")]
mod parts;
mod peek;

/// The parts of tier `cut` that both objects use.
mod cut {
    #[expect(dead_code, reason = "tier cut uses all of it")]
    pub mod skb;
}

/// Whether counters are pinned: none of this object's are.
const OUTLIVES_PROCESS: bool = false;
/// Whether this object's programs own the map of handshakes: object `cut_through` does.
const RECORDS_HANDSHAKES: bool = false;
/// Loops over parts of a packet.
use peek::kernel_loop::KernelLoop as PacketLoop;
