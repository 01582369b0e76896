//! Answers: ours and hyper agree, or ours is stricter.

use proptest::prelude::*;
use signalbox_core::wire::http1::limits::MessageLimits;
use signalbox_core::wire::http1::method::Method;
use signalbox_core::wire::http1::parse;

use crate::streams::answers;
use crate::{hyper_client, ours};

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn hyper_agrees_with_each_answer_that_is_accepted(
        stream in answers(),
        method in prop::sample::select(vec!["GET", "HEAD", "POST"]),
        piece in prop_oneof![1usize..40, Just(100_000)],
    ) {
        let Some(ours) = ours::answer(&stream, Method::parse(method.as_bytes())) else {
            return Ok(());
        };
        let theirs = hyper_client::answer(&stream, method, piece);
        prop_assert_eq!(Some(ours), theirs, "{:?}", String::from_utf8_lossy(&stream));
    }

    #[test]
    fn each_outcome_is_final(stream in answers()) {
        let limits = MessageLimits::default();
        let whole = parse::response(&stream, &limits);
        for end in 0..stream.len() {
            let outcome = parse::response(&stream[..end], &limits);
            if outcome != Ok(None) {
                prop_assert_eq!(&outcome, &whole, "final after {} of {:?}", end, String::from_utf8_lossy(&stream));
            }
        }
    }
}

#[test]
fn hyper_and_ours_read_an_answer() {
    let stream = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nA: b\r\n\r\n";
    let ours = ours::answer(stream, Method::Get).unwrap();
    assert_eq!(
        (ours.status, &ours.body[..], ours.trailers.len()),
        (200, &b"hello"[..], 1)
    );
    assert_eq!(hyper_client::answer(stream, "GET", 7), Some(ours));
}
