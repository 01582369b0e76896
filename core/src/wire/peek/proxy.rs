//! PROXY protocol, versions 1 and 2: the header that a trusted proxy in front of the balancer may send, and the one that
//! hosts get (haproxy.org, doc/proxy-protocol.txt).

use std::io;
use std::net::{IpAddr, SocketAddr};

use ppp::{HeaderResult, v1, v2};
use serde::Serialize;
use signalbox_common::peek::proxy::{CRC_BYTES, CRC32C_START, ConnectionId, TLV_BYTES, crc32c_step, part};

/// Most bytes of a header that are looked at; version 2 allows 64 KiB of extensions, which are not seen in practice.
pub const MAX_HEADER_BYTES: usize = 4096;

const V1_PREFIX: &[u8] = b"PROXY ";
const V1_MAX_BYTES: usize = 107;
const V2_PREFIX: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Outcome of looking for a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyHeader {
    /// The bytes may still become a header.
    Incomplete,
    /// The connection begins with the client's own bytes, without a header.
    Absent,
    /// A whole header is there.
    Header {
        /// Length of the header in bytes.
        len: usize,
        /// Connection that the proxy speaks for; `None` where the header names none (LOCAL, UNKNOWN, a unix socket).
        named: Option<ProxiedConnection>,
    },
    /// The header breaks the protocol.
    Malformed,
}

/// Connection to a proxy, as its header names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxiedConnection {
    /// Client that the proxy speaks for.
    pub client: SocketAddr,
    /// Address that the client connected to.
    pub destination: SocketAddr,
}

/// Looks at all bytes received so far.
#[must_use]
pub fn peek(bytes: &[u8]) -> ProxyHeader {
    let could_be = |prefix: &[u8]| {
        let len = prefix.len().min(bytes.len());
        bytes[..len] == prefix[..len]
    };
    let whole = |prefix: &[u8]| bytes.len() >= prefix.len();
    if could_be(V1_PREFIX) {
        if !whole(V1_PREFIX) {
            return ProxyHeader::Incomplete;
        }
        let window = &bytes[..bytes.len().min(V1_MAX_BYTES)];
        let Some(end) = window.windows(2).position(|w| w == b"\r\n") else {
            return if window.len() < V1_MAX_BYTES {
                ProxyHeader::Incomplete
            } else {
                ProxyHeader::Malformed
            };
        };
        return parse(&window[..end + 2]);
    }
    if could_be(V2_PREFIX) {
        let Some(&[_, _, _, _, _, _, _, _, _, _, _, _, _, _, l0, l1]) = bytes.get(..16) else {
            return ProxyHeader::Incomplete;
        };
        let len = 16 + usize::from(u16::from_be_bytes([l0, l1]));
        if len > MAX_HEADER_BYTES {
            return ProxyHeader::Malformed;
        }
        return bytes.get(..len).map_or(ProxyHeader::Incomplete, parse);
    }
    ProxyHeader::Absent
}

fn parse(header: &[u8]) -> ProxyHeader {
    let connection = |client: (IpAddr, u16), destination: (IpAddr, u16)| {
        Some(ProxiedConnection {
            client: client.into(),
            destination: destination.into(),
        })
    };
    let v4 = |a: v2::IPv4| {
        let (client, destination) = (a.source_address.into(), a.destination_address.into());
        connection((client, a.source_port), (destination, a.destination_port))
    };
    let v6 = |a: v2::IPv6| {
        let (client, destination) = (a.source_address.into(), a.destination_address.into());
        connection((client, a.source_port), (destination, a.destination_port))
    };
    let named = match HeaderResult::parse(header) {
        HeaderResult::V1(Ok(header)) => match header.addresses {
            v1::Addresses::Tcp4(a) => v4(a),
            v1::Addresses::Tcp6(a) => v6(a),
            v1::Addresses::Unknown => None,
        },
        HeaderResult::V2(Ok(header)) => match (header.command, header.addresses) {
            (v2::Command::Proxy, v2::Addresses::IPv4(a)) => v4(a),
            (v2::Command::Proxy, v2::Addresses::IPv6(a)) => v6(a),
            _ => None,
        },
        HeaderResult::V1(Err(_)) | HeaderResult::V2(Err(_)) => return ProxyHeader::Malformed,
    };
    ProxyHeader::Header {
        len: header.len(),
        named,
    }
}

