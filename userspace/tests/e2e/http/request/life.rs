//! Kept connections: reloads, the end of the process, limits of clients, PROXY protocol.

use super::scene::{Client, HTTP, ROUTE, WebHost, body_of, config_of, field};
use crate::lab::{Lab, Router, SOON, Signalbox, config, eventually, lab_test};

#[lab_test]
fn kept_connections_survive_reloads_and_end_with_the_process() {
    let lab = Lab::new();
    let east = WebHost::start(&lab, "east-1");
    let body = |extra| config_of(extra, &["east-1"], &[ROUTE]);
    let mut sb = Signalbox::start(&lab, &body(""));
    sb.wait_healthy(&["east-1"]);
    let (mut client, mut idle) = (Client::connect(&lab), Client::connect(&lab));
    for extra in ["", "timeouts: { answer: 20s }", ""] {
        sb.reload(&body(extra));
        assert_eq!(
            (client.host_of("a.test"), idle.host_of("a.test")),
            ("east-1".into(), "east-1".into())
        );
    }
    // A listener that switches to whole connections closes those that it has.
    sb.reload(&body("").replace("routing: request", "routing: connection"));
    let answer = client.get("a.test", "/");
    assert_eq!((answer.status, field(&answer.head, "connection")), (200, Some("close")));
    assert!(client.is_at_end());
    sb.reload(&body(""));
    let mut crossing = Client::connect(&lab);
    assert_eq!(
        (crossing.host_of("a.test"), idle.host_of("a.test")),
        ("east-1".into(), "east-1".into())
    );
    // The host answers after the last byte of the body.
    let mut asking = Client::connect(&lab);
    east.take();
    asking.send("POST /digest HTTP/1.1\r\nHost: a.test\r\nContent-Length: 2\r\n\r\na");
    assert!(eventually(SOON, || !east.take().is_empty()));
    sb.term();
    assert!(eventually(SOON, || sb
        .try_get("/readyz")
        .map_or(true, |r| r.status != 200)));
    // A request that crosses the end is answered, with the notice that it was the last.
    let answer = crossing.get("a.test", "/");
    assert_eq!((answer.status, field(&answer.head, "connection")), (200, Some("close")));
    // So is one whose answer begins after the end.
    asking.send("b");
    let answer = asking.answer("POST");
    assert_eq!((answer.status, field(&answer.head, "connection")), (200, Some("close")));
    assert!(asking.is_at_end() && idle.is_at_end());
    assert!(sb.proc.wait_exit(SOON).is_some_and(|status| status.success()));
}

#[lab_test]
fn limits_of_a_source_count_connections_and_no_requests() {
    let lab = Lab::new();
    let _east = WebHost::start(&lab, "east-1");
    let limits = "limits: { per_source: { concurrent: 2 } }";
    let sb = Signalbox::start(&lab, &config_of(limits, &["east-1"], &[ROUTE]));
    sb.wait_healthy(&["east-1"]);
    let (mut first, mut second) = (Client::connect(&lab), Client::connect(&lab));
    for _ in 0..5 {
        assert_eq!(
            (first.host_of("a.test"), second.host_of("a.test")),
            ("east-1".into(), "east-1".into())
        );
    }
    // The reset may come before the client looks at its connection.
    if let Ok(stream) = lab.client.try_connect(HTTP) {
        assert!(Client::on(stream).is_at_end());
    }
    assert_eq!(sb.metric("signalbox_refused_total{reason=\"source_concurrent\"}"), 1.0);
    drop(first);
    assert!(eventually(SOON, || {
        let asked = lab
            .client
            .try_connect(HTTP)
            .and_then(|stream| crate::lab::http::get(&stream, "a.test", "/"));
        asked.is_ok_and(|answer| answer.status == 200)
    }));
}

#[lab_test]
fn a_proxy_header_host_gets_one_connection_per_client() {
    let lab = Lab::new();
    let _router = Router::accept_proxy(&lab, "east-1");
    let east = config::cluster("east-1", &["proxy_protocol: v2"], &["east-1"]);
    let sb = Signalbox::start(&lab, &body_of("", &east, &[ROUTE]));
    sb.wait_healthy(&["east-1"]);
    for from in ["10.1.0.2", "10.1.0.3", "10.1.0.2"] {
        let mut client = Client::connect_from(&lab, from);
        for _ in 0..2 {
            let answer = client.get("a.test", "/");
            assert_eq!(crate::lab::http::field(&answer.text, "client"), from);
        }
    }
    assert_eq!(sb.metric("signalbox_pool_connections{state=\"idle\"}"), 0.0);
}
