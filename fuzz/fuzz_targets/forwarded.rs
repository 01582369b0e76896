//! `X-Forwarded-*` and `Forwarded`: whatever fields a client sends, the host gets a head that says who the client was.
//! The first byte says which policy, and whether the client is trusted.
#![no_main]

use libfuzzer_sys::fuzz_target;
use signalbox_core::wire::http::forwarded::{self, ForwardedPolicy, Hop};
use signalbox_core::wire::http1::edit::{self, RequestRewrite};
use signalbox_core::wire::http1::limits::{MAX_FIELDS, MessageLimits};
use signalbox_core::wire::http1::parse::{self, ParsedRequest};

const POLICIES: [ForwardedPolicy; 4] = [
    ForwardedPolicy::Append,
    ForwardedPolicy::IfNone,
    ForwardedPolicy::Never,
    ForwardedPolicy::Replace,
];

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, fields)) = bytes.split_first() else {
        return;
    };
    let text = [&b"GET / HTTP/1.1\r\nHost: a.test:80\r\n"[..], fields].concat();
    let limits = MessageLimits::default();
    let Ok(ParsedRequest::Head(head)) = parse::request(&text, &limits) else {
        return;
    };
    let peer = "192.0.2.7".parse().expect("an address");
    let trusted = ["192.0.2.0/24".parse().expect("a prefix")];
    let is_trusted = choice & 4 != 0;
    let prefixes = if is_trusted { &trusted[..] } else { &[] };
    let hop = Hop {
        peer,
        port: 80,
        is_https: choice & 8 != 0,
        is_http2: choice & 16 != 0,
        host: head.fields.values(&text, "host").next(),
    };
    let policy = POLICIES[usize::from(choice & 3)];
    let edits = forwarded::edits(policy, Some(prefixes), &hop, &head.fields, &text);
    let rewrite = RequestRewrite {
        fields: &edits,
        ..RequestRewrite::default()
    };
    let sent = edit::request(&head, &text, &rewrite).to_vec(&text);
    // Ours may be the fields or bytes too many.
    let limits = MessageLimits {
        head_bytes: limits.head_bytes * 2,
        fields: MAX_FIELDS,
        ..limits
    };
    if head.fields.len() + 8 <= MAX_FIELDS {
        let Ok(ParsedRequest::Head(again)) = parse::request(&sent, &limits) else {
            panic!("no head is sent on");
        };
        let said: Vec<&[u8]> = again.fields.values(&sent, "x-forwarded-for").collect();
        match (policy, is_trusted) {
            (ForwardedPolicy::Never, _) => {}
            (ForwardedPolicy::Replace, _) | (_, false) => assert_eq!(said, [b"192.0.2.7"]),
            (ForwardedPolicy::Append, true) => assert_eq!(said.last(), Some(&&b"192.0.2.7"[..])),
            (ForwardedPolicy::IfNone, true) => assert!(!said.is_empty()),
        }
    }
    let client = forwarded::client_address(peer, prefixes, &head.fields, &text);
    assert!(is_trusted || client == peer);
});
