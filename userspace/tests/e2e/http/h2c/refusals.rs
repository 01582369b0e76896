//! HTTP/2 clients are refused in HTTP/2.

use std::io::Write;
use std::net::TcpStream;

use super::{ACK, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PREFACE, SETTINGS, body, frame, read_frame, request};
use crate::lab::{Lab, Router, SOON, Signalbox, eventually, http, lab_test};

const AT: &str = "10.1.0.1:80";

/// Reads all frames until the end.
fn rest(stream: &TcpStream) -> Vec<(u8, u8, u8, Vec<u8>)> {
    std::iter::from_fn(|| read_frame(stream)).collect()
}

fn goaway(stream: u8, code: u8) -> Vec<u8> {
    vec![0, 0, 0, stream, 0, 0, 0, code]
}

#[lab_test]
fn curl_and_nghttp_see_404_and_503_over_http2() {
    let lab = Lab::new();
    let sb = Signalbox::start(&lab, &body("", &[], &["east-1"]));
    assert!(eventually(SOON, || sb.host("east-1")["health"] == "unhealthy"));
    for (name, status, why) in [
        ("nobody.test", "404", "No application"),
        ("a.test", "503", "no healthy router host"),
    ] {
        for method in ["-dx=1", "-XGET"] {
            let words = [
                "--http2-prior-knowledge",
                "-w",
                "v=%{http_version} s=%{http_code} t=%{content_type}",
                method,
                &format!("http://{name}/"),
            ];
            let answer = http::curl(&lab, "10.1.0.1", &words);
            assert_eq!(answer.code, 0, "{}", answer.trace);
            assert_eq!(http::field(&answer.body, "v"), "2", "{}", answer.trace);
            assert_eq!(http::field(&answer.body, "s"), status);
            assert!(
                answer.body.contains(why) && answer.body.contains("t=text/plain"),
                "{}",
                answer.body
            );
        }
        let head = ["--http2-prior-knowledge", "-I", &format!("http://{name}/")];
        let answer = http::curl(&lab, "10.1.0.1", &head);
        assert!(
            answer.code == 0 && answer.body.starts_with(&format!("HTTP/2 {status}")),
            "{}",
            answer.trace
        );
        if super::clients::is_installed("nghttp", "nghttp2-client") {
            let authority = format!(":authority: {name}");
            let output = lab
                .client
                .output(&["nghttp", "-v", "-H", &authority, "http://10.1.0.1/"]);
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(said.contains(&format!(":status: {status}")), "{said}");
            assert!(
                said.contains("recv GOAWAY") && said.contains("error_code=NO_ERROR(0x00)"),
                "{said}"
            );
            assert!(!said.contains("RST_STREAM"), "{said}");
        }
    }
    assert!(sb.metric("signalbox_refused_total{listener=\"cut\",reason=\"no_route\"}") >= 3.0);
}

#[lab_test]
fn frames_out_of_order_and_dawdlers_are_told_so() {
    let lab = Lab::new();
    let _router = Router::start(&lab, "east-1");
    let sb = Signalbox::start(&lab, &body("timeouts: { peek_http: 1s }", &[], &["east-1"]));
    sb.wait_healthy(&["east-1"]);
    let settings = (SETTINGS, 0, 0, vec![]);
    let acknowledgement = (SETTINGS, ACK, 0, vec![]);
    let connect = |bytes: &[u8]| {
        let mut client = lab.client.connect(AT);
        client.write_all(bytes).unwrap();
        client
    };

    // A first frame that is not SETTINGS is a PROTOCOL_ERROR; a header block that does not decode a COMPRESSION_ERROR.
    let opening = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    let broken = [opening.clone(), frame(HEADERS, END_HEADERS, 1, &[0xff; 8])].concat();
    for (bytes, code) in [([PREFACE, &request("a.test", END_STREAM)].concat(), 1), (broken, 9)] {
        let said = rest(&connect(&bytes));
        let (kind, _, _, payload) = said.last().unwrap();
        assert_eq!((*kind, &payload[..8]), (GOAWAY, &goaway(0, code)[..]), "{said:?}");
        assert_eq!(said[0], settings);
    }

    // The first client says nothing more, the second does not acknowledge, the third never ends its request.
    let client = connect(&opening);
    let said = rest(&client);
    assert_eq!(
        said,
        [settings.clone(), acknowledgement.clone(), (GOAWAY, 0, 0, goaway(0, 0))]
    );
    let mut client = connect(&opening);
    assert_eq!(read_frame(&client), Some(settings.clone()));
    client.write_all(&request("a.test", END_STREAM)).unwrap();
    let said = rest(&client);
    assert_eq!(said[0], acknowledgement);
    assert_eq!(
        (said[1].0, said[1].2, said[2].0, said[2].1),
        (HEADERS, 1, DATA, END_STREAM),
        "{said:?}"
    );
    assert_eq!(said[3..], [(GOAWAY, 0, 0, goaway(1, 4))], "SETTINGS_TIMEOUT");
    let said = rest(&connect(&[opening, frame(HEADERS, 0, 1, b"\x82")].concat()));
    assert_eq!(said[..2], [settings, acknowledgement]);
    assert_eq!((said[2].0, said[2].2), (HEADERS, 1), "{said:?}");
    assert_eq!(said.last(), Some(&(GOAWAY, 0, 0, goaway(1, 0))));

    for (outcome, times) in [("settings_timeout", 1.0), ("timeout", 2.0), ("malformed", 2.0)] {
        let key = format!("signalbox_peek_total{{listener=\"cut\",outcome=\"{outcome}\"}}");
        assert_eq!(sb.metric(&key), times, "{key}");
    }
    assert_eq!(http::ask(&lab, AT, "a.test").status, 200);
}
