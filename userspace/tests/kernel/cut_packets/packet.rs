//! A TCP packet by its fields: written with the checksums that it must have, and read only if it has them.

use std::net::{IpAddr, SocketAddr};

/// Lengths of headers.
pub(crate) const ETH: usize = 14;
pub(crate) const IPV4: usize = 20;
pub(crate) const IPV6: usize = 40;
const FIXED: usize = 20;

pub(crate) const TCP: u8 = 6;
/// Fields that must stay as they were: DSCP, identification and "don't fragment" over IPv4, flow label over IPv6.
const V4_FIRST: [u8; 2] = [0x45, 0x28];
const V4_SECOND: [u8; 4] = [0x12, 0x34, 0x40, 0];
const V6_FIRST: [u8; 4] = [0x62, 0x81, 0x23, 0x45];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    /// Ethernet destination and source.
    pub(crate) macs: [u8; 12],
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    /// Time to live, or hop limit.
    pub(crate) hops: u8,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl Packet {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let ethertype = if self.to.is_ipv4() { [8, 0] } else { [0x86, 0xdd] };
        let tcp = self.tcp();
        [&self.macs[..], &ethertype, &self.ip(TCP, tcp.len()), &tcp].concat()
    }

    /// The IP header in front of `len` bytes of a protocol.
    pub(crate) fn ip(&self, protocol: u8, len: usize) -> Vec<u8> {
        let mut header = Vec::new();
        if self.to.is_ipv4() {
            header.extend(V4_FIRST);
            header.extend(((IPV4 + len) as u16).to_be_bytes());
            header.extend(V4_SECOND);
            header.extend([self.hops, protocol, 0, 0]);
        } else {
            header.extend(V6_FIRST);
            header.extend((len as u16).to_be_bytes());
            header.extend([protocol, self.hops]);
        }
        header.extend(octets(self.from.ip()));
        header.extend(octets(self.to.ip()));
        if self.to.is_ipv4() {
            let sum = checksum(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        header
    }

    /// The TCP header and the bytes after it.
    pub(crate) fn tcp(&self) -> Vec<u8> {
        assert!(self.options.len() <= 40 && self.options.len().is_multiple_of(4));
        let mut bytes = Vec::new();
        bytes.extend(self.from.port().to_be_bytes());
        bytes.extend(self.to.port().to_be_bytes());
        bytes.extend(self.seq.to_be_bytes());
        bytes.extend(self.ack.to_be_bytes());
        let words = (FIXED + self.options.len()) / 4;
        bytes.extend([(words as u8) << 4, self.flags]);
        bytes.extend(self.window.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(&self.options);
        bytes.extend(&self.payload);
        let sum = self.checksum(TCP, &bytes);
        bytes[16..18].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    /// The checksum of the part after this packet's IP header, pseudo-header included.
    pub(crate) fn checksum(&self, protocol: u8, bytes: &[u8]) -> u16 {
        let mut all = [octets(self.from.ip()), octets(self.to.ip())].concat();
        // The fields of both families add up to the same.
        all.extend([0, protocol]);
        all.extend((bytes.len() as u16).to_be_bytes());
        all.extend(bytes);
        checksum(&all)
    }

    /// Reads the output of `bytes`; anything else, such as a wrong checksum, is a failed test.
    #[track_caller]
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let v4 = bytes[ETH] >> 4 == 4;
        let (ip, hops) = if v4 { (IPV4, 8) } else { (IPV6, 7) };
        let tcp = &bytes[ETH + ip..];
        let u16_at = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        let u32_at = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
        let address = |nth: usize| -> IpAddr {
            if v4 {
                let at = ETH + 12 + 4 * nth;
                <[u8; 4]>::try_from(&bytes[at..at + 4]).unwrap().into()
            } else {
                let at = ETH + 8 + 16 * nth;
                <[u8; 16]>::try_from(&bytes[at..at + 16]).unwrap().into()
            }
        };
        let length = usize::from(tcp[12] >> 4) * 4;
        let packet = Self {
            macs: bytes[..12].try_into().unwrap(),
            from: SocketAddr::new(address(0), u16_at(0)),
            to: SocketAddr::new(address(1), u16_at(2)),
            hops: bytes[ETH + hops],
            seq: u32_at(4),
            ack: u32_at(8),
            flags: tcp[13],
            window: u16_at(14),
            options: tcp[FIXED..length].to_vec(),
            payload: tcp[length..].to_vec(),
        };
        assert_eq!(
            bytes,
            packet.bytes(),
            "a checksum is wrong, or what nobody changes has changed"
        );
        packet
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// The Internet checksum (RFC 1071).
pub(crate) fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
