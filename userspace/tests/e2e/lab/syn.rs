//! The frame of a SYN, with the options that Linux sends, whose port and sequence number are changed in its place.

use std::net::{Ipv4Addr, SocketAddrV4};

const ETHERNET: usize = 14;
const IP: usize = 20;
const TCP: usize = ETHERNET + IP;
const LENGTH: usize = TCP + 40;
/// MSS 1460, selective acknowledgements, timestamps, window scaling by 7.
const OPTIONS: [u8; 20] = [2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];

/// A frame of 74 bytes.
pub(crate) struct Syn {
    frame: [u8; LENGTH],
    /// The sum of the pseudo-header and of all constant fields.
    sum: u32,
}

impl Syn {
    /// From a forged sender to an address; `ends` are the Ethernet addresses of destination and source.
    pub(crate) fn new(ends: [[u8; 6]; 2], from: Ipv4Addr, to: SocketAddrV4) -> Self {
        let mut frame = [0; LENGTH];
        frame[..12].copy_from_slice(&ends.concat());
        frame[12..14].copy_from_slice(&[8, 0]);
        let ip = &mut frame[ETHERNET..TCP];
        let length = (LENGTH - ETHERNET) as u8;
        ip[..12].copy_from_slice(&[0x45, 0, 0, length, 0, 0, 0x40, 0, 64, 6, 0, 0]);
        ip[12..16].copy_from_slice(&from.octets());
        ip[16..].copy_from_slice(&to.ip().octets());
        let checksum = folded(sum(ip));
        ip[10..12].copy_from_slice(&checksum);
        let pseudo = sum(&ip[12..]) + 6 + (LENGTH - TCP) as u32;
        let tcp = &mut frame[TCP..];
        tcp[2..4].copy_from_slice(&to.port().to_be_bytes());
        tcp[12..16].copy_from_slice(&[10 << 4, 2, 0xfa, 0xf0]);
        tcp[20..].copy_from_slice(&OPTIONS);
        let sum = pseudo + sum(tcp);
        Self { frame, sum }
    }

    /// Makes another SYN of it.
    pub(crate) fn begin(&mut self, port: u16, sequence: u32) {
        let tcp = &mut self.frame[TCP..];
        tcp[..2].copy_from_slice(&port.to_be_bytes());
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        let changed = u32::from(port) + (sequence >> 16) + (sequence & 0xffff);
        tcp[16..18].copy_from_slice(&folded(self.sum + changed));
    }

    /// Returns the packet's place for the kernel. Valid until the packet is changed or dropped.
    pub(crate) fn part(&mut self) -> libc::iovec {
        libc::iovec {
            iov_base: self.frame.as_mut_ptr().cast(),
            iov_len: LENGTH,
        }
    }
}

fn sum(bytes: &[u8]) -> u32 {
    bytes
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
        .sum()
}

/// The Internet checksum of a sum (RFC 1071).
fn folded(mut sum: u32) -> [u8; 2] {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}
