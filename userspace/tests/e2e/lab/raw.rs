//! TCP packets by hand, as an attacker or a confused peer sends them.

use std::net::{IpAddr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};

use super::namespace::Ns;

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const ACK: u8 = 16;

/// A segment without options. Its sender must be an address of the namespace.
#[derive(Clone, Copy)]
pub(crate) struct Segment<'a> {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) payload: &'a [u8],
}

impl Segment<'_> {
    /// Sends it.
    pub(crate) fn send(&self, ns: &Ns) {
        let bytes = self.bytes(&[]);
        ns.run(|| {
            let socket = Socket::new(Domain::for_address(self.to), Type::RAW, Some(Protocol::TCP)).unwrap();
            socket.bind(&SocketAddr::new(self.from.ip(), 0).into()).unwrap();
            let to = SocketAddr::new(self.to.ip(), 0);
            assert_eq!(socket.send_to(&bytes, &to.into()).unwrap(), bytes.len());
        });
    }

    /// Sends it with a header of its own, from any address, and with TCP options. IPv4: the kernel fills in sums, and
    /// replaces a source of zeros.
    pub(crate) fn send_with_header(&self, ns: &Ns, options: &[u8]) {
        let segment = self.bytes(options);
        let mut packet = Vec::new();
        if self.to.is_ipv4() {
            // Not to be fragmented.
            packet.extend([0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 6, 0, 0]);
        } else {
            packet.extend([0x60, 0, 0, 0]);
            packet.extend((segment.len() as u16).to_be_bytes());
            packet.extend([6, 64]);
        }
        for end in [self.from, self.to] {
            match end.ip() {
                IpAddr::V4(ip) => packet.extend(ip.octets()),
                IpAddr::V6(ip) => packet.extend(ip.octets()),
            }
        }
        packet.extend(segment);
        let to = SocketAddr::new(self.to.ip(), 0);
        ns.run(|| {
            let raw = Some(Protocol::from(libc::IPPROTO_RAW));
            let socket = Socket::new(Domain::for_address(to), Type::RAW, raw).unwrap();
            assert_eq!(socket.send_to(&packet, &to.into()).unwrap(), packet.len());
        });
    }

    fn bytes(&self, options: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(self.from.port().to_be_bytes());
        bytes.extend(self.to.port().to_be_bytes());
        bytes.extend(self.seq.to_be_bytes());
        bytes.extend(self.ack.to_be_bytes());
        let words = 5 + options.len() as u8 / 4;
        bytes.extend([words << 4, self.flags, 0xff, 0xff, 0, 0, 0, 0]);
        bytes.extend(options);
        bytes.extend(self.payload);
        let sum = checksum(&[self.pseudo_header(bytes.len()), bytes.clone()].concat());
        bytes[16..18].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    fn pseudo_header(&self, len: usize) -> Vec<u8> {
        let mut header = Vec::new();
        for end in [self.from, self.to] {
            match end.ip() {
                IpAddr::V4(ip) => header.extend(ip.octets()),
                IpAddr::V6(ip) => header.extend(ip.octets()),
            }
        }
        // The fields of both families add up to the same.
        header.extend([0, 6]);
        header.extend((len as u16).to_be_bytes());
        header
    }
}

/// The Internet checksum (RFC 1071).
pub(crate) fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
