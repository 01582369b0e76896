//! Target of a service or a guard: the address, port and protocol that it listens on.

use super::tuple::Key;

/// Words of `L4_PORT_BITMAP`: a bit for each port of TCP, then one for each of UDP.
pub const PORT_BITMAP_WORDS: u32 = 2 * 65_536 / 64;

/// Bit of a port in `L4_PORT_BITMAP`: one load shows whether a packet may be a service's, and most are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortBit {
    /// Index of the word in the map.
    pub word: u32,
    /// Number of the bit in the word.
    pub bit: u32,
}

impl PortBit {
    /// The bit of a port and protocol number.
    #[inline(always)]
    #[must_use]
    pub const fn new(port: u16, protocol: u8) -> Self {
        let half = if protocol == 6 { 0 } else { PORT_BITMAP_WORDS / 2 };
        Self {
            word: half + (port >> 6) as u32,
            bit: (port & 63) as u32,
        }
    }

    /// The bit of a packet's destination.
    #[inline(always)]
    #[must_use]
    pub const fn of(key: &Key) -> Self {
        Self::new(key.ports as u16, key.protocol as u8)
    }
}

/// Address, port and protocol that a service listens on: key of `L4_SERVICES`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    /// Destination address, IPv4-mapped where it is IPv4, words in host order.
    pub address: [u32; 4],
    /// Destination port in the upper half, protocol number in the lower.
    pub port_protocol: u32,
}

impl Target {
    /// A target from an address, a port and a protocol number.
    #[inline(always)]
    #[must_use]
    pub const fn new(address: [u32; 4], port: u16, protocol: u8) -> Self {
        Self {
            address,
            port_protocol: (port as u32) << 16 | protocol as u32,
        }
    }
}

const _: () = assert!(size_of::<Target>() == 20);

// SAFETY: repr(C), no implicit padding (the size is asserted above), every bit pattern is a valid value.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Target {}
