use proptest::prelude::*;

use super::*;
use crate::wire::http1::framing::request_body;
use crate::wire::http1::limits::MessageLimits;
use crate::wire::http1::parse::{self, ParsedRequest};

type FieldPairs<'a> = Vec<(&'a [u8], &'a [u8])>;

const GET: StreamHead<'_> = StreamHead {
    method: b"GET",
    scheme: Some(b"https"),
    authority: Some(b"a.test"),
    path: b"/x?y=1",
    is_tls: true,
    is_ended: true,
    websocket_key: None,
};

const POST: StreamHead<'_> = StreamHead {
    method: b"POST",
    is_ended: false,
    ..GET
};

fn fields<'a>(pairs: &[(&'a str, &'a str)]) -> FieldPairs<'a> {
    pairs
        .iter()
        .map(|(name, value)| (name.as_bytes(), value.as_bytes()))
        .collect()
}

fn text(head: &StreamHead<'_>, pairs: &[(&str, &str)]) -> String {
    String::from_utf8(to_http1(head, fields(pairs)).unwrap().0).unwrap()
}

fn label(head: &StreamHead<'_>, pairs: &[(&str, &str)]) -> &'static str {
    to_http1(head, fields(pairs)).unwrap_err().label()
}

#[test]
fn a_request_becomes_one_of_http1() {
    let said = text(
        &GET,
        &[
            ("cookie", "a=1"),
            ("accept", "*/*"),
            ("cookie", "b=2"),
            ("te", "trailers"),
        ],
    );
    assert_eq!(
        said,
        "GET /x?y=1 HTTP/1.1\r\nhost: a.test\r\naccept: */*\r\ncookie: a=1; b=2\r\nte: trailers\r\n\r\n"
    );
    assert_eq!(
        text(&POST, &[]),
        "POST /x?y=1 HTTP/1.1\r\nhost: a.test\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    assert!(text(&POST, &[("content-length", "12")]).contains("content-length: 12\r\n"));
    assert!(text(&GET, &[("content-length", "0")]).contains("content-length: 0\r\n"));
    let without = StreamHead { authority: None, ..GET };
    assert!(text(&without, &[("host", "b.test")]).contains("host: b.test\r\n"));
    let options = StreamHead {
        method: b"OPTIONS",
        path: b"*",
        ..GET
    };
    assert!(text(&options, &[]).starts_with("OPTIONS * HTTP/1.1\r\n"));
}

#[test]
fn a_websocket_becomes_an_upgrade() {
    let asked = StreamHead {
        method: b"CONNECT",
        is_ended: false,
        websocket_key: Some(b"MDEyMzQ1Njc4OWFiY2RlZg=="),
        ..GET
    };
    let said = text(
        &asked,
        &[("sec-websocket-version", "13"), ("sec-websocket-key", "its own")],
    );
    assert_eq!(
        said,
        "GET /x?y=1 HTTP/1.1\r\nhost: a.test\r\nsec-websocket-version: 13\r\nconnection: Upgrade\r\n\
         upgrade: websocket\r\nsec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
    );
    assert_eq!(label(&asked, &[("content-length", "5")]), "length_mismatch");
    assert_eq!(label(&StreamHead { path: b"*", ..asked }, &[]), "target_form");
}

#[test]
fn http2_requests_that_could_smuggle_are_refused() {
    for (name, value, why) in [
        ("transfer-encoding", "chunked", "connection_field"),
        ("connection", "close", "connection_field"),
        ("upgrade", "websocket", "connection_field"),
        ("te", "gzip", "connection_field"),
        ("host", "b.test", "authority_mismatch"),
        ("a", "b\r\nx: y", "field_value"),
        ("a", "b\nx: y", "field_value"),
        ("a", "b\0", "field_value"),
        ("a\r\nb", "c", "field_name"),
        ("a b", "c", "field_name"),
        ("a:", "c", "field_name"),
        (":path", "/", "field_name"),
        ("", "c", "field_name"),
        ("content-length", "+5", "content_length_invalid"),
        ("content-length", "5, 5", "content_length_invalid"),
        ("content-length", "", "content_length_invalid"),
        ("content-length", "99999999999999999999", "content_length_invalid"),
        ("content-length", "5", "length_mismatch"),
    ] {
        assert_eq!(label(&GET, &[(name, value)]), why, "{name}: {value}");
    }
    let twice = [("content-length", "5"), ("content-length", "5")];
    assert_eq!(label(&POST, &twice), "content_length_repeated");
    let hosts = [("host", "a.test"), ("host", "a.test")];
    assert_eq!(label(&GET, &hosts), "host_repeated");
}

#[test]
fn pseudo_fields_are_checked() {
    let with_path = |path| StreamHead { path, ..GET };
    for path in [&b""[..], b"x", b"*", b"http://b.test/", b"/ HTTP/1.1\r\nx: y", b"/\x80"] {
        assert_eq!(label(&with_path(path), &[]), "target_form", "{path:?}");
    }
    let with_method = |method| StreamHead { method, ..GET };
    for method in [&b""[..], b"GET /", b"G\r\nT"] {
        assert_eq!(label(&with_method(method), &[]), "request_line", "{method:?}");
    }
    let with_authority = |authority| StreamHead { authority, ..GET };
    assert_eq!(label(&with_authority(None), &[]), "host_missing");
    for authority in [&b""[..], b"a.test\r\nx: y", b"a b"] {
        assert_eq!(label(&with_authority(Some(authority)), &[]), "host_invalid");
    }
    let plain = StreamHead {
        scheme: Some(b"http"),
        ..GET
    };
    assert_eq!(to_http1(&plain, []).unwrap_err().status(), 421);
    assert!(to_http1(&StreamHead { is_tls: false, ..plain }, []).is_ok());
}

proptest! {
    /// Every output is one whole head for the parser of HTTP/1, with the announced body.
    #[test]
    fn an_http2_request_becomes_exactly_one_http1_head(
        path in prop::collection::vec(any::<u8>(), 0..12),
        authority in prop::option::of("[a-z.:@\r\n ]{0,8}"),
        pairs in prop::collection::vec(("[a-z:\r\n -]{0,16}|host|cookie|content-length|te", prop::collection::vec(any::<u8>(), 0..8)), 0..6),
        is_ended in any::<bool>(),
        is_post in any::<bool>(),
    ) {
        let head = StreamHead {
            method: if is_post { b"POST" } else { b"GET" },
            authority: authority.as_ref().map(String::as_bytes),
            path: &[b"/", &path[..]].concat(),
            is_ended,
            ..GET
        };
        let fields = pairs.iter().map(|(name, value)| (name.as_bytes(), &value[..]));
        if let Ok((bytes, length)) = to_http1(&head, fields) {
            match parse::request(&bytes, &MessageLimits::default()) {
                Ok(ParsedRequest::Head(head)) => {
                    prop_assert_eq!(head.range.end(), bytes.len());
                    prop_assert_eq!(request_body(&head, &bytes), Ok(length));
                }
                Ok(other) => prop_assert!(false, "{:?}", other),
                Err(_) => {}
            }
        }
    }
}

#[test]
fn white_space_around_values_goes() {
    let said = text(&GET, &[("x-a", " b c\t"), ("cookie", "a=1 "), ("te", " trailers")]);
    assert_eq!(
        said,
        "GET /x?y=1 HTTP/1.1\r\nhost: a.test\r\nx-a: b c\r\ncookie: a=1\r\nte: trailers\r\n\r\n"
    );
    assert_eq!(label(&GET, &[("x-a", "b\r\nc: d")]), label(&GET, &[("x-a", "\0")]));
}

#[test]
fn a_host_may_leave_out_the_default_port() {
    for (authority, host) in [
        ("a.test:443", "a.test"),
        ("a.test", "a.test:443"),
        ("A.test:443", "a.test:443"),
        ("[fd00::1]", "[fd00::1]:443"),
    ] {
        let head = StreamHead {
            authority: Some(authority.as_bytes()),
            ..GET
        };
        let said = text(&head, &[("host", host)]);
        assert!(said.contains(&format!("\r\nhost: {authority}\r\n")), "{said}");
    }
    let plain = StreamHead {
        scheme: Some(b"http"),
        authority: Some(b"a.test:443"),
        is_tls: false,
        ..GET
    };
    for host in ["a.test", "a.test:80", "b.test:443"] {
        assert_eq!(label(&plain, &[("host", host)]), "authority_mismatch");
    }
}
