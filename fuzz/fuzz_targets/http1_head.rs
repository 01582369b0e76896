//! Heads of HTTP/1: the same outcome however the bytes arrive, and a head that is sent on is a head again.
#![no_main]

mod prefixes;

use libfuzzer_sys::fuzz_target;
use signalbox_core::wire::http1::edit::{self, RequestRewrite, ResponseRewrite};
use signalbox_core::wire::http1::framing;
use signalbox_core::wire::http1::limits::MessageLimits;
use signalbox_core::wire::http1::method::Method;
use signalbox_core::wire::http1::parse::{self, ParsedRequest};

/// A request's head that is sent on is accepted by the next hop, frames the body alike, and is not changed again.
fn request(bytes: &[u8], limits: &MessageLimits) {
    let Ok(ParsedRequest::Head(head)) = parse::request(bytes, limits) else {
        return;
    };
    let Ok(length) = framing::request_body(&head, bytes) else {
        return;
    };
    let sent = edit::request(&head, bytes, &RequestRewrite::default()).to_vec(bytes);
    // An added Host or Connection field makes a head longer, and may be the one too many.
    let limits = MessageLimits {
        head_bytes: limits.head_bytes + 1024,
        ..*limits
    };
    match parse::request(&sent, &limits) {
        Ok(ParsedRequest::Head(again)) => {
            assert_eq!(framing::request_body(&again, &sent), Ok(length));
            assert_eq!(again.path(&sent), head.path(bytes));
            let authority = |head: &signalbox_core::wire::http1::head::RequestHead| {
                head.authority.as_ref().map(|authority| authority.hostname.clone())
            };
            assert_eq!(authority(&again), authority(&head));
            let twice = edit::request(&again, &sent, &RequestRewrite::default()).to_vec(&sent);
            assert_eq!(twice, sent);
        }
        Err(signalbox_core::wire::http1::head_error::HeadError::TooManyFields) => {}
        outcome => panic!("sent on: {outcome:?}"),
    }
}

fn response(bytes: &[u8], limits: &MessageLimits) {
    let Ok(Some(head)) = parse::response(bytes, limits) else {
        return;
    };
    let kind = framing::answer(&head, bytes, Method::Get);
    let sent = edit::response(&head, bytes, &ResponseRewrite::default()).to_vec(bytes);
    let again = parse::response(&sent, limits).expect("sent on").expect("sent on whole");
    if let Ok(kind) = kind {
        assert_eq!(framing::answer(&again, &sent, Method::Get), Ok(kind));
    }
}

fuzz_target!(|bytes: &[u8]| {
    let limits = MessageLimits::default();
    prefixes::agree(
        bytes,
        |bytes| parse::request(bytes, &limits),
        &Ok(ParsedRequest::Incomplete),
    );
    prefixes::agree(bytes, |bytes| parse::response(bytes, &limits), &Ok(None));
    request(bytes, &limits);
    response(bytes, &limits);
});
