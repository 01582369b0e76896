use super::*;

const LIMITS: MessageLimits = MessageLimits {
    head_bytes: 512,
    target_bytes: 64,
    fields: 8,
    chunk_extension_bytes: 16,
    trailer_bytes: 64,
    trailer_fields: 4,
};

fn parsed(text: &[u8]) -> Result<ParsedRequest, HeadError> {
    request(text, &LIMITS)
}

/// Parses a request head. Each proper prefix of it must be incomplete, and bytes after it must not change it.
fn head(text: &str) -> RequestHead {
    for end in 0..text.len() {
        assert_eq!(
            parsed(&text.as_bytes()[..end]),
            Ok(ParsedRequest::Incomplete),
            "prefix of {end} of {text:?}"
        );
    }
    let outcome = parsed(text.as_bytes());
    let longer = [text.as_bytes(), &[0xff; 600]].concat();
    assert_eq!(outcome, parsed(&longer));
    match outcome {
        Ok(ParsedRequest::Head(head)) => *head,
        outcome => panic!("{text:?}: {outcome:?}"),
    }
}

/// Fault of a request head: that of each longer text, too, once a prefix has it.
fn refusal(text: &[u8]) -> HeadError {
    let whole = parsed(text).expect_err(&String::from_utf8_lossy(text));
    for end in 0..text.len() {
        match parsed(&text[..end]) {
            Ok(outcome) => assert_eq!(outcome, ParsedRequest::Incomplete, "prefix of {end}"),
            Err(error) => assert_eq!(error, whole, "prefix of {end} of {:?}", String::from_utf8_lossy(text)),
        }
    }
    whole
}

#[test]
fn a_head_is_ranges_of_its_buffer() {
    let text = "\r\nPOST /a/b?c=d HTTP/1.1\r\nhOsT:  App.test:8080 \r\nX-Empty:\r\nA: 1\r\na:\t2\r\n\r\n";
    let (head, buffer) = (head(text), text.as_bytes());
    assert_eq!(head.method, Method::Post);
    assert_eq!(head.method_name.of(buffer), b"POST");
    assert_eq!(head.target.of(buffer), b"/a/b?c=d");
    assert_eq!(head.path(buffer), b"/a/b");
    assert_eq!(head.version, Version::Http11);
    let fields: Vec<_> = head
        .fields
        .iter()
        .map(|f| (f.name.of(buffer), f.value.of(buffer)))
        .collect();
    let expected: [(&[u8], &[u8]); 4] = [
        (b"hOsT", b"App.test:8080"),
        (b"X-Empty", b""),
        (b"A", b"1"),
        (b"a", b"2"),
    ];
    assert_eq!(fields, expected);
    assert_eq!(head.fields.values(buffer, "A").collect::<Vec<_>>(), [b"1", b"2"]);
    assert_eq!((head.range.start(), head.range.end()), (2, text.len()));
    let authority = head.authority.unwrap();
    assert_eq!(
        (authority.hostname.unwrap().as_str(), authority.port),
        ("app.test", Some(8080))
    );
}

#[test]
fn target_forms() {
    let path = |line: &str| {
        let text = format!("{line} HTTP/1.1\r\nHost: a.test\r\n\r\n");
        let head = head(&text);
        let (root, rest) = head.path_and_query(text.as_bytes());
        let whole = [root, rest].concat();
        let path = head.path(text.as_bytes());
        (
            String::from_utf8_lossy(&whole).into_owned(),
            String::from_utf8_lossy(path).into_owned(),
        )
    };
    for (line, target, only_path) in [
        ("GET /x?y=/z", "/x?y=/z", "/x"),
        ("GET http://a.test/x?y", "/x?y", "/x"),
        ("GET HTTP://A.test:80", "/", "/"),
        ("GET http://a.test?y", "/?y", "/"),
        ("OPTIONS *", "*", "*"),
        ("OPTIONS http://a.test", "*", "*"),
        ("OPTIONS http://a.test/", "/", "/"),
        ("CONNECT a.test:443", "", ""),
    ] {
        assert_eq!(path(line), (target.to_owned(), only_path.to_owned()), "{line}");
    }
}

#[test]
fn lines_end_in_crlf_and_nothing_else() {
    for text in [
        "GET / HTTP/1.1\nHost: a.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.test\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.test\r\n\n",
        "\nGET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
        "\rGET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
    ] {
        assert_eq!(refusal(text.as_bytes()), HeadError::LineEnd, "{text:?}");
    }
    for text in [
        "GET / HTTP/1.1\r\nHost: a.test\rX: y\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.test\r\nX: a\rb\r\n\r\n",
    ] {
        assert_eq!(refusal(text.as_bytes()), HeadError::FieldValue, "{text:?}");
    }
}

