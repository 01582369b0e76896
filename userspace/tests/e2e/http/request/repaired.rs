//! Answers that break rules which other balancers do not mind.

use super::scene::{Client, ROUTE, WebHost, body_of, field};
use crate::lab::{Lab, Signalbox, config, lab_test};

const KINDS: [&str; 5] = ["both", "twice", "chunked", "folded", "lf"];

/// Answers with the body `hello` that break a rule.
pub(super) fn unsafe_answer(path: &str) -> Option<&'static str> {
    Some(match path {
        "/unsafe/both" => {
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
        }
        "/unsafe/twice" => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        "/unsafe/chunked" => {
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
        }
        "/unsafe/folded" => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Long: one\r\n\ttwo\r\n\r\nhello",
        "/unsafe/lf" => "HTTP/1.1 103 Early Hints\nLink: </a.css>\n\nHTTP/1.1 200 OK\nContent-Length: 5\n\nhello",
        "/unsafe/padded" => {
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n 3\r\nhel\r\n\t 2 \r\nlo\r\n 0\r\n\r\n"
        }
        "/unsafe/differs" => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        _ => return None,
    })
}

#[lab_test]
fn answers_are_repaired_where_that_is_wanted() {
    let lab = Lab::new();
    let _east = WebHost::start(&lab, "east-1");
    let text = |keys: &[&str]| body_of("", &config::cluster("east-1", keys, &["east-1"]), &[ROUTE]);
    let sb = Signalbox::start(&lab, &text(&[]));
    sb.wait_healthy(&["east-1"]);
    for kind in KINDS {
        let status = Client::connect(&lab).get("a.test", &format!("/unsafe/{kind}")).status;
        assert_eq!(status, 502, "{kind}: the default");
    }
    sb.reload(&text(&["answers: lenient"]));
    let mut client = Client::connect(&lab);
    for kind in KINDS {
        let mut answer = client.get("a.test", &format!("/unsafe/{kind}"));
        if kind == "lf" {
            assert_eq!((answer.status, field(&answer.head, "link")), (103, Some("</a.css>")));
            answer = client.answer("GET");
        }
        assert_eq!(answer.status, 200, "{kind}");
        assert_eq!(answer.body.length, 5, "{kind}");
        assert!(
            !answer.head.replace("\r\n", "").contains('\n'),
            "{kind}: {:?}",
            answer.head
        );
        let (length, chunks) = (
            field(&answer.head, "content-length"),
            field(&answer.head, "transfer-encoding"),
        );
        let is_chunked = matches!(kind, "both" | "chunked");
        let expected = if is_chunked {
            (None, Some("chunked"))
        } else {
            (Some("5"), None)
        };
        assert_eq!((length, chunks), expected, "{kind}");
        assert_eq!(
            answer.head.to_ascii_lowercase().matches("content-length").count(),
            usize::from(!is_chunked)
        );
        if kind == "folded" {
            assert_eq!(field(&answer.head, "x-long"), Some("one two"));
        }
    }
    let repaired = || sb.metric("signalbox_repaired_answers_total{cluster=\"east-1\"}") as usize;
    assert_eq!(repaired(), KINDS.len(), "an interim answer counts with its final one");
    let padded = client.get("a.test", "/unsafe/padded");
    assert_eq!((padded.status, padded.body.length), (200, 5));
    assert_eq!(repaired(), KINDS.len() + 1);
    assert_eq!(
        client.get("a.test", "/chunked/70000").body.length,
        70_000,
        "right answers stay as they are"
    );
    assert_eq!(client.get("a.test", "/unsafe/differs").status, 502, "what leaves doubt");
    assert_eq!(repaired(), KINDS.len() + 1);
    // Never requests.
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\nX: a\r\n b\r\n\r\n");
    assert_eq!(client.answer("GET").status, 400);
}
