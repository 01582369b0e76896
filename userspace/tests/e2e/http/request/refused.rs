//! Requests that the balancer answers itself: nothing of them reaches a host.

use std::io::Write;

use super::scene::{Client, ROUTE, WebHost, config_of, field, one_host};
use crate::lab::signalbox::{check, write_config};
use crate::lab::{Lab, Signalbox, http, lab_test};

#[lab_test]
fn requests_that_could_smuggle_are_refused_and_reach_no_host() {
    let lab = Lab::new();
    let east = WebHost::start(&lab, "east-1");
    let sb = Signalbox::start(&lab, &config_of("timeouts: { peek_http: 2s }", &["east-1"], &[ROUTE]));
    sb.wait_healthy(&["east-1"]);
    let post = |fields: &str| {
        format!("POST / HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\nHost: a.test\r\n\r\n")
    };
    let long = |n| "x".repeat(n);
    let cases = [
        (
            400,
            "length_and_transfer_encoding",
            post("Content-Length: 5\r\nTransfer-Encoding: chunked"),
        ),
        (
            400,
            "content_length_repeated",
            post("Content-Length: 5\r\nContent-Length: 5"),
        ),
        (400, "content_length_invalid", post("Content-Length: +5")),
        (
            501,
            "transfer_encoding_unsupported",
            post("Transfer-Encoding: gzip, chunked"),
        ),
        (400, "field_name", post("Content-Length : 5")),
        (
            400,
            "field_name",
            "GET / HTTP/1.1\r\nHost: a.test\r\n X: folded\r\n\r\n".to_owned(),
        ),
        (400, "line_end", "GET / HTTP/1.1\nHost: a.test\n\n".to_owned()),
        (
            400,
            "host_repeated",
            "GET / HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n".to_owned(),
        ),
        (400, "host_missing", "GET / HTTP/1.1\r\nX: y\r\n\r\n".to_owned()),
        (
            400,
            "authority_mismatch",
            "GET http://b.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned(),
        ),
        (
            400,
            "connection_option",
            "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: host\r\n\r\n".to_owned(),
        ),
        (
            414,
            "target_too_long",
            format!("GET /{} HTTP/1.1\r\nHost: a.test\r\n\r\n", long(17_000)),
        ),
        (
            431,
            "head_too_large",
            format!("GET / HTTP/1.1\r\nHost: a.test\r\nX: {}\r\n\r\n", long(33_000)),
        ),
        (
            501,
            "connect_unsupported",
            "CONNECT a.test:80 HTTP/1.1\r\nHost: a.test:80\r\n\r\n".to_owned(),
        ),
        (408, "head_timeout", "GET / HTTP/1.1\r\nHost: a.te".to_owned()),
    ];
    for (status, reason, text) in cases {
        let mut client = Client::connect(&lab);
        let _ = client.stream().write_all(text.as_bytes());
        let answer = client.answer("GET");
        let case = &text[..text.len().min(100)];
        assert_eq!(
            (answer.status, field(&answer.head, "connection")),
            (status, Some("close")),
            "{case:?}"
        );
        let count = sb.metric(&format!(
            "signalbox_request_refused_total{{listener=\"http\",reason=\"{reason}\"}}"
        ));
        assert!(count >= 1.0, "{reason} is not counted: {case:?}");
        assert!(client.is_at_end(), "{case:?}");
    }
    assert_eq!(east.take(), [""; 0]);
    // A body that breaks the rules ends its request, and the bytes after it are no request.
    let mut client = Client::connect(&lab);
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n3\nabcGET /x HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert_eq!(client.answer("POST").status, 400);
    assert!(client.is_at_end());
    assert!(east.take().iter().all(|head| !head.contains("/x")));
}