#[test]
fn field_lines_are_strict() {
    for (line, fault) in [
        ("X : y", HeadError::FieldName),
        (" X: y", HeadError::FieldName),
        ("X\u{0}: y", HeadError::FieldName),
        ("X", HeadError::FieldName),
        (": y", HeadError::FieldName),
        ("X(: y", HeadError::FieldName),
        ("X: a\u{0}b", HeadError::FieldValue),
        ("X: a\u{7f}b", HeadError::FieldValue),
        ("X: a\r\n\tfolded", HeadError::FieldName),
        ("Host: a.test", HeadError::HostRepeated),
        ("Connection: close, Host", HeadError::ConnectionOption),
        ("Connection: content-length", HeadError::ConnectionOption),
    ] {
        let text = format!("GET / HTTP/1.1\r\nHost: a.test\r\n{line}\r\n\r\n");
        assert_eq!(refusal(text.as_bytes()), fault, "{line:?}");
    }
}

#[test]
fn request_lines_are_strict() {
    for (line, fault, status) in [
        ("GET /  HTTP/1.1", HeadError::RequestLine, 400),
        ("GET  / HTTP/1.1", HeadError::RequestLine, 400),
        (" GET / HTTP/1.1", HeadError::RequestLine, 400),
        ("GET\t/ HTTP/1.1", HeadError::RequestLine, 400),
        ("GET /", HeadError::RequestLine, 400),
        ("GET / HTTQ/1.1", HeadError::RequestLine, 400),
        ("GET / HTTP/1.1 ", HeadError::LineEnd, 400),
        ("GET / HTTP/1.2", HeadError::VersionUnsupported, 505),
        ("GET / HTTP/2.0", HeadError::VersionUnsupported, 505),
        ("GET /#x HTTP/1.1", HeadError::TargetForm, 400),
        ("GET /\u{fc} HTTP/1.1", HeadError::TargetForm, 400),
        ("GET x HTTP/1.1", HeadError::TargetForm, 400),
        ("GET * HTTP/1.1", HeadError::TargetForm, 400),
        ("GET ftp://a.test/ HTTP/1.1", HeadError::TargetForm, 400),
        ("GET http:/a.test/ HTTP/1.1", HeadError::TargetForm, 400),
        ("GET http://u@a.test/ HTTP/1.1", HeadError::TargetForm, 400),
        ("GET http:/// HTTP/1.1", HeadError::TargetForm, 400),
        ("CONNECT a.test HTTP/1.1", HeadError::TargetForm, 400),
        ("CONNECT / HTTP/1.1", HeadError::TargetForm, 400),
        ("GET http://b.test/ HTTP/1.1", HeadError::AuthorityMismatch, 400),
        ("GET http://a.test:81/ HTTP/1.1", HeadError::AuthorityMismatch, 400),
    ] {
        let text = format!("{line}\r\nHost: a.test\r\n\r\n");
        let found = refusal(text.as_bytes());
        assert_eq!((found, found.status()), (fault, status), "{line:?}");
    }
    assert_eq!(refusal(b"\x16\x03\x01\x00\xa5"), HeadError::RequestLine);
}

