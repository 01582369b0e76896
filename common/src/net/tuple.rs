//! Addresses and ports of a packet, with and without its protocol: keys of connection tables.

use crate::hash;

/// Seed of the flow hash, equal on every balancer, so that they agree without messages.
const FLOW_HASH_SEED: u64 = 0x6c34_7369_676e_616c;

/// Whether an address is an IPv4-mapped one.
#[inline(always)]
#[must_use]
pub const fn is_v4(address: &[u32; 4]) -> bool {
    address[0] | address[1] == 0 && address[2] == 0xffff
}

/// Addresses and ports of an arriving packet, in host order: a word of an address is the number that its four bytes are
/// in the packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Source address, IPv4-mapped where it is IPv4.
    pub source: [u32; 4],
    /// Destination address, IPv4-mapped where it is IPv4.
    pub destination: [u32; 4],
    /// Source port in the upper half, destination port in the lower.
    pub ports: u32,
}

impl Tuple {
    /// An IPv4 address in its mapped form.
    #[inline(always)]
    #[must_use]
    pub const fn mapped(v4: u32) -> [u32; 4] {
        [0, 0, 0xffff, v4]
    }

    /// Tuple of packets of the opposite direction on the same leg.
    #[inline(always)]
    #[must_use]
    pub const fn reversed(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            ports: self.ports.rotate_left(16),
        }
    }
}

/// Addresses, ports and protocol of an arriving packet, in host order: key of the flow tables.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Key {
    /// Source address, IPv4-mapped where it is IPv4.
    pub source: [u32; 4],
    /// Destination address, IPv4-mapped where it is IPv4.
    pub destination: [u32; 4],
    /// Source port in the upper half, destination port in the lower.
    pub ports: u32,
    /// Protocol number.
    pub protocol: u32,
}

impl Key {
    /// Key with source and destination swapped.
    #[inline(always)]
    #[must_use]
    pub const fn reversed(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            ports: self.ports.rotate_left(16),
            protocol: self.protocol,
        }
    }
}

/// Hash of a flow's addresses, ports and protocol, as the client sends them.
#[inline(always)]
#[must_use]
pub const fn flow_hash(key: &Key) -> u64 {
    hash::mix(source_hash(key) ^ ((key.ports as u64) << 32 | key.protocol as u64))
}

/// Hash of a client's address.
#[inline(always)]
#[must_use]
pub const fn source_hash(key: &Key) -> u64 {
    let [a, b, c, d] = key.source;
    hash::mix(hash::mix(FLOW_HASH_SEED ^ ((a as u64) << 32 | b as u64)) ^ ((c as u64) << 32 | d as u64))
}

const _: () = assert!(size_of::<Tuple>() == 36);
const _: () = assert!(size_of::<Key>() == 40);

// SAFETY: repr(C), no implicit padding (the size is asserted above), every bit pattern is a valid value.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Tuple {}
// SAFETY: repr(C), no implicit padding (the size is asserted above), every bit pattern is a valid value.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Key {}

crate::layout!(Key {
    source,
    destination,
    ports,
    protocol,
});
