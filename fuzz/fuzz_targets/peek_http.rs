//! The host of an HTTP/1 or HTTP/2 request: no panic, and the same outcome however the bytes arrive. A client that is
//! greeted is heard the same in pieces as at once, and refused without a panic.
#![no_main]

mod kernel_peek;
mod prefixes;

use libfuzzer_sys::fuzz_target;
use signalbox_common::peek::abi::protocol;
use signalbox_core::wire::peek::h2::{GreetedClient, H2Refusal, code};
use signalbox_core::wire::peek::{Peek, PeekParseError, http};

const NOT_FOUND: H2Refusal<'_> = H2Refusal {
    status: 404,
    text: "Not here.",
    code: code::NO_ERROR,
};

/// The stream as the host is to have it, and how many bytes were said, of a client heard in pieces of this size.
fn hear(bytes: &[u8], piece: usize) -> Result<Option<(Vec<u8>, u32)>, PeekParseError> {
    let mut greeted = GreetedClient::default();
    let mut rest = bytes;
    while !rest.is_empty() && !greeted.is_complete() {
        let (now, later) = rest.split_at(piece.min(rest.len()));
        let heard = greeted.receive(now);
        assert!(!greeted.refusal(&NOT_FOUND).is_empty());
        heard?;
        greeted.take_output();
        rest = later;
    }
    if !greeted.is_complete() {
        return Ok(None);
    }
    let (kept, _, said) = greeted.handoff();
    Ok(Some(([kept, rest].concat(), said)))
}

fuzz_target!(|bytes: &[u8]| {
    let look = |bytes: &[u8]| match http::peek(bytes) {
        Peek::Greet => Peek::Incomplete,
        outcome => outcome,
    };
    prefixes::agree(bytes, look, &Peek::Incomplete);
    kernel_peek::agree(protocol::HTTP, bytes, || match http::peek(bytes) {
        Peek::Found(request) => request.hostname,
        _ => None,
    });
    assert!(!NOT_FOUND.for_ungreeted(bytes).is_empty());
    // Beyond this size it depends on the pieces whether a client is complete before it has sent too much.
    if bytes.len() < http::MAX_HEAD_BYTES && bytes.starts_with(signalbox_core::wire::peek::h2::PREFACE) {
        assert_eq!(hear(bytes, bytes.len()), hear(bytes, 7));
    }
});
