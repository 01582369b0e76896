//! Requests: ours and hyper agree, or ours is stricter.

use http_desync_guardian::RequestSafetyTier;
use http_desync_guardian::request_analyzer::HttpRequestData;
use proptest::prelude::*;
use signalbox_core::wire::http1::limits::MessageLimits;
use signalbox_core::wire::http1::parse::{self, ParsedRequest};

use crate::hyper_server;
use crate::ours::{self, Rest};
use crate::streams::{requests, right_requests};

/// Number of streams of requests that the rotation compares.
const MANY: u32 = 1_000_000;

/// Length of the pieces that hyper reads.
fn pieces() -> impl Strategy<Value = usize> {
    prop_oneof![1usize..40, Just(100_000)]
}

/// Compares what is accepted of a stream with what hyper sees in it.
fn compare(stream: &[u8], piece: usize) -> Result<(), TestCaseError> {
    let (ours, rest) = ours::requests(stream);
    let (theirs, is_faulty) = hyper_server::requests(stream, piece);
    let text = String::from_utf8_lossy(stream);
    for (index, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        prop_assert_eq!(ours, theirs, "request {} of {:?}", index, text);
    }
    prop_assert!(
        theirs.len() >= ours.len() || is_faulty,
        "hyper sees fewer in {:?}",
        text
    );
    // Where we wait for more bytes, hyper has not found another whole request.
    prop_assert!(
        rest == Rest::Refused || theirs.len() <= ours.len(),
        "hyper sees more in {:?}",
        text
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: MANY, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "takes minutes: the rotation runs it, optimised"]
    fn hyper_agrees_with_each_accepted_one_of_a_million(stream in requests(), piece in pieces()) {
        compare(&stream, piece)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn hyper_agrees_with_each_request_that_is_accepted(stream in requests(), piece in pieces()) {
        compare(&stream, piece)?;
    }

    #[test]
    fn requests_without_fault_are_all_accepted(stream in right_requests(), piece in pieces()) {
        let (ours, rest) = ours::requests(&stream);
        prop_assert_eq!(rest, Rest::Incomplete, "{:?}", String::from_utf8_lossy(&stream));
        prop_assert!(!ours.is_empty());
        prop_assert_eq!(ours, hyper_server::requests(&stream, piece).0);
    }

    #[test]
    fn each_prefix_of_a_head_is_incomplete_and_each_outcome_final(stream in requests()) {
        let limits = MessageLimits::default();
        let whole = parse::request(&stream, &limits);
        for end in 0..stream.len() {
            let outcome = parse::request(&stream[..end], &limits);
            if outcome != Ok(ParsedRequest::Incomplete) {
                prop_assert_eq!(&outcome, &whole, "final after {} of {:?}", end, String::from_utf8_lossy(&stream));
            }
        }
        if let Ok(ParsedRequest::Head(head)) = whole {
            let last = parse::request(&stream[..head.range.end() - 1], &limits);
            prop_assert_eq!(last, Ok(ParsedRequest::Incomplete));
        }
    }

    #[test]
    fn accepted_requests_are_not_severe_for_http_desync_guardian(stream in requests()) {
        let limits = MessageLimits::default();
        if let Ok(ParsedRequest::Head(head)) = parse::request(&stream, &limits)
            && signalbox_core::wire::http1::framing::request_body(&head, &stream).is_ok()
        {
            let text = &stream[head.range.start()..head.range.end()];
            let verdict = HttpRequestData::analyze_raw_request(text);
            prop_assert!(verdict.tier < RequestSafetyTier::Severe, "{:?}: {:?}", verdict.message, String::from_utf8_lossy(text));
        }
    }
}