#[lab_test]
fn http2_begins_with_a_connection_or_not_at_all() {
    let lab = Lab::new();
    let (east, sb) = one_host(&lab);
    let words = [
        "--http2-prior-knowledge",
        "-w",
        " code=%{http_code} v=%{http_version}",
        "http://a.test/",
    ];
    let said = http::curl(&lab, "10.1.0.1", &words);
    assert!(
        said.code == 0 && said.body.contains("host=east-1  code=200 v=2"),
        "{} {}",
        said.body,
        said.trace
    );
    let heads = east.take();
    assert!(heads[0].contains("X-Forwarded-Proto: http\r\n"), "{heads:?}");
    let mut client = Client::connect(&lab);
    assert_eq!(client.get("a.test", "/").status, 200);
    client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert!(!client.is_at_end(), "the refusal comes first");
    assert_eq!(east.take().len(), 1);
    assert_eq!(
        sb.metric("signalbox_request_refused_total{reason=\"http2_unsupported\"}"),
        1.0
    );
}

#[lab_test]
fn routing_by_request_needs_http() {
    let lab = Lab::new();
    let body = config_of("", &["east-1"], &[ROUTE]);
    assert!(check(&write_config(&lab, "good.yaml", &body)).status.success());
    for protocol in ["tls", "tcp"] {
        let bad = body.replace("protocol: http,", &format!("cluster: east-1, protocol: {protocol},"));
        let output = check(&write_config(&lab, "bad.yaml", &bad));
        let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success(), "{text}");
        assert!(
            text.contains("bad.yaml:5:") && text.contains("`routing: request` needs `protocol: http`"),
            "{text}"
        );
    }
}

#[lab_test]
fn error_pages_are_the_operators_own() {
    let lab = Lab::new();
    let _east = WebHost::start(&lab, "east-1");
    let page = |name: &str, text: &str| {
        let path = lab.dir().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (lost, sorry) = (page("404.json", "{\"lost\":true}"), page("503.html", "<p>sorry</p>"));
    let pages = format!("pages: {{ 404: {lost}, 503: {sorry} }}");
    let routes = [
        "{ host: a.test, clusters: { east-1: 1 } }",
        "{ host: b.test, clusters: { west-1: 1 } }",
    ];
    let text = config_of(&pages, &["east-1", "west-1"], &routes);
    let sb = Signalbox::start(&lab, &text);
    sb.wait_healthy(&["east-1"]);
    let mut client = Client::connect(&lab);
    for _ in 0..2 {
        let answer = client.get("x.test", "/");
        assert_eq!((answer.status, &*answer.text), (404, "{\"lost\":true}"));
        assert_eq!(field(&answer.head, "content-type"), Some("application/json"));
    }
    let answer = client.get("b.test", "/");
    assert_eq!((answer.status, &*answer.text), (503, "<p>sorry</p>"));
    client.send("HEAD / HTTP/1.1\r\nHost: b.test\r\n\r\n");
    let answer = client.answer("HEAD");
    assert_eq!(
        (answer.status, field(&answer.head, "content-length")),
        (503, Some("12"))
    );
    client.send("HEAD /status/503 HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let answer = client.answer("HEAD");
    let length = field(&answer.head, "content-length");
    assert_eq!(
        (answer.status, length),
        (503, Some("7")),
        "a host's answer is the host's"
    );
    // Another text is read with the next configuration, and a file that is gone changes nothing.
    page("503.html", "later");
    sb.reload(&format!("{text}\n"));
    assert_eq!(client.get("b.test", "/").text, "later");
    let wrong = text.replace(&sorry, "/nowhere.html");
    let refused = sb.unix("PUT", "/api/v1/config", &sb.document(&wrong));
    assert!(
        refused.status >= 400 && refused.body.contains("/nowhere.html"),
        "{}",
        refused.body
    );
    assert_eq!(client.get("b.test", "/").text, "later");
    // Of a connection that is refused as one.
    sb.reload(&text.replace(" routing: request,", ""));
    let answer = Client::connect(&lab).get("x.test", "/");
    assert_eq!((answer.status, &*answer.text), (404, "{\"lost\":true}"));
}