/// TLVs of a header to hosts, beyond the addresses (section 2.2 of the protocol).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ProxyTlvs {
    /// `PP2_TYPE_AUTHORITY`: the name that the client has asked for.
    pub authority: bool,
    /// `PP2_TYPE_ALPN`: the protocol that the client's TLS has agreed upon. Known where that TLS ends here.
    pub alpn: bool,
    /// `PP2_TYPE_UNIQUE_ID`: the connection's id, which the access log names, too.
    pub unique_id: bool,
    /// `PP2_TYPE_CRC32C`: the header's checksum.
    pub crc32c: bool,
}

impl ProxyTlvs {
    /// TLVs of `proxy_protocol: v2`.
    pub const DEFAULT: Self = Self {
        authority: true,
        ..Self::NONE
    };
    /// No TLVs.
    pub const NONE: Self = Self {
        authority: false,
        alpn: false,
        unique_id: false,
        crc32c: false,
    };

    /// Each TLV alone, by its word in the configuration.
    pub const ALL: [(&'static str, Self); 4] = [
        ("authority", Self::DEFAULT),
        (
            "alpn",
            Self {
                alpn: true,
                ..Self::NONE
            },
        ),
        (
            "unique_id",
            Self {
                unique_id: true,
                ..Self::NONE
            },
        ),
        (
            "crc32c",
            Self {
                crc32c: true,
                ..Self::NONE
            },
        ),
    ];

    /// The TLVs of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self {
            authority: self.authority || other.authority,
            alpn: self.alpn || other.alpn,
            unique_id: self.unique_id || other.unique_id,
            crc32c: self.crc32c || other.crc32c,
        }
    }

    /// The header as bits of [`part`], as programs know it. They write none of the TLV `alpn`: TLS does not end there.
    #[must_use]
    pub const fn parts(self) -> u32 {
        part::HEADER
            | (part::AUTHORITY * self.authority as u32)
            | (part::UNIQUE_ID * self.unique_id as u32)
            | (part::CRC32C * self.crc32c as u32)
    }
}

/// Connection that a header tells a host about.
#[derive(Clone, Copy, Debug)]
pub struct ToldConnection<'a> {
    /// The client's address.
    pub client: SocketAddr,
    /// Address that the client connected to.
    pub destination: SocketAddr,
    /// Name that the client has asked for.
    pub name: Option<&'a str>,
    /// Protocol that the client's TLS has agreed upon.
    pub alpn: Option<&'a str>,
    /// Id of the connection.
    pub id: Option<ConnectionId>,
}

/// Builds a version 2 header for a host, with those of the TLVs whose values are known.
#[must_use]
pub fn v2_header(told: &ToldConnection<'_>, tlvs: ProxyTlvs) -> Vec<u8> {
    // The header cannot exceed its 16-bit length, as a host name is at most 253 bytes.
    try_v2_header(told, tlvs).unwrap_or_default()
}

fn try_v2_header(told: &ToldConnection<'_>, tlvs: ProxyTlvs) -> io::Result<Vec<u8>> {
    // Both addresses must be of one family: IPv4 is mapped where the other is IPv6.
    let (client, local) = match (told.client, told.destination) {
        same @ ((SocketAddr::V4(_), SocketAddr::V4(_)) | (SocketAddr::V6(_), SocketAddr::V6(_))) => same,
        (client, local) => {
            let map =
                |a: SocketAddr| SocketAddr::new(IpAddr::from(crate::wire::address::ipv4_mapped(a.ip())), a.port());
            (map(client), map(local))
        }
    };
    let mut builder = v2::Builder::with_addresses(
        v2::Version::Two | v2::Command::Proxy,
        v2::Protocol::Stream,
        (client, local),
    );
    if let Some(alpn) = told.alpn.filter(|_| tlvs.alpn) {
        builder = builder.write_tlv(v2::Type::ALPN, alpn.as_bytes())?;
    }
    if let Some(id) = told.id.filter(|_| tlvs.unique_id) {
        builder = builder.write_tlv(v2::Type::UniqueId, id.to_string().as_bytes())?;
    }
    if tlvs.crc32c {
        builder = builder.write_tlv(v2::Type::CRC32C, &[0; CRC_BYTES as usize])?;
    }
    let authority = told.name.filter(|_| tlvs.authority);
    if let Some(authority) = authority {
        builder = builder.write_tlv(v2::Type::Authority, authority.as_bytes())?;
    }
    let mut header = builder.build()?;
    if tlvs.crc32c {
        let crc = !header.iter().fold(CRC32C_START, |crc, byte| crc32c_step(crc, *byte));
        let end = header.len() - authority.map_or(0, |name| TLV_BYTES as usize + name.len());
        header[end - CRC_BYTES as usize..end].copy_from_slice(&crc.to_be_bytes());
    }
    Ok(header)
}

#[cfg(test)]
mod tests {
    use signalbox_common::peek::proxy::header_length;

