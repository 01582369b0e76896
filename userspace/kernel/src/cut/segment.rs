//! TCP segments without payload, sent in the name of an end of a flow that has no sockets.

use std::net::{IpAddr, SocketAddr};

use signalbox_common::net::header::TCP_HEADER;
use socket2::Domain;

use crate::capabilities::raw_socket;

const TCP: u8 = 6;
const HOP_LIMIT: u8 = 64;

/// Segment without payload.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    /// Window field: the window in bytes, less the sender's scale.
    pub(crate) window: u16,
    /// Options: a multiple of four bytes.
    pub(crate) options: Vec<u8>,
}

impl Segment {
    /// Sends the segment. Takes CAP_NET_RAW.
    pub(crate) fn send(&self) -> std::io::Result<()> {
        let to = SocketAddr::new(self.to.ip(), 0);
        let socket = raw_socket(Domain::for_address(to))?;
        socket.send_to(&self.packet(), &to.into()).map(drop)
    }

    fn packet(&self) -> Vec<u8> {
        let Self { from, to, options, .. } = self;
        let mut tcp = Vec::with_capacity(TCP_HEADER as usize);
        tcp.extend(from.port().to_be_bytes());
        tcp.extend(to.port().to_be_bytes());
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        let length = TCP_HEADER as usize + options.len();
        tcp.extend([(length as u8) << 2, self.flags]);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(options);
        let mut pseudo = Vec::new();
        let mut ip = Vec::with_capacity(60);
        match (from.ip(), to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                // The kernel fills in length and checksum of the IPv4 header.
                ip.extend([0x45, 0, 0, 0, 0, 0, 0, 0, HOP_LIMIT, TCP, 0, 0]);
                ip.extend(from.octets());
                ip.extend(to.octets());
                pseudo.extend([from.octets(), to.octets()].concat());
            }
            (from, to) => {
                let octets = |ip: IpAddr| match ip {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                    IpAddr::V6(v6) => v6.octets(),
                };
                ip.extend([0x60, 0, 0, 0, 0, length as u8, TCP, HOP_LIMIT]);
                ip.extend(octets(from));
                ip.extend(octets(to));
                pseudo.extend([octets(from), octets(to)].concat());
            }
        }
        pseudo.extend([0, TCP, 0, length as u8]);
        pseudo.extend(&tcp);
        let sum = pseudo
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)))
            .sum::<u32>();
        let sum = (sum & 0xffff) + (sum >> 16);
        let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
        tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
        ip.extend(tcp);
        ip
    }
}

/// Timestamps option with two NOPs in front (RFC 7323, section 3.2), which echoes nothing.
pub(crate) fn timestamps_option(value: u32) -> Vec<u8> {
    [&[1, 1, 8, 10], &value.to_be_bytes()[..], &[0; 4]].concat()
}

/// Options of a SYN, as the kernel peek's program writes them: of equal length and order.
pub(crate) fn syn_options(mss: u16, scale: Option<u8>, has_sack: bool, timestamp: Option<u32>) -> Vec<u8> {
    let [high, low] = mss.to_be_bytes();
    let mut options = vec![2, 4, high, low];
    let sack = if has_sack { [4, 2] } else { [1, 1] };
    match timestamp {
        Some(value) => {
            options.extend(sack);
            options.extend(&timestamps_option(value)[2..]);
        }
        None if has_sack => options.extend([1, 1, 4, 2]),
        None => {}
    }
    options.extend(scale.into_iter().flat_map(|scale| [1, 3, 3, scale]));
    options
}

#[cfg(test)]
mod tests {
    use signalbox_common::net::header::{ACK, RST};

    use super::*;

    /// A packet, and whether TCP header and pseudo-header add up to nothing.
    fn made(from: &str, to: &str, timestamp: Option<u32>) -> (Vec<u8>, bool) {
        let segment = Segment {
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            seq: 0x0102_0304,
            ack: 5,
            flags: RST | ACK,
            window: 0x0607,
            options: timestamp.map(timestamps_option).unwrap_or_default(),
        };
        let packet = segment.packet();
        let addresses = if segment.from.is_ipv4() { 12 } else { 8 };
        let length = packet.len() - if segment.from.is_ipv4() { 20 } else { 40 };
        let words = packet[addresses..].chunks(2);
        let sum: u32 = words.map(|p| u32::from(p[0]) << 8 | u32::from(p[1])).sum();
        let sum = sum + u32::from(TCP) + length as u32;
        (packet, sum.is_multiple_of(0xffff))
    }

    #[test]
    fn a_syn_has_the_options_that_its_client_has_offered() {
        assert_eq!(syn_options(1460, None, false, None), [2, 4, 5, 0xb4]);
        let all = syn_options(1440, Some(7), true, Some(0x0a0b_0c0d));
        let expected = [2, 4, 5, 0xa0, 4, 2, 8, 10, 10, 11, 12, 13, 0, 0, 0, 0, 1, 3, 3, 7];
        assert_eq!(all, expected);
        assert_eq!(
            syn_options(536, Some(0), true, None),
            [2, 4, 2, 24, 1, 1, 4, 2, 1, 3, 3, 0]
        );
        assert_eq!(syn_options(536, None, false, Some(1))[4..8], [1, 1, 8, 10]);
    }

    #[test]
    fn checksum_and_lengths_are_right() {
        let (packet, is_right) = made("192.0.2.1:443", "198.51.100.2:50000", None);
        assert_eq!((packet.len(), packet[0], packet[32] >> 4), (40, 0x45, 5));
        assert_eq!(packet[34..36], [6, 7], "the window");
        assert!(is_right);
        let (packet, is_right) = made("[2001:db8::1]:443", "[2001:db8::2]:50000", Some(0x0a0b_0c0d));
        assert_eq!((packet.len(), packet[0], packet[5], packet[52] >> 4), (72, 0x60, 32, 8));
        assert_eq!(packet[60..], [1, 1, 8, 10, 10, 11, 12, 13, 0, 0, 0, 0]);
        assert!(is_right);
    }
}
