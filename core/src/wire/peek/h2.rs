//! HTTP/2 with prior knowledge (RFC 9113, section 3.3): the `:authority` of a connection's first request, the SETTINGS
//! for a client that waits for them, and the refusal of a client.

mod frame;
mod greeted;
mod refusal;
mod request;

pub use frame::code;
pub use greeted::GreetedClient;
pub use refusal::H2Refusal;

use super::Peek;
use frame::FirstFrame;
use request::{ProtocolError, RequestParser};

/// Connection preface, which an HTTP/2 client sends first (RFC 9113, section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Whether bytes begin with enough of the connection preface to be HTTP/2's.
#[must_use]
pub fn has_preface(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PRI") && bytes.starts_with(&PREFACE[..PREFACE.len().min(bytes.len())])
}

/// Looks at all bytes received so far, which begin with (a part of) the preface.
pub(super) fn peek(bytes: &[u8]) -> Peek {
    let mut head = RequestParser::default();
    match scan(&mut head, bytes) {
        Err(broken) => Peek::Invalid(broken.error),
        Ok(rest) => match head.client_request.take() {
            Some(asked) => Peek::Found(asked),
            None if rest == Some(0) && head.may_await_settings() => Peek::Greet,
            None => Peek::Incomplete,
        },
    }
}

/// Goes through frames up to the end of the first header block. Returns the number of bytes left over that are no whole
/// frame; `None` where the preface is not whole.
fn scan(request: &mut RequestParser, bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
    let Some(mut rest) = bytes.get(PREFACE.len()..) else {
        return Ok(None);
    };
    while request.client_request.is_none() {
        match frame::first_frame(rest) {
            FirstFrame::Incomplete => break,
            FirstFrame::Partial(header) => {
                request.check_header(&header)?;
                break;
            }
            FirstFrame::Whole(header, payload) => {
                request.check_header(&header)?;
                request.push_frame(&header, payload)?;
                rest = &rest[frame::HEADER + header.len..];
            }
        }
    }
    Ok(Some(rest.len()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::frame::{flag, frame_type};
    use super::*;
    use crate::wire::peek::PeekParseError;
    use crate::wire::peek::tests::name;

    pub(crate) const SETTINGS: (u8, u8, u32, &[u8]) = (frame_type::SETTINGS, 0, 0, b"");
    /// Header block: `:method GET`, `:scheme http`, `:path /`, `:authority a.test` as a literal.
    pub(crate) const REQUEST: &[u8] = b"\x82\x86\x84\x41\x06a.test";

    pub(crate) fn message(frames: &[(u8, u8, u32, &[u8])]) -> Vec<u8> {
        let mut out = PREFACE.to_vec();
        for (kind, flags, stream, payload) in frames {
            frame::write(&mut out, *kind, *flags, *stream, payload);
        }
        out
    }

    #[test]
    fn padding_priority_and_continuation_are_taken_off() {
        let whole = message(&[
            SETTINGS,
            (
                frame_type::HEADERS,
                flag::PADDED | flag::PRIORITY,
                1,
                b"\x02\0\0\0\0\0\x82\x86\x84\0\0",
            ),
            (frame_type::CONTINUATION, 0, 1, b""),
            (frame_type::CONTINUATION, flag::END_HEADERS, 1, b"\x41\x06a.test"),
        ]);
        assert_eq!(peek(&whole), name("a.test"));
    }

    #[test]
    fn the_dynamic_table_is_kept_within_a_header_block() {
        let peek = |block: &[u8]| {
            peek(&message(&[
                SETTINGS,
                (frame_type::HEADERS, flag::END_HEADERS, 1, block),
            ]))
        };
        // Entry 62 is `host: b.test`; a later `x: y` pushes it to 63, where an indexed field repeats it.
        assert_eq!(peek(b"\x82\x40\x04host\x06b.test\x40\x01x\x01y"), name("b.test"));
        assert!(matches!(
            peek(b"\x82\x40\x04host\x06b.test\x40\x01x\x01y\xbf"),
            Peek::Invalid(PeekParseError::Malformed("more than one :authority or host"))
        ));
        // Entry 62 is `z: y`; its name comes again with another value without indexing, then `:authority`.
        assert_eq!(peek(b"\x82\x40\x01z\x01y\x0f\x2f\x01q\x41\x06a.test"), name("a.test"));
        // Entry 62 does not exist in an empty table.
        assert!(matches!(
            peek(b"\x20\x40\x01x\x01y\xbe\x41\x06a.test"),
            Peek::Invalid(_)
        ));
        // Table sizes up to 4096 bytes are allowed.
        assert_eq!(peek(b"\x3f\xe1\x1f\x82\x41\x06a.test"), name("a.test"));
        assert!(matches!(peek(b"\x3f\xe2\x1f\x82\x41\x06a.test"), Peek::Invalid(_)));
    }

    #[test]
    fn nonsense_is_refused() {
        let headers = flag::END_HEADERS;
        for frames in [
            &[(frame_type::HEADERS, headers, 1, &b"\x82"[..])][..],
            &[(frame_type::SETTINGS, flag::ACK, 0, b"")],
            &[SETTINGS, (frame_type::HEADERS, flag::PADDED | headers, 1, b"\xff\x82")],
            &[SETTINGS, (frame_type::HEADERS, 0, 1, b"\x82"), SETTINGS],
            &[
                SETTINGS,
                (frame_type::HEADERS, 0, 1, b"\x82"),
                (frame_type::CONTINUATION, headers, 3, b""),
            ],
            &[SETTINGS, (frame_type::CONTINUATION, headers, 1, b"\x82")],
            &[SETTINGS, (frame_type::HEADERS, headers, 2, REQUEST)],
            &[SETTINGS, (frame_type::HEADERS, headers, 0, REQUEST)],
            &[SETTINGS, (frame_type::HEADERS, headers, 1, b"\x41\x01a\x41\x01a")],
            &[
                SETTINGS,
                (frame_type::HEADERS, headers, 1, b"\xff\xff\xff\xff\xff\xff\xff\xff"),
            ],
        ] {
            assert!(
                matches!(peek(&message(frames)), Peek::Invalid(PeekParseError::Malformed(_))),
                "{frames:?}"
            );
        }
    }

    #[test]
    fn only_a_client_that_may_be_waiting_is_greeted() {
        let ping: (u8, u8, u32, &[u8]) = (frame_type::PING, 0, 0, b"12345678");
        for frames in [&[SETTINGS][..], &[SETTINGS, SETTINGS], &[SETTINGS, ping]] {
            let mut bytes = message(frames);
            assert_eq!(peek(&bytes), Peek::Greet, "{frames:?}");
            bytes.push(0);
            assert_eq!(peek(&bytes), Peek::Incomplete, "in the middle of a frame: {frames:?}");
            bytes.pop();
            bytes.pop();
            assert_eq!(peek(&bytes), Peek::Incomplete, "in the middle of a frame: {frames:?}");
        }
        assert_eq!(peek(PREFACE), Peek::Incomplete);
        let unfinished = message(&[SETTINGS, (frame_type::HEADERS, 0, 1, REQUEST)]);
        assert_eq!(peek(&unfinished), Peek::Incomplete, "CONTINUATION must follow");
    }
}
