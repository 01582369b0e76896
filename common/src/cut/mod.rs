//! Cut-through: a flow's packets are rewritten from one leg into the other and forwarded.
//!
//! A proxied connection is two TCP connections that carry the same two byte streams. So byte `n` has sequence number
//! `a` on leg A (client and balancer) and `a + d1` on leg B (balancer and host), with `d1` the same for every byte. The
//! other stream has its own `d2`. Any packet of one leg can therefore be written in the numbers of the other and
//! forwarded, at any time and in any order. Its meaning stays the same there. A receiver of a duplicate byte discards
//! it, as TCP does.
//!
//! The code of this module is generic over the packet's buffer ([`crate::net::Buffer`]): the TC programs run it on packets, host
//! tests on arrays.

pub mod flow;
pub mod handshake;
pub mod late;
pub mod moving;
pub mod pending;
pub mod rewrite;
pub mod track;

#[cfg(test)]
mod model;

pub use flow::{CutFlow, DirState, Handshake};
pub use pending::PendingFlow;
