//! A chunked body: the same outcome in any pieces, and sent on byte for byte. The first byte says how long pieces are.
#![no_main]

use libfuzzer_sys::fuzz_target;
use signalbox_core::wire::http1::chunked::{ChunkedBody, ChunkedError};
use signalbox_core::wire::http1::limits::MessageLimits;

/// Bytes that are sent on, how many were the body's, and whether it ended.
fn scan(bytes: &[u8], piece: usize) -> Result<(Vec<u8>, usize, bool), ChunkedError> {
    let (mut body, mut sent, mut used) = (ChunkedBody::new(&MessageLimits::default()), Vec::new(), 0);
    for piece in bytes.chunks(piece) {
        let found = body.scan(piece)?;
        assert!(found.pass <= found.used && found.used <= piece.len());
        assert!(found.is_done || found.used == piece.len());
        sent.extend_from_slice(&piece[..found.pass]);
        used += found.used;
        if found.is_done {
            break;
        }
        // Data that is skipped is data that a scan would have passed.
        assert!(body.data_ahead() == 0 || found.pass == piece.len());
    }
    if body.is_done() {
        sent.extend_from_slice(body.trailers());
        assert_eq!(sent, bytes[..used]);
    } else {
        assert!(bytes.starts_with(&sent));
    }
    Ok((sent, used, body.is_done()))
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&piece, bytes)) = bytes.split_first() else {
        return;
    };
    assert_eq!(scan(bytes, usize::from(piece) + 1), scan(bytes, bytes.len().max(1)));
});
