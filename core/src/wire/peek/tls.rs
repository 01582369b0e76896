//! SNI and ALPN of a ClientHello, put together from any number of TCP segments and TLS records.
//!
//! A hello with post-quantum key shares is about 2 kB: two segments, sometimes several records, and some clients send
//! it byte by byte. Only the whole hello gives an answer.

use std::borrow::Cow;
use std::net::IpAddr;

use tls_parser::{
    TlsExtension, TlsMessage, TlsMessageHandshake, parse_tls_client_hello_extension, parse_tls_message_handshake,
};

use super::{ClientRequest, Peek, PeekParseError};
use crate::wire::hostname::Hostname;

/// Most bytes, record headers included, that are looked at.
pub const MAX_HELLO_BYTES: usize = 16 * 1024;

//= https://www.rfc-editor.org/rfc/rfc8446#section-5.1
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const RECORD_HEADER: usize = 5;
const MAX_RECORD: usize = 1 << 14;

/// Longest method of a plain HTTP request that is told apart from other protocols.
const MAX_METHOD_BYTES: usize = 16;

const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;

/// Looks at all bytes received so far.
#[must_use]
pub fn peek(bytes: &[u8]) -> Peek {
    let window = &bytes[..bytes.len().min(MAX_HELLO_BYTES)];
    match handshake(window) {
        Ok(Some(message)) => hello(&message),
        Ok(None) if bytes.len() >= MAX_HELLO_BYTES => Peek::Invalid(PeekParseError::TooLarge),
        Ok(None) => Peek::Incomplete,
        Err(fault) => Peek::Invalid(fault),
    }
}

/// First handshake message, whole; `None` while it is not.
fn handshake(mut bytes: &[u8]) -> Result<Option<Cow<'_, [u8]>>, PeekParseError> {
    let mut message: Cow<'_, [u8]> = Cow::Borrowed(&[]);
    loop {
        match bytes.first() {
            None => return Ok(None),
            Some(&HANDSHAKE) => {}
            Some(_) if message.is_empty() => return not_tls(bytes).map_or(Ok(None), Err),
            Some(_) => return Err(PeekParseError::Malformed("another record inside the ClientHello")),
        }
        if bytes.get(1).is_some_and(|&major| major != 3) {
            return Err(PeekParseError::WrongProtocol);
        }
        let Some(header) = bytes.get(..RECORD_HEADER) else {
            return Ok(None);
        };
        let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if len == 0 || len > MAX_RECORD {
            return Err(PeekParseError::Malformed("a TLS record of impossible length"));
        }
        let payload = &bytes[RECORD_HEADER..bytes.len().min(RECORD_HEADER + len)];
        let whole = payload.len() == len;
        if message.is_empty() {
            message = Cow::Borrowed(payload);
        } else {
            message.to_mut().extend_from_slice(payload);
        }
        if message.first().is_some_and(|&kind| kind != CLIENT_HELLO) {
            return Err(PeekParseError::Malformed("the first message is not a ClientHello"));
        }
        if let Some(&[_, a, b, c]) = message.get(..4) {
            let total = 4 + usize::from(a) * 65_536 + usize::from(b) * 256 + usize::from(c);
            if total > MAX_HELLO_BYTES {
                return Err(PeekParseError::TooLarge);
            }
            if message.len() >= total {
                return Ok(Some(match message {
                    Cow::Borrowed(all) => Cow::Borrowed(&all[..total]),
                    Cow::Owned(mut all) => {
                        all.truncate(total);
                        Cow::Owned(all)
                    }
                }));
            }
        }
        if !whole {
            return Ok(None);
        }
        bytes = &bytes[RECORD_HEADER + len..];
    }
}

/// Fault of bytes that begin no record; `None` while they may still become a request of HTTP, which is told apart.
fn not_tls(bytes: &[u8]) -> Option<PeekParseError> {
    let method = bytes.iter().take_while(|b| b.is_ascii_uppercase()).count();
    match &bytes[method..] {
        _ if method == 0 || method > MAX_METHOD_BYTES => Some(PeekParseError::WrongProtocol),
        [] | [b' '] => None,
        [b' ', b'/' | b'*', ..] => Some(PeekParseError::PlainHttp),
        _ => Some(PeekParseError::WrongProtocol),
    }
}