#[test]
fn a_host_is_named_once_but_in_http_1_0() {
    assert_eq!(refusal(b"GET / HTTP/1.1\r\n\r\n"), HeadError::HostMissing);
    assert_eq!(refusal(b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n"), HeadError::HostInvalid);
    assert_eq!(
        refusal(b"GET http://a.test/ HTTP/1.1\r\nHost:\r\n\r\n"),
        HeadError::AuthorityMismatch
    );
    assert!(head("GET / HTTP/1.1\r\nHost:\r\n\r\n").authority.unwrap().is_empty());
    let old = head("GET / HTTP/1.0\r\n\r\n");
    assert_eq!((old.version, old.authority), (Version::Http10, None));
    assert!(head("GET http://a.test/ HTTP/1.0\r\n\r\n").authority.is_some());
    assert!(
        head("GET https://a.test/ HTTP/1.1\r\nHost: A.test:443\r\n\r\n")
            .authority
            .is_some()
    );
}

#[test]
fn limits_have_their_own_status_codes() {
    let long_target = format!("GET /{} HTTP/1.1\r\nHost: a.test\r\n\r\n", "x".repeat(64));
    assert_eq!(refusal(long_target.as_bytes()).status(), 414);
    assert_eq!(refusal(&long_target.as_bytes()[..69]), HeadError::TargetTooLong);
    let fields = "GET / HTTP/1.1\r\nHost: a.test\r\n".to_owned() + &"X: y\r\n".repeat(8) + "\r\n";
    assert_eq!(refusal(fields.as_bytes()), HeadError::TooManyFields);
    let long = format!("GET / HTTP/1.1\r\nHost: a.test\r\nX: {}\r\n\r\n", "x".repeat(512));
    assert_eq!(refusal(long.as_bytes()).status(), 431);
    // A head of exactly the limit is within it.
    let frame = "GET / HTTP/1.1\r\nHost: a.test\r\nX: \r\n\r\n".len();
    let exact = format!(
        "GET / HTTP/1.1\r\nHost: a.test\r\nX: {}\r\n\r\n",
        "x".repeat(512 - frame)
    );
    assert_eq!(head(&exact).range.end(), 512);
}

#[test]
fn the_preface_of_http2_is_no_request() {
    for end in 0..PREFACE.len() {
        assert_eq!(parsed(&PREFACE[..end]), Ok(ParsedRequest::Incomplete));
    }
    assert_eq!(parsed(PREFACE), Ok(ParsedRequest::Http2));
    assert_eq!(
        refusal(b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"),
        HeadError::VersionUnsupported
    );
}

#[test]
fn expectations_trailers_and_upgrades() {
    let text = "GET / HTTP/1.1\r\nHost: a.test\r\nExpect: 100-Continue\r\nUpgrade: websocket, h2c\r\nConnection: Upgrade\r\n\r\n";
    let asking = head(text);
    assert!(asking.expects_continue(text.as_bytes()));
    assert_eq!(
        asking.upgrades(text.as_bytes()).collect::<Vec<_>>(),
        [&b"websocket"[..], b"h2c"]
    );
    let trailers = "GET / HTTP/1.1\r\nHost: a.test\r\nTE: gzip;q=0.5, Trailers\r\n\r\n";
    assert!(head(trailers).accepts_trailers(trailers.as_bytes()));
    assert!(!asking.accepts_trailers(text.as_bytes()));
    let unsaid = "GET / HTTP/1.1\r\nHost: a.test\r\nUpgrade: websocket\r\n\r\n";
    assert_eq!(head(unsaid).upgrades(unsaid.as_bytes()).count(), 0);
}

#[test]
fn http_version_and_connection_field_decide_persistence() {
    let keeps = |version: &str, connection: &str| {
        head(&format!(
            "GET / {version}\r\nHost: a.test\r\nConnection: {connection}\r\n\r\n"
        ))
        .is_persistent()
    };
    assert!(keeps("HTTP/1.1", ""));
    assert!(keeps("HTTP/1.0", "Keep-Alive"));
    assert!(!keeps("HTTP/1.0", "x"));
    assert!(!keeps("HTTP/1.1", "x, Close"));
    assert!(!keeps("HTTP/1.0", "keep-alive, close"));
    assert!(keeps("HTTP/1.0", "keep-alive, x"));
    assert!(!keeps("HTTP/1.0", "keep-alive, \u{ff}"));
}

#[test]
fn heads_of_answers() {
    let whole = |text: &[u8]| {
        for end in 0..text.len() {
            assert_eq!(response(&text[..end], &LIMITS), Ok(None), "prefix of {end}");
        }
        response(text, &LIMITS).unwrap().unwrap()
    };
    let text = b"HTTP/1.1 404 Nicht gefunden \xfc\r\nServer: x\r\n\r\n";
    let head = whole(text);
    assert_eq!((head.status, head.version), (404, Version::Http11));
    assert_eq!(head.status_line.of(text), b"HTTP/1.1 404 Nicht gefunden \xfc");
    assert_eq!(whole(b"HTTP/1.0 200\r\n\r\n").status, 200);
    for (bad, fault) in [
        (&b"\r\nHTTP/1.1 200 OK\r\n\r\n"[..], HeadError::StatusLine),
        (b"HTTP/2 200 OK\r\n\r\n", HeadError::StatusLine),
        (b"HTTP/1.1 99 OK\r\n\r\n", HeadError::StatusLine),
        (b"HTTP/1.1 099 OK\r\n\r\n", HeadError::StatusLine),
        (b"HTTP/1.1 200 OK\n\r\n", HeadError::LineEnd),
        (b"HTTP/1.1 200 OK\r\nX : y\r\n\r\n", HeadError::FieldName),
        (b"HTTP/1.1 200 OK\r\nX: y\r\n z\r\n\r\n", HeadError::FieldName),
        (b"<html>", HeadError::StatusLine),
    ] {
        assert_eq!(response(bad, &LIMITS), Err(fault), "{:?}", String::from_utf8_lossy(bad));
    }
}

#[test]
fn a_head_in_arrival_is_parsed_when_a_line_has_ended() {
    let text = b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let mut arrival = HeadArrival::default();
    let due = (1..=text.len()).filter(|&end| arrival.is_due(&text[..end], &LIMITS));
    assert_eq!(due.collect::<Vec<_>>(), [1, 16, 30, 32]);
    let mut arrival = HeadArrival::default();
    let long = vec![b'x'; 5000];
    let limits = MessageLimits::default();
    assert_eq!(
        (1..=long.len())
            .filter(|&end| arrival.is_due(&long[..end], &limits))
            .count(),
        5
    );
}
