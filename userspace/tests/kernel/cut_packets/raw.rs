//! Packets that are no ordinary ones.

use super::outcome::Outcome;
use super::packet::{ETH, IPV4, IPV6, Packet, TCP, checksum};
use super::scene::{LEG_A, Scene};

/// The IPv6 extension header of a fragment.
const FRAGMENT: u8 = 44;

impl Scene {
    /// Bytes that are no ordinary packet come in.
    pub(crate) fn receives(&self, bytes: &[u8]) -> Outcome {
        self.programs.arrives(bytes, LEG_A)
    }
}

/// IPv4 options, this many words of them.
pub(crate) fn with_options(packet: &Packet, words: u8) -> Vec<u8> {
    let mut bytes = packet.bytes();
    let options = vec![1; usize::from(words) * 4];
    bytes.splice(ETH + IPV4..ETH + IPV4, options);
    bytes[ETH] += words;
    bytes[ETH + 3] += words * 4;
    bytes[ETH + 10..ETH + 12].fill(0);
    let sum = checksum(&bytes[ETH..ETH + IPV4 + usize::from(words) * 4]);
    bytes[ETH + 10..ETH + 12].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// The first fragment: ports and all, and more to come.
pub(crate) fn fragment(packet: &Packet) -> Vec<u8> {
    if packet.to.is_ipv6() {
        return extended(packet, FRAGMENT, &[0, 0, 0, 1, 0, 0, 0, 7]);
    }
    let mut bytes = packet.bytes();
    bytes[ETH + 6..ETH + 8].copy_from_slice(&[0x20, 0]);
    bytes[ETH + 10..ETH + 12].fill(0);
    let sum = checksum(&bytes[ETH..ETH + IPV4]);
    bytes[ETH + 10..ETH + 12].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// An IPv6 extension header in front of TCP; its first two bytes, next header and length, are filled in.
pub(crate) fn extended(packet: &Packet, kind: u8, header: &[u8]) -> Vec<u8> {
    let mut header = header.to_vec();
    header[0] = TCP;
    if kind != FRAGMENT {
        header[1] = (header.len() / 8 - 1) as u8;
    }
    chained(packet, kind, &header)
}

/// IPv6 extension headers in front of TCP, the first of this kind.
pub(crate) fn chained(packet: &Packet, kind: u8, headers: &[u8]) -> Vec<u8> {
    let mut bytes = packet.bytes();
    bytes[ETH + 6] = kind;
    bytes[ETH + 5] += headers.len() as u8;
    bytes.splice(ETH + IPV6..ETH + IPV6, headers.iter().copied());
    bytes
}
