//! Steering: which listening socket gets a new connection to an address and port.
//!
//! `sk_lookup` looks the packet's destination up in a longest-prefix-match trie keyed by port and address, and
//! assigns the connection to a listening socket of ours. Minimum kernel: 5.9 (`net/core/filter.c`, `sk_lookup`).

/// Bits of a [`SteerKey`] before the address: port and family are always matched exactly.
pub const STEER_FIXED_BITS: u32 = 32;

/// Slot of the socket that gets IPv4 connections. Any member of its reuseport group will do: the kernel distributes
/// connections from there.
///
/// One socket cannot get both: binding an IPv6 socket to anything but `::` makes it IPv6-only (`net/ipv6/af_inet6.c`,
/// `__inet6_bind`), and `::` could be reached from outside.
pub const SLOT_V4: u32 = 0;

/// Slot of the socket that gets IPv6 connections.
pub const SLOT_V6: u32 = 1;

/// Most listening sockets in the `STEER_LISTENERS` sockmap.
pub const MAX_LISTENER_SLOTS: u32 = 64;

/// Most address:port or prefix:port bindings.
pub const MAX_BINDINGS: u32 = 16_384;

/// Most listeners that are counted one by one.
pub const MAX_LISTENERS: u32 = 256;

/// The data part of the LPM key: port and family, then address, IPv4 written as `::ffff:a.b.c.d`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SteerKey {
    /// Destination port, network byte order.
    pub port: [u8; 2],
    /// Address family, 4 or 6: `::/0` is every IPv6 address, and no IPv4 one.
    pub family: u8,
    /// Always zero.
    pub _pad: u8,
    /// Destination address, network byte order, IPv4-mapped where it is IPv4.
    pub addr: [u8; 16],
}

impl SteerKey {
    /// A key from a port in host order, and a family (4 or 6) with its address in network order.
    #[inline(always)]
    #[must_use]
    pub const fn new(port: u16, family: u8, addr: [u8; 16]) -> Self {
        Self {
            port: port.to_be_bytes(),
            family,
            _pad: 0,
            addr,
        }
    }

    /// An IPv4 address (network order bytes) in its mapped form.
    #[inline(always)]
    #[must_use]
    pub const fn mapped(v4: [u8; 4]) -> [u8; 16] {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, v4[0], v4[1], v4[2], v4[3]]
    }
}

/// Listener and socket slot of a bound destination: value of `STEER_BINDINGS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteerValue {
    /// Index of the listener in the running configuration, for the per-listener counter.
    pub listener: u32,
    /// Slot of `STEER_LISTENERS` that holds a socket of the reuseport group.
    pub slot: u32,
}

const _: () = assert!(size_of::<SteerKey>() == 20);
const _: () = assert!(size_of::<SteerValue>() == 8);

// SAFETY: both are repr(C), have no implicit padding and every bit pattern is a valid value.
#[cfg(feature = "user")]
unsafe impl aya::Pod for SteerKey {}
// SAFETY: as above.
#[cfg(feature = "user")]
unsafe impl aya::Pod for SteerValue {}