/// Outcome of a whole ClientHello.
fn hello(message: &[u8]) -> Peek {
    let Ok((_, TlsMessage::Handshake(TlsMessageHandshake::ClientHello(hello)))) = parse_tls_message_handshake(message)
    else {
        return Peek::malformed("the ClientHello does not parse");
    };
    let mut asked = ClientRequest::default();
    let mut has_name = false;
    let mut rest = hello.ext.unwrap_or_default();
    while !rest.is_empty() {
        // Extensions are parsed by hand: a list parser that stops at the first bad extension would say "no SNI".
        let Some(&[t0, t1, l0, l1]) = rest.get(..4) else {
            return Peek::malformed("an extension is cut short");
        };
        let (kind, len) = (u16::from_be_bytes([t0, t1]), usize::from(u16::from_be_bytes([l0, l1])));
        let Some(extension) = rest.get(..4 + len) else {
            return Peek::malformed("an extension is cut short");
        };
        rest = &rest[4 + len..];
        match kind {
            //= https://www.rfc-editor.org/rfc/rfc8446#section-4.2
            //# There MUST NOT be more than one extension of the same type in a given extension block.
            SERVER_NAME if has_name => return Peek::malformed("two server name extensions"),
            SERVER_NAME => match parse_tls_client_hello_extension(extension) {
                Ok((_, TlsExtension::SNI(names))) => {
                    let Some((_, name)) = names.iter().find(|(kind, _)| kind.0 == 0) else {
                        return Peek::malformed("the server name extension names no host");
                    };
                    has_name = true;
                    match Hostname::parse(name) {
                        Ok(name) => asked.hostname = Some(name),
                        Err(_) if is_address_or_has_port(name) => {}
                        Err(_) => return Peek::malformed("the server name is not a host name"),
                    }
                }
                _ => return Peek::malformed("the server name extension does not parse"),
            },
            ALPN => match parse_tls_client_hello_extension(extension) {
                Ok((_, TlsExtension::ALPN(names))) => asked.alpn = names.into_iter().map(Box::from).collect(),
                _ => return Peek::malformed("the ALPN extension does not parse"),
            },
            _ => {}
        }
    }
    Peek::Found(asked)
}

/// Whether a server name that is no host name is an address, or has a port. RFC 6066 forbids both, and sloppy clients
/// send them. Such a client names no host, as it does for HAProxy and for maps of nginx's `$ssl_preread_server_name`.
fn is_address_or_has_port(name: &[u8]) -> bool {
    let is_address = |text: &str| {
        let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        inner.unwrap_or(text).parse::<IpAddr>().is_ok()
    };
    let Ok(text) = std::str::from_utf8(name) else {
        return false;
    };
    let is_with_port = |(host, port): (&str, &str)| {
        port.parse::<u16>().is_ok() && (is_address(host) || Hostname::parse(host.as_bytes()).is_ok())
    };
    is_address(text) || text.rsplit_once(':').is_some_and(is_with_port)
}

#[cfg(test)]
mod tests {
    use super::super::tests::check_all_prefixes;
    use super::*;

    /// ClientHello with the given extensions, as one handshake message.
    fn client_hello(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut ext = Vec::new();
        for (kind, body) in extensions {
            ext.extend(kind.to_be_bytes());
            ext.extend((body.len() as u16).to_be_bytes());
            ext.extend(body);
        }
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.push(0);
        body.extend([0, 2, 0x13, 0x01, 1, 0]);
        body.extend((ext.len() as u16).to_be_bytes());
        body.extend(ext);
        let mut message = vec![1, 0];
        message.extend((body.len() as u16).to_be_bytes());
        message.extend(body);
        message
    }

    fn sni(name: &str) -> (u16, Vec<u8>) {
        let len = name.len() as u16;
        let mut body = (len + 3).to_be_bytes().to_vec();
        body.push(0);
        body.extend(len.to_be_bytes());
        body.extend(name.as_bytes());
        (0, body)
    }

    /// Extension with a key share of X25519MLKEM768: 1216 bytes, 1124 more than anyone expected.
    fn post_quantum() -> (u16, Vec<u8>) {
        let mut body = (4u16 + 1216).to_be_bytes().to_vec();
        body.extend([0x11, 0xec]);
        body.extend(1216u16.to_be_bytes());
        body.extend([0xab; 1216]);
        (51, body)
    }

    fn alpn() -> (u16, Vec<u8>) {
        (16, b"\x00\x0c\x02h2\x08http/1.1".to_vec())
    }

    fn records(message: &[u8], sizes: &[usize]) -> Vec<u8> {
        let (mut out, mut rest) = (Vec::new(), message);
        for &size in sizes.iter().chain([&message.len()]) {
            let (now, later) = rest.split_at(size.min(rest.len()));
            if !now.is_empty() {
                out.extend([22, 3, 1]);
                out.extend((now.len() as u16).to_be_bytes());
                out.extend(now);
            }
            rest = later;
        }
        out
    }

