//! PROXY protocol, versions 1 and 2: the header that a trusted proxy in front of the balancer may send.

use std::net::{IpAddr, SocketAddr};

use ppp::{HeaderResult, v1, v2};

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

/// Builds a version 2 header for a host: the client's address, the address it connected to, and the name it asked for
/// (type 2, `PP2_TYPE_AUTHORITY`).
#[must_use]
pub fn v2_header(client: SocketAddr, local: SocketAddr, authority: Option<&str>) -> Vec<u8> {
    // Both addresses must be of one family: IPv4 is mapped where the other is IPv6.
    let (client, local) = match (client, local) {
        (SocketAddr::V4(_), SocketAddr::V4(_)) | (SocketAddr::V6(_), SocketAddr::V6(_)) => (client, local),
        _ => {
            let map =
                |a: SocketAddr| SocketAddr::new(IpAddr::from(crate::wire::address::ipv4_mapped(a.ip())), a.port());
            (map(client), map(local))
        }
    };
    let builder = v2::Builder::with_addresses(
        v2::Version::Two | v2::Command::Proxy,
        v2::Protocol::Stream,
        (client, local),
    );
    match authority {
        Some(authority) => builder.write_tlv(v2::Type::Authority, authority.as_bytes()),
        None => Ok(builder),
    }
    .and_then(v2::Builder::build)
    // The header cannot grow past its 16-bit length, as a host name is at most 253 bytes.
    .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(len: usize, client: &str, destination: &str) -> ProxyHeader {
        let (client, destination) = (client.parse().unwrap(), destination.parse().unwrap());
        ProxyHeader::Header {
            len,
            named: Some(ProxiedConnection { client, destination }),
        }
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
            let bytes = v2_header(client.parse().unwrap(), local.parse().unwrap(), Some("a.test"));
            for end in 0..bytes.len() {
                assert_eq!(peek(&bytes[..end]), ProxyHeader::Incomplete, "{end}");
            }
            assert_eq!(peek(&bytes), header(bytes.len(), client, local));
        }
        let mixed = v2_header("192.0.2.1:5".parse().unwrap(), "[fd00::1]:443".parse().unwrap(), None);
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
