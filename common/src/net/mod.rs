//! Packets and their headers, for tier `cut`, the shield and layer-4 services alike.
//!
//! The code is generic over the packet's bytes ([`Buffer`]): the programs run it on packets, host tests on arrays.

pub mod addresses;
pub mod atomic;
pub mod bounded_loop;
pub mod buffer;
pub mod checksum;
pub mod header;
pub(crate) mod hide;
pub mod icmp;
pub mod ip;
pub mod options;
pub mod packet;
pub mod send;
pub mod seq;
pub mod target;
pub mod too_big;
pub mod tuple;

pub use bounded_loop::BoundedLoop;
pub use buffer::Buffer;
pub use checksum::Diff;
pub use header::Tcp;
pub use packet::ParsedHeaders;
pub use send::SendInfo;
pub use target::Target;
pub use tuple::{Key, Tuple};
