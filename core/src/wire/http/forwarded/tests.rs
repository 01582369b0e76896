use super::*;
use crate::wire::http1::edit::{self, RequestRewrite};
use crate::wire::http1::limits::MessageLimits;
use crate::wire::http1::parse::{self, ParsedRequest};

const HOP: Hop<'static> = Hop {
    peer: IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7)),
    port: 8443,
    is_https: true,
    is_http2: false,
    host: Some(b"a.test:8443"),
};

fn with_head<T>(fields: &str, run: impl FnOnce(&crate::wire::http1::head::RequestHead, &[u8]) -> T) -> T {
    let text = format!("GET / HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n");
    match parse::request(text.as_bytes(), &MessageLimits::default()) {
        Ok(ParsedRequest::Head(head)) => run(&head, text.as_bytes()),
        outcome => panic!("{text:?}: {outcome:?}"),
    }
}

/// Field lines that a host gets.
fn sent(policy: ForwardedPolicy, trusted: Option<&[IpNet]>, hop: &Hop<'_>, fields: &str) -> Vec<String> {
    with_head(fields, |head, buffer| {
        let edits = edits(policy, trusted, hop, &head.fields, buffer);
        let rewrite = RequestRewrite {
            fields: &edits,
            ..RequestRewrite::default()
        };
        let sent = String::from_utf8(edit::request(head, buffer, &rewrite).to_vec(buffer)).unwrap();
        sent.trim_end().lines().skip(2).map(str::to_owned).collect()
    })
}

fn nets(text: &str) -> Vec<IpNet> {
    text.split(' ').map(|net| net.parse().unwrap()).collect()
}

const OURS: [&str; 5] = [
    "X-Forwarded-For: 192.0.2.7",
    "X-Forwarded-Host: a.test:8443",
    "X-Forwarded-Port: 8443",
    "X-Forwarded-Proto: https",
    "Forwarded: for=192.0.2.7;host=\"a.test:8443\";proto=https",
];

const THEIRS: &str = "X-Forwarded-For: 10.0.0.1\r\nx-forwarded-proto: http\r\n";

#[test]
fn append_adds_lines_behind_those_that_came() {
    let expected = ["X-Forwarded-For: 10.0.0.1", "x-forwarded-proto: http"]
        .into_iter()
        .chain(OURS);
    assert_eq!(
        sent(ForwardedPolicy::Append, None, &HOP, THEIRS),
        expected.collect::<Vec<_>>()
    );
}

#[test]
fn replace_leaves_nothing_of_what_came() {
    let came = format!("{THEIRS}X-Forwarded-For: 10.0.0.2\r\nX-Forwarded-Proto-Version: h2\r\nForwarded: for=x\r\n");
    let mut found = sent(ForwardedPolicy::Replace, None, &HOP, &came);
    found.sort_unstable_by_key(|line| line.to_lowercase());
    let mut expected = OURS.map(|line| line.replace("X-Forwarded-Proto:", "x-forwarded-proto:"));
    expected.sort_unstable_by_key(|line| line.to_lowercase());
    assert_eq!(found, expected);
}

#[test]
fn if_none_adds_only_what_did_not_come() {
    let found = sent(ForwardedPolicy::IfNone, None, &HOP, THEIRS);
    let expected = [
        "X-Forwarded-For: 10.0.0.1",
        "x-forwarded-proto: http",
        OURS[1],
        OURS[2],
        OURS[4],
    ];
    assert_eq!(found, expected);
}

#[test]
fn never_changes_nothing() {
    let found = sent(ForwardedPolicy::Never, Some(&[]), &HOP, THEIRS);
    assert_eq!(found, ["X-Forwarded-For: 10.0.0.1", "x-forwarded-proto: http"]);
}

#[test]
fn forwarded_headers_from_untrusted_peers_are_dropped() {
    let trusted = nets("10.0.0.0/8 192.0.2.0/29");
    let stranger = Hop {
        peer: "198.51.100.1".parse().unwrap(),
        ..HOP
    };
    for policy in [
        ForwardedPolicy::Append,
        ForwardedPolicy::IfNone,
        ForwardedPolicy::Replace,
    ] {
        let found = sent(policy, Some(&trusted), &stranger, THEIRS);
        assert!(
            !found
                .iter()
                .any(|line| line.contains("10.0.0.1") || line.ends_with(": http")),
            "{found:?}"
        );
    }
    assert_eq!(sent(ForwardedPolicy::Append, Some(&trusted), &HOP, THEIRS).len(), 7);
}

#[test]
fn an_ipv6_address_stands_in_brackets_and_quotes() {
    let hop = Hop {
        peer: "2001:db8::1".parse().unwrap(),
        is_http2: true,
        host: Some(b"a.test"),
        ..HOP
    };
    let found = sent(ForwardedPolicy::Append, None, &hop, "");
    assert_eq!(found[0], "X-Forwarded-For: 2001:db8::1");
    assert_eq!(found[4], "X-Forwarded-Proto-Version: h2");
    assert_eq!(found[5], "Forwarded: for=\"[2001:db8::1]\";host=a.test;proto=https");
    let mapped = Hop {
        peer: "::ffff:192.0.2.7".parse().unwrap(),
        host: None,
        ..HOP
    };
    assert_eq!(
        sent(ForwardedPolicy::Append, None, &mapped, "")[3],
        "Forwarded: for=192.0.2.7;proto=https"
    );
}

#[test]
fn a_quoted_value_cannot_end_its_quotes() {
    let mut out = Vec::new();
    push_value(&mut out, b"a\";for=evil\\");
    assert_eq!(out, b"\"a\\\";for=evil\\\\\"");
}

#[test]
fn the_client_is_the_last_address_that_no_trusted_proxy_has() {
    let trusted = nets("10.0.0.0/8 192.0.2.0/24 2001:db8::/32");
    let client = |peer: &str, fields: &str| {
        let peer = peer.parse().unwrap();
        with_head(fields, |head, buffer| {
            client_address(peer, &trusted, &head.fields, buffer)
        })
        .to_string()
    };
    let chain = "X-Forwarded-For: 203.0.113.9, 198.51.100.1\r\nX-Forwarded-For: 10.0.0.2\r\n";
    assert_eq!(client("192.0.2.7", chain), "198.51.100.1");
    assert_eq!(client("::ffff:192.0.2.7", chain), "198.51.100.1");
    assert_eq!(
        client("203.0.113.5", chain),
        "203.0.113.5",
        "a stranger may say anything"
    );
    assert_eq!(client("10.0.0.1", ""), "10.0.0.1");
    assert_eq!(
        client("10.0.0.1", "X-Forwarded-For: 198.51.100.1, unknown, 10.0.0.3\r\n"),
        "10.0.0.3"
    );
    assert_eq!(
        client("10.0.0.1", "X-Forwarded-For: 198.51.100.1:4711\r\n"),
        "198.51.100.1"
    );
    assert_eq!(
        client("10.0.0.1", "X-Forwarded-For: [2001:db9::1]:80\r\n"),
        "2001:db9::1"
    );
}
