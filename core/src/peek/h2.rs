//! The `:authority` of the first request of an HTTP/2 connection with prior knowledge (RFC 9113).

use super::{Fault, Peek, from_authority};

/// What such a client sends first (RFC 9113, section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// A client may not send larger frames before we have said that it may, and we never say anything.
const MAX_FRAME: usize = 16_384;

/// Looks at all bytes received so far, which begin with (a part of) the preface.
pub(super) fn peek(bytes: &[u8]) -> Peek {
    let Some(mut rest) = bytes.get(PREFACE.len()..) else {
        return Peek::Incomplete;
    };
    let mut block: Option<Vec<u8>> = None;
    let mut first = true;
    loop {
        let Some(header) = rest.get(..FRAME_HEADER) else {
            return Peek::Incomplete;
        };
        let len = usize::from(header[0]) << 16 | usize::from(header[1]) << 8 | usize::from(header[2]);
        let (kind, flags) = (header[3], header[4]);
        if len > MAX_FRAME {
            return Peek::Bad(Fault::TooLarge);
        }
        if first && kind != SETTINGS {
            return Peek::malformed("HTTP/2 does not begin with SETTINGS");
        }
        if block.is_some() != (kind == CONTINUATION) {
            return Peek::malformed("CONTINUATION out of place");
        }
        let Some(payload) = rest.get(FRAME_HEADER..FRAME_HEADER + len) else {
            return Peek::Incomplete;
        };
        rest = &rest[FRAME_HEADER + len..];
        first = false;
        match kind {
            HEADERS => match fragment(payload, flags) {
                Some(fragment) => block = Some(fragment.to_vec()),
                None => return Peek::malformed("HEADERS with impossible padding"),
            },
            CONTINUATION => block.get_or_insert_default().extend_from_slice(payload),
            _ => continue,
        }
        if flags & END_HEADERS != 0 {
            return authority(&block.unwrap_or_default());
        }
    }
}

/// The header block fragment of a HEADERS frame, without padding and priority.
fn fragment(mut payload: &[u8], flags: u8) -> Option<&[u8]> {
    if flags & PADDED != 0 {
        let (&padding, rest) = payload.split_first()?;
        payload = rest.get(..rest.len().checked_sub(usize::from(padding))?)?;
    }
    if flags & PRIORITY != 0 {
        payload = payload.get(5..)?;
    }
    Some(payload)
}

fn authority(block: &[u8]) -> Peek {
    let (mut authority, mut host): (Option<Vec<u8>>, Option<Vec<u8>>) = (None, None);
    let mut repeated = false;
    let outcome = loona_hpack::Decoder::new().decode_with_cb(block, |name, value| {
        let seen = match &*name {
            b":authority" => &mut authority,
            b"host" => &mut host,
            _ => return,
        };
        // Kept once: a block may refer to one long value again and again.
        repeated |= seen.is_some();
        seen.get_or_insert_with(|| value.into_owned());
    });
    if outcome.is_err() {
        return Peek::malformed("the HTTP/2 header block does not decode");
    }
    if repeated {
        return Peek::malformed("more than one :authority or host");
    }
    authority
        .or(host)
        .map_or_else(Peek::nameless, |authority| from_authority(&authority))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(frames: &[(u8, u8, &[u8])]) -> Vec<u8> {
        let mut out = PREFACE.to_vec();
        for (kind, flags, payload) in frames {
            out.extend([0, 0, payload.len() as u8, *kind, *flags, 0, 0, 0, 1]);
            out.extend(*payload);
        }
        out
    }

    #[test]
    fn padding_priority_and_continuation_are_taken_off() {
        let settings: (u8, u8, &[u8]) = (SETTINGS, 0, &[]);
        let whole = message(&[
            settings,
            (HEADERS, PADDED | PRIORITY, b"\x02\0\0\0\0\0\x82\x86\x84\0\0"),
            (CONTINUATION, END_HEADERS, b"\x41\x06a.test"),
        ]);
        assert_eq!(peek(&whole), super::super::tests::name("a.test"));
    }

    #[test]
    fn nonsense_is_refused() {
        for frames in [
            &[(HEADERS, END_HEADERS, &b"\x82"[..])][..],
            &[(SETTINGS, 0, b""), (HEADERS, PADDED | END_HEADERS, b"\xff\x82")],
            &[(SETTINGS, 0, b""), (HEADERS, 0, b"\x82"), (SETTINGS, 0, b"")],
            &[(SETTINGS, 0, b""), (HEADERS, END_HEADERS, b"\x41\x01a\x41\x01a")],
            &[
                (SETTINGS, 0, b""),
                (HEADERS, END_HEADERS, b"\xff\xff\xff\xff\xff\xff\xff\xff"),
            ],
        ] {
            assert!(
                matches!(peek(&message(frames)), Peek::Bad(Fault::Malformed(_))),
                "{frames:?}"
            );
        }
    }
}
