//! A connection that is passed up, and whose socket userspace makes.

use super::abi::HEAD_ROOM;
use crate::cut::Handshake;
use crate::net::Tuple;

/// Bytes of `PEEK_PASSED_UP`: room for the first data of some thousand connections.
pub const PASSED_UP_RING_BYTES: u32 = 4 << 20;

/// A connection that is passed up: the beginning of a record of `PEEK_PASSED_UP`. The client's bytes follow at
/// [`PassedUp::BYTES`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassedUp {
    /// Tuple of the client's packets.
    pub client: Tuple,
    /// Handshake of the client with the program.
    pub handshake: Handshake,
    /// Window of the client's first data, as in its header.
    pub window: u32,
    /// Window that the client was offered, in bytes.
    pub room: u32,
}

impl PassedUp {
    /// Offset of the client's bytes in a record.
    pub const BYTES: usize = HEAD_ROOM;
}

const _: () = assert!(size_of::<PassedUp>() <= PassedUp::BYTES && align_of::<PassedUp>() == 4);

// SAFETY: repr(C), no implicit padding, every bit pattern is a valid value.
#[cfg(feature = "user")]
unsafe impl aya::Pod for PassedUp {}
