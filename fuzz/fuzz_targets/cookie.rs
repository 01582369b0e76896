//! The sticky cookie: whatever a client sends, a hidden cookie is gone, and one that was set is found again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use signalbox_core::wire::http::cookie::{SameSite, StickyCookie};
use signalbox_core::wire::http1::edit::{self, FieldEdit, RequestRewrite};
use signalbox_core::wire::http1::limits::MessageLimits;
use signalbox_core::wire::http1::parse::{self, ParsedRequest};

fn with_fields(fields: &[u8]) -> Vec<u8> {
    [&b"GET / HTTP/1.1\r\nHost: a.test\r\n"[..], fields].concat()
}

fuzz_target!(|bytes: &[u8]| {
    let cookie = StickyCookie::new("sb", Some(SameSite::None)).expect("a token");
    let text = with_fields(bytes);
    let limits = MessageLimits {
        head_bytes: 1 << 20,
        ..MessageLimits::default()
    };
    if let Ok(ParsedRequest::Head(head)) = parse::request(&text, &limits) {
        let hides: Vec<FieldEdit> = cookie.hide(&head.fields, &text).into_iter().collect();
        assert_eq!(hides.is_empty(), cookie.values(&head.fields, &text).next().is_none());
        let rewrite = RequestRewrite {
            fields: &hides,
            ..RequestRewrite::default()
        };
        let sent = edit::request(&head, &text, &rewrite).to_vec(&text);
        match parse::request(&sent, &limits) {
            Ok(ParsedRequest::Head(again)) => assert_eq!(cookie.values(&again.fields, &sent).next(), None),
            Err(_) => {}
            outcome => panic!("sent on: {outcome:?}"),
        }
    }
    let Ok(value) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Some(FieldEdit::Add(_, set)) = cookie.set(value, "/", true) {
        let pair = set.split(|&b| b == b';').next().unwrap_or_default();
        let text = with_fields(&[&b"Cookie: a=b; "[..], pair, b"\r\n\r\n"].concat());
        if let Ok(ParsedRequest::Head(head)) = parse::request(&text, &limits) {
            assert_eq!(cookie.values(&head.fields, &text).next(), Some(value.as_bytes()));
        }
    }
});
