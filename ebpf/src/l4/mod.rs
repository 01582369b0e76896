//! Layer-4 services: two programs that run the same code (`signalbox_common::l4::decide`) on packets.
//!
//! `l4_xdp` runs in the network card's driver. `l4_tc` runs at the ingress of interfaces whose driver has no XDP, or
//! for which XDP would cost more than it gains. Minimum kernel: 5.12 (`BPF_ATOMIC`).

pub mod maps;
mod tc;
mod xdp;
