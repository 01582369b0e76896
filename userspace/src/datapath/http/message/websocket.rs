//! WebSocket handshake with a host, for a client that asked for a WebSocket in HTTP/2 (RFC 8441).

use base64::prelude::{BASE64_STANDARD, Engine as _};
use signalbox_common::hash;
use signalbox_core::wire::http1::head::{RequestHead, ResponseHead};
use signalbox_tls::provider::sha1;

use crate::state::Shared;

/// Text that is hashed together with a key (RFC 6455, section 1.3).
const KEY_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// A unique handshake key: 128 bits from a counter and the process' secret.
pub(in crate::datapath::http) fn new_key(shared: &Shared) -> String {
    let high = hash::mix(shared.seed ^ shared.request_ids.ticket());
    let low = hash::mix(high ^ shared.seed.rotate_left(32));
    BASE64_STANDARD.encode([high.to_be_bytes(), low.to_be_bytes()].concat())
}

/// Answer to a key, which proves that the host understands WebSockets (RFC 6455, section 4.2.2).
pub(super) fn accept(key: &[u8]) -> String {
    BASE64_STANDARD.encode(sha1(&[key, KEY_SUFFIX].concat()))
}

/// Answer that the host must give to a request's key.
pub(in crate::datapath::http) fn expected_accept(head: &RequestHead, bytes: &[u8]) -> Option<String> {
    let mut keys = head.fields.values(bytes, "sec-websocket-key");
    keys.next().map(accept)
}

/// Whether an answer fits the handshake: a 101 with the right answer to the key, or no success status at all. The
/// client could not tell any other 2xx from a WebSocket.
pub(super) fn is_right(head: &ResponseHead, bytes: &[u8], expected: &str) -> bool {
    let has_only = |name, wanted: &[u8]| {
        let mut values = head.fields.values(bytes, name);
        values.next().is_some_and(|value| value.eq_ignore_ascii_case(wanted)) && values.next().is_none()
    };
    match head.status {
        101 => {
            let mut accepts = head.fields.values(bytes, "sec-websocket-accept");
            has_only("upgrade", b"websocket") && accepts.next() == Some(expected.as_bytes())
        }
        status => !(200..300).contains(&status),
    }
}

#[cfg(test)]
mod tests {
    use signalbox_core::wire::http1::limits::MessageLimits;
    use signalbox_core::wire::http1::parse;

    use super::*;

    /// Example of RFC 6455, section 1.3.
    const EXPECTED: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

    #[test]
    fn the_example_of_the_standard() {
        assert_eq!(accept(b"dGhlIHNhbXBsZSBub25jZQ=="), EXPECTED);
    }

    #[test]
    fn answers_that_are_no_websocket() {
        let right = |text: &str| {
            let bytes = format!("HTTP/1.1 {text}\r\n\r\n").into_bytes();
            let head = parse::response(&bytes, &MessageLimits::default()).unwrap().unwrap();
            is_right(&head, &bytes, EXPECTED)
        };
        let accepted = format!("Sec-WebSocket-Accept: {EXPECTED}");
        assert!(right(&format!("101 x\r\nUpgrade: WebSocket\r\n{accepted}")));
        assert!(!right(&format!("101 x\r\nUpgrade: h2c\r\n{accepted}")));
        assert!(!right(&format!("101 x\r\n{accepted}")));
        assert!(!right("101 x\r\nUpgrade: websocket"));
        let other_case = accepted.to_uppercase();
        assert!(!right(&format!("101 x\r\nUpgrade: websocket\r\n{other_case}")));
        assert!(!right("200 OK") && !right("204 x"));
        assert!(right("403 no") && right("302 x"));
    }
}
