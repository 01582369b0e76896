//! HTTP/1 against hyper: a request or answer that is accepted is the one that hyper sees. The first byte says how long the
//! pieces are that hyper reads.
#![no_main]
#![allow(dead_code, reason = "the tests of the core use the other half")]

#[path = "../../core/tests/http1/hyper_client.rs"]
mod hyper_client;
#[path = "../../core/tests/http1/hyper_server.rs"]
mod hyper_server;
#[path = "../../core/tests/http1/ours.rs"]
mod ours;
#[path = "../../core/tests/http1/wire.rs"]
mod wire;

use libfuzzer_sys::fuzz_target;
use signalbox_core::wire::http1::method::Method;

fuzz_target!(|bytes: &[u8]| {
    let Some((&piece, stream)) = bytes.split_first() else {
        return;
    };
    let piece = usize::from(piece) + 1;
    let (seen, _) = ours::requests(stream);
    if !seen.is_empty() {
        let (theirs, is_faulty) = hyper_server::requests(stream, piece);
        assert!(theirs.len() >= seen.len() || is_faulty);
        for (ours, theirs) in seen.iter().zip(&theirs) {
            assert_eq!(ours, theirs);
        }
    }
    if let Some(seen) = ours::answer(stream, Method::Get)
        && let Some(theirs) = hyper_client::answer(stream, "GET", piece)
    {
        assert_eq!(seen, theirs);
    }
});