    fn asked(outcome: Peek) -> ClientRequest {
        match outcome {
            Peek::Found(asked) => asked,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_post_quantum_hello_is_found_only_when_it_is_complete() {
        let message = client_hello(&[post_quantum(), sni("App1.Example.com"), alpn()]);
        assert!(message.len() > 1300);
        let outcome = asked(check_all_prefixes(&records(&message, &[]), peek));
        assert_eq!(outcome.hostname.unwrap().as_str(), "app1.example.com");
        assert_eq!(outcome.alpn, [Box::from(*b"h2"), Box::from(*b"http/1.1")]);
    }

    #[test]
    fn a_hello_in_three_records_is_put_together() {
        let message = client_hello(&[post_quantum(), sni("a.test")]);
        for sizes in [[1, 1], [3, 500], [700, 700]] {
            let outcome = asked(check_all_prefixes(&records(&message, &sizes), peek));
            assert_eq!(outcome.hostname.unwrap().as_str(), "a.test", "{sizes:?}");
        }
    }

    #[test]
    fn one_byte_records_work_too() {
        let message = client_hello(&[sni("a.test")]);
        assert_eq!(
            asked(check_all_prefixes(&records(&message, &vec![1; message.len()]), peek))
                .hostname
                .unwrap()
                .as_str(),
            "a.test"
        );
    }

    #[test]
    fn no_server_name_is_said_positively() {
        assert_eq!(
            peek(&records(&client_hello(&[alpn()]), &[])),
            Peek::Found(ClientRequest {
                hostname: None,
                alpn: vec![Box::from(*b"h2"), Box::from(*b"http/1.1")]
            })
        );
    }

    #[test]
    fn addresses_and_names_with_a_port_name_no_host() {
        let seen = |name: &str| peek(&records(&client_hello(&[sni(name)]), &[]));
        for name in [
            "fd00:1::1",
            "[fd00:1::1]",
            "[fd00:1::1]:443",
            "a.test:443",
            "10.1.0.1:443",
        ] {
            assert_eq!(seen(name), Peek::Found(ClientRequest::default()), "{name}");
        }
        for name in [
            "a.test:https",
            "a.test:70000",
            "[fd00:1::1",
            "a b:443",
            ":443",
            "a:b:443",
        ] {
            assert!(
                matches!(seen(name), Peek::Invalid(PeekParseError::Malformed(_))),
                "{name}"
            );
        }
    }

    #[test]
    fn data_other_than_tls_is_recognised_by_its_first_bytes() {
        let letters = [b'A'; MAX_METHOD_BYTES + 1];
        for garbage in [&letters[..], b"EHLO mail.test", b"SSH-2.0-x", b"\x00", b"\x16\x02\x00"] {
            assert_eq!(
                peek(garbage),
                Peek::Invalid(PeekParseError::WrongProtocol),
                "{garbage:?}"
            );
        }
    }

    #[test]
    fn a_plain_request_is_told_apart() {
        for request in ["GET / HTTP/1.1\r\n", "OPTIONS * ", "PRI * HTTP/2.0\r\n"] {
            assert_eq!(peek(request.as_bytes()), Peek::Invalid(PeekParseError::PlainHttp));
        }
        for beginning in ["G", "GET", "GET "] {
            assert_eq!(peek(beginning.as_bytes()), Peek::Incomplete, "{beginning}");
        }
    }

    #[test]
    fn broken_hellos_are_malformed_not_nameless() {
        let mut cut = sni("a.test");
        cut.1.truncate(4);
        for message in [
            client_hello(&[cut]),
            client_hello(&[sni("a b")]),
            client_hello(&[(0, vec![0, 0])]),
            client_hello(&[sni("a.test"), sni("b.test")]),
            client_hello(&[sni("fd00:1::1"), sni("b.test")]),
        ] {
            assert!(
                matches!(
                    peek(&records(&message, &[])),
                    Peek::Invalid(PeekParseError::Malformed(_))
                ),
                "{message:?}"
            );
        }
        let alert = [22, 3, 1, 0, 4, 2, 0, 0, 0];
        assert!(matches!(peek(&alert), Peek::Invalid(PeekParseError::Malformed(_))));
    }

    #[test]
    fn a_hello_over_the_limit_is_refused_as_soon_as_it_says_so() {
        assert_eq!(
            peek(&[22, 3, 1, 0x40, 0, 1, 0, 0x40, 0]),
            Peek::Invalid(PeekParseError::TooLarge)
        );
        let drip = records(&client_hello(&[(99, vec![0; 16_000])]), &[1; 16_000]);
        assert_eq!(peek(&drip), Peek::Invalid(PeekParseError::TooLarge));
    }
}