    use super::*;

    fn header(len: usize, client: &str, destination: &str) -> ProxyHeader {
        let (client, destination) = (client.parse().unwrap(), destination.parse().unwrap());
        ProxyHeader::Header {
            len,
            named: Some(ProxiedConnection { client, destination }),
        }
    }

    const ID: ConnectionId = ConnectionId {
        seed: 0xa1b2_c3d4_e5f6_0718,
        number: 7,
    };

    fn told<'a>(client: &str, destination: &str) -> ToldConnection<'a> {
        ToldConnection {
            client: client.parse().unwrap(),
            destination: destination.parse().unwrap(),
            name: Some("a.test"),
            alpn: Some("h2"),
            id: Some(ID),
        }
    }

    #[test]
    fn tlvs_are_written_where_asked_for_and_known() {
        let all = ProxyTlvs {
            authority: true,
            alpn: true,
            unique_id: true,
            crc32c: true,
        };
        let v4 = told("192.0.2.1:5", "10.1.0.1:443");
        let header = v2_header(&v4, all);
        let tlvs = [
            &b"\x01\x00\x02h2"[..],
            b"\x05\x00\x20a1b2c3d4e5f607180000000000000007",
            b"\x03\x00\x04",
            &header[28 + 5 + 35 + 3..][..4],
            b"\x02\x00\x06a.test",
        ];
        assert_eq!(&header[28..], tlvs.concat());
        // The receiver sums the header with zeros in place of the sum.
        let mut zeroed = header.clone();
        zeroed[28 + 5 + 35 + 3..][..4].fill(0);
        let crc = !zeroed.iter().fold(CRC32C_START, |crc, byte| crc32c_step(crc, *byte));
        assert_eq!(tlvs[3], crc.to_be_bytes());
        // As long as the programs take it to be, which know no ALPN.
        let of_program = ToldConnection { alpn: None, ..v4 };
        let length = header_length(all.parts(), 12, 6) as usize;
        assert_eq!(v2_header(&of_program, all).len(), length);

        let unknown = ToldConnection {
            name: None,
            alpn: None,
            id: None,
            ..v4
        };
        let asks = ProxyTlvs { crc32c: false, ..all };
        assert_eq!(v2_header(&unknown, asks), v2_header(&v4, ProxyTlvs::NONE));
        assert_eq!(v2_header(&v4, ProxyTlvs::NONE).len(), 28);
    }

    #[test]
    fn version_1_at_every_prefix() {
        let line = b"PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\r\nGET / HTTP/1.1\r\n";
        let len = 45;
        for end in 0..len {
            assert_eq!(peek(&line[..end]), ProxyHeader::Incomplete, "{end}");
        }
        assert_eq!(peek(&line[..len]), header(len, "192.0.2.1:56324", "198.51.100.1:443"));
        assert_eq!(peek(line), header(len, "192.0.2.1:56324", "198.51.100.1:443"));
        assert_eq!(peek(b"PROXY UNKNOWN\r\n"), ProxyHeader::Header { len: 15, named: None });
    }

    #[test]
    fn version_2_as_we_write_it() {
        for (client, local) in [("192.0.2.1:5", "10.1.0.1:443"), ("[2001:db8::1]:5", "[fd00::1]:443")] {
            let bytes = v2_header(&told(client, local), ProxyTlvs::DEFAULT);
            for end in 0..bytes.len() {
                assert_eq!(peek(&bytes[..end]), ProxyHeader::Incomplete, "{end}");
            }
            assert_eq!(peek(&bytes), header(bytes.len(), client, local));
        }
        let mixed = v2_header(&told("192.0.2.1:5", "[fd00::1]:443"), ProxyTlvs::NONE);
        assert_eq!(
            peek(&mixed),
            header(mixed.len(), "[::ffff:192.0.2.1]:5", "[fd00::1]:443")
        );
    }

    #[test]
    fn ordinary_clients_have_no_header_and_broken_ones_say_so() {
        for plain in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"\x16\x03\x01",
            b"PRI * HTTP/2.0\r\n",
            b"PUT / HTTP/1.1",
        ] {
            assert_eq!(peek(plain), ProxyHeader::Absent, "{plain:?}");
        }
        assert_eq!(peek(b""), ProxyHeader::Incomplete);
        assert_eq!(peek(b"PROXY TCP4 nonsense\r\n"), ProxyHeader::Malformed);
        assert_eq!(
            peek(&[b"PROXY TCP4 ".as_slice(), &[b'1'; 200]].concat()),
            ProxyHeader::Malformed
        );
        assert_eq!(peek(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff"), ProxyHeader::Malformed);
    }
}
