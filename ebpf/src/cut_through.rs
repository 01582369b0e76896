//! Object `cut_through`: `cut_in` and `cut_out` (TC) carry the flows of tier `cut`. Loaded by `signalbox::kernel::Cut`;
//! outlives the process.
#![no_std]
#![no_main]
// For one compiler barrier, in `packet_view`; aya-ebpf uses the same feature.
#![feature(asm_experimental_arch)]

mod clock;
mod count;
mod cut;
mod handshakes;
mod names;
mod object;
mod packet_view;
mod parts;

/// Whether counters are pinned: packets of cut flows are carried, and counted, without a process.
const OUTLIVES_PROCESS: bool = true;
/// Whether this object's programs record handshakes, and so own the map.
const RECORDS_HANDSHAKES: bool = true;
/// Loops over parts of a packet: these programs run on kernels without `bpf_loop` (5.17).
use signalbox_common::net::bounded_loop::CountedLoop as PacketLoop;
