//! Clients whose connections the program routes, by list.

use crate::net::tuple::is_v4;

/// Entries of `PEEK_CLIENTS`.
pub const MAX_PEEK_CLIENTS: u32 = 65_536;

/// Key of a search in `PEEK_CLIENTS`, as the kernel lays it out (`struct bpf_lpm_trie_key_hdr`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PeekClientKey {
    /// Length of the key in bits.
    pub bits: u32,
    /// The key.
    pub client: PeekClient,
}

/// Client of a list: key of `PEEK_CLIENTS`, after its length in bits.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeekClient {
    /// Number of the list: [`PeekRoute::clients`](super::abi::PeekRoute::clients), or
    /// [`PeekBinding::clients`](super::abi::PeekBinding::clients).
    pub list: u16,
    /// Address family, 4 or 6: `::/0` is every IPv6 address, and no IPv4 address.
    pub family: u16,
    /// Address in network byte order, IPv4 mapped into IPv6.
    pub address: [u32; 4],
}

/// Bits of a [`PeekClient`] in front of the address, which are always matched exactly.
pub const CLIENT_FIXED_BITS: u32 = 32;

impl PeekClient {
    /// Key of an address, whose words are those of a [`Tuple`].
    #[inline(always)]
    #[must_use]
    pub const fn new(list: u16, words: &[u32; 4]) -> Self {
        Self {
            list,
            family: if is_v4(words) { 4 } else { 6 },
            address: [words[0].to_be(), words[1].to_be(), words[2].to_be(), words[3].to_be()],
        }
    }
}

/// Value of `PEEK_CLIENTS`: the program routes the client's connections. Another value, or none: userspace does.
pub const CLIENT_IS_ROUTED: u32 = 1;

const _: () = assert!(size_of::<PeekClientKey>() == 24);

// SAFETY: repr(C), no implicit padding, every bit pattern is a valid value.
#[cfg(feature = "user")]
unsafe impl aya::Pod for PeekClient {}
