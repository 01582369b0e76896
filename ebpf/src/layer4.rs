//! Object `layer4`: `l4_xdp` and `l4_tc` forward the packets of layer-4 services, and run the shield. Loaded by
//! `signalbox::kernel::L4Kernel`; outlives the process.
#![no_std]
#![no_main]
// For one compiler barrier, in `packet_view`; aya-ebpf uses the same feature.
#![feature(asm_experimental_arch)]

mod clock;
mod count;
mod frame;
mod handshakes;
mod l4;
mod names;
mod object;
mod packet_view;
mod parts;
mod shield;

/// Whether counters are pinned: services and shield go on, and are counted, without a process.
const OUTLIVES_PROCESS: bool = true;
/// Whether this object's programs record handshakes. Object `cut_through` does. Where tier `cut` is loaded, userspace
/// replaces this object's map by that one's.
const RECORDS_HANDSHAKES: bool = false;
/// Loops over parts of a packet: these programs run on kernels without `bpf_loop` (5.17).
use signalbox_common::net::bounded_loop::CountedLoop as PacketLoop;
