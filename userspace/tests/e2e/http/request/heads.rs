//! Heads that are larger than by default.

use super::scene::{Client, WebHost, config_of, field};
use crate::lab::http::curl;
use crate::lab::{Lab, Signalbox, lab_test};

#[lab_test]
fn heads_are_as_large_as_the_configuration_says() {
    let lab = Lab::new();
    let east = WebHost::start(&lab, "east-1");
    let text = |limits: &str| {
        let route = "{ host: a.test, clusters: { east-1: 1 } }";
        config_of(limits, &["east-1"], &[route])
    };
    let sb = Signalbox::start(&lab, &text(""));
    sb.wait_healthy(&["east-1"]);
    let (large, many) = (
        "x".repeat(90_000),
        (0..400).map(|n| format!("X-{n}: {n}\r\n")).collect::<String>(),
    );
    let ask = |target: &str, fields: &str| {
        let mut client = Client::connect(&lab);
        client.send(&format!("GET {target} HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n"));
        client.answer("GET")
    };
    let large_field = format!("X-Large: {large}\r\n");
    // curl sends no more than 64 KiB of fields.
    let over_http2 = || {
        let part = |name: &str| format!("{name}: {}", &large[..25_000]);
        let (first, second) = (part("X-First"), part("X-Second"));
        let words = [
            "--http2-prior-knowledge",
            "-w",
            "%{http_code}",
            "-o",
            "/dev/null",
            "-H",
            &first,
            "-H",
            &second,
        ];
        curl(&lab, "10.1.0.1", &[&words[..], &["http://a.test/"]].concat()).body
    };
    assert_eq!(over_http2(), "431");
    for (target, fields, status) in [
        ("/", &large_field, 431),
        ("/", &many, 431),
        ("/fields/400", &String::new(), 502),
    ] {
        assert_eq!(ask(target, fields).status, status, "{target}: the default");
    }
    sb.reload(&text("limits: { heads: { bytes: 262144, fields: 500 } }"));
    east.take();
    assert_eq!(ask("/", &large_field).status, 200);
    assert_eq!(ask("/", &many).status, 200);
    assert_eq!(ask(&format!("/{}", &large[..50_000]), "").status, 200);
    let heads = east.take();
    assert_eq!(field(&heads[0], "x-large"), Some(&*large));
    assert_eq!(field(&heads[1], "x-399"), Some("399"));
    let answer = ask("/fields/400", "");
    assert_eq!((answer.status, field(&answer.head, "x-399")), (200, Some("399")));
    assert_eq!(over_http2(), "200");
    assert_eq!(
        ask("/", &large_field.repeat(3)).status,
        431,
        "beyond what is configured"
    );
}
