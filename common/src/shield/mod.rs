//! The shield: packet filtering and rate limits in front of listeners and layer-4 services.
//!
//! A packet to a guarded port is checked in this order: whether its source is denied for all ([`prefixes`]), whether it
//! is malformed ([`malformed`]), whether this guard denies its source, whether the source has packets and bytes left
//! ([`rate`]), and, if it begins a connection, whether its source may have another one. A SYN to a listener whose
//! backlog is full is answered with a cookie in its place ([`cookie`]). Packets that belong to no listener and no
//! service are dropped only if their headers cannot be read, and only where a guard drops malformed packets.
//!
//! The code is generic over the packet's bytes and over what the kernel provides ([`admit::ShieldMaps`]), as
//! [`crate::l4`] is. Minimum kernel: 5.12.

pub mod abi;
pub mod admit;
pub mod cookie;
pub mod malformed;
pub mod prefixes;
pub mod rate;
pub mod source;

pub use abi::{Bucket, ConnCountKey, Decision, DroppedPacket, Guard, Limit, Settings};
pub use admit::{ShieldMaps, ShieldScratch};
