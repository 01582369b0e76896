//! A TCP or UDP packet by its fields: written with the checksums that it must have, and read only if it has them.

use std::net::{IpAddr, SocketAddr};

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const ACK: u8 = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    /// Ethernet destination and source.
    pub(crate) macs: [u8; 12],
    pub(crate) vlan: Option<u16>,
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) hops: u8,
    pub(crate) protocol: u8,
    pub(crate) flags: u8,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) payload: Vec<u8>,
}

impl Packet {
    pub(crate) fn tcp(macs: [u8; 12], from: &str, to: &str, flags: u8) -> Self {
        Self {
            macs,
            vlan: None,
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            hops: 64,
            protocol: TCP,
            flags,
            seq: 1000,
            ack: if flags & ACK == 0 { 0 } else { 5001 },
            payload: if flags & (SYN | FIN | RST) == 0 {
                b"some bytes".to_vec()
            } else {
                Vec::new()
            },
        }
    }

    pub(crate) fn udp(macs: [u8; 12], from: &str, to: &str) -> Self {
        Self {
            protocol: UDP,
            seq: 0,
            ack: 0,
            payload: b"a datagram".to_vec(),
            ..Self::tcp(macs, from, to, 0)
        }
    }

    pub(crate) fn ethertype(&self) -> [u8; 2] {
        if self.to.is_ipv4() { [8, 0] } else { [0x86, 0xdd] }
    }

    /// The Ethernet header.
    pub(crate) fn ethernet(&self) -> Vec<u8> {
        let mut all = self.macs.to_vec();
        if let Some(vlan) = self.vlan {
            all.extend([0x81, 0]);
            all.extend(vlan.to_be_bytes());
        }
        all.extend(self.ethertype());
        all
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let l4 = self.l4();
        [self.ethernet(), self.ip(self.protocol, l4.len(), &[]), l4].concat()
    }

    /// The IP header in front of `len` bytes of a protocol, with IPv4 options or IPv6 extension headers.
    pub(crate) fn ip(&self, protocol: u8, len: usize, more: &[u8]) -> Vec<u8> {
        let mut header = Vec::new();
        if self.to.is_ipv4() {
            header.extend([0x40 | (5 + more.len() / 4) as u8, 0x28]);
            header.extend(((20 + more.len() + len) as u16).to_be_bytes());
            header.extend([0x12, 0x34, 0x40, 0, self.hops, protocol, 0, 0]);
        } else {
            header.extend([0x62, 0x81, 0x23, 0x45]);
            header.extend(((more.len() + len) as u16).to_be_bytes());
            header.extend([protocol, self.hops]);
        }
        header.extend(octets(self.from.ip()));
        header.extend(octets(self.to.ip()));
        header.extend(more);
        if self.to.is_ipv4() {
            let sum = checksum(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        header
    }

    /// Returns the payload of the IP packet.
    pub(crate) fn l4(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(self.from.port().to_be_bytes());
        bytes.extend(self.to.port().to_be_bytes());
        let at = if self.protocol == TCP {
            bytes.extend(self.seq.to_be_bytes());
            bytes.extend(self.ack.to_be_bytes());
            bytes.extend([5 << 4, self.flags, 0x10, 0, 0, 0, 0, 0]);
            16
        } else {
            bytes.extend(((8 + self.payload.len()) as u16).to_be_bytes());
            bytes.extend([0; 2]);
            6
        };
        bytes.extend(&self.payload);
        let mut sum = self.checksum(&bytes);
        if self.protocol == UDP && sum == 0 {
            sum = 0xffff;
        }
        bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    /// The checksum of the part after this packet's IP header, pseudo-header included.
    pub(crate) fn checksum(&self, bytes: &[u8]) -> u16 {
        checksum(&[&self.pseudo(bytes.len())[..], bytes].concat())
    }

    /// The pseudo-header of both families adds up to the same.
    pub(crate) fn pseudo(&self, len: usize) -> Vec<u8> {
        let mut all = [octets(self.from.ip()), octets(self.to.ip())].concat();
        all.extend([0, self.protocol]);
        all.extend((len as u16).to_be_bytes());
        all
    }

    /// Reads the output of `bytes`; anything else, such as a wrong checksum, is a failed test.
    #[track_caller]
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let tagged = bytes[12..14] == [0x81, 0];
        let l3 = if tagged { 18 } else { 14 };
        let v4 = bytes[l3] >> 4 == 4;
        assert_eq!(bytes[l3 - 2..l3], if v4 { [8, 0] } else { [0x86, 0xdd] }, "EtherType");
        let (ip, hops, protocol) = if v4 { (20, 8, 9) } else { (40, 7, 6) };
        let l4 = &bytes[l3 + ip..];
        let u16_at = |at: usize| u16::from_be_bytes([l4[at], l4[at + 1]]);
        let u32_at = |at: usize| u32::from_be_bytes(l4[at..at + 4].try_into().unwrap());
        let address = |nth: usize| -> IpAddr {
            if v4 {
                let at = l3 + 12 + 4 * nth;
                <[u8; 4]>::try_from(&bytes[at..at + 4]).unwrap().into()
            } else {
                let at = l3 + 8 + 16 * nth;
                <[u8; 16]>::try_from(&bytes[at..at + 16]).unwrap().into()
            }
        };
        let protocol = bytes[l3 + protocol];
        let is_tcp = protocol == TCP;
        let header = if is_tcp { 20 } else { 8 };
        let packet = Self {
            macs: bytes[..12].try_into().unwrap(),
            vlan: tagged.then(|| u16::from_be_bytes([bytes[14], bytes[15]])),
            from: SocketAddr::new(address(0), u16_at(0)),
            to: SocketAddr::new(address(1), u16_at(2)),
            hops: bytes[l3 + hops],
            protocol,
            flags: if is_tcp { l4[13] } else { 0 },
            seq: if is_tcp { u32_at(4) } else { 0 },
            ack: if is_tcp { u32_at(8) } else { 0 },
            payload: l4[header..].to_vec(),
        };
        assert_eq!(packet.bytes(), bytes, "{packet:?}");
        packet
    }
}

pub(crate) fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// The sum of words, folded.
pub(crate) fn sum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)))
        .sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

pub(crate) fn checksum(bytes: &[u8]) -> u16 {
    !sum(bytes)
}
