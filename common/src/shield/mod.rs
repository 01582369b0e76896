//! The shield: what is decided of a packet before a listener or a layer-4 service sees it.
//!
//! A packet to a guarded port is looked at in this order: whether its source is denied for all ([`prefixes`]), whether it
//! is possible at all ([`malformed`]), whether this guard denies its source, whether that has packets and bytes left
//! ([`rate`]), and, if it begins a connection, whether its source may have another one. A SYN to a listener whose backlog
//! is full is answered with a cookie in its place ([`cookie`]). What belongs to no listener and no service is never
//! touched.
//!
//! All of it is generic over the packet's bytes and over what the kernel provides ([`admit::Kernel`]), as
//! [`crate::l4`] is. Minimum kernel: 5.12.

pub mod abi;
pub mod admit;
pub mod cookie;
pub mod malformed;
pub mod prefixes;
pub mod rate;
pub mod source;

pub use abi::{Bucket, CrowdKey, Dropped, Guard, Judged, Limit, Settings};
pub use admit::{Kernel, Scratch};
