//! Session tickets.

use std::sync::Arc;

use rustls::HandshakeKind;

use super::scene::{body, certificate, certificates, trusting, try_connect};
use crate::http::request::scene::WebHost;
use crate::lab::{Lab, Signalbox, lab_test, privileged};
use crate::sources::etcd;

const ROUTE: &str = "{ host: a.test, clusters: { east-1: 1 }, tls: { termination: edge } }";

#[lab_test]
fn sessions_resume_after_a_reload_and_after_a_restart() {
    let lab = Lab::new();
    let _east = WebHost::start(&lab, "east-1");
    let pem = certificate(&lab, "lb", &["a.test"]);
    let text = |extra: &str| {
        body(
            "",
            &format!("{}\n{extra}", certificates(&pem)),
            &[("east-1", "")],
            &[ROUTE],
        )
    };
    let mut sb = Signalbox::start(&lab, &text(""));
    sb.wait_healthy(&["east-1"]);
    let settings = Arc::new(trusting(&lab));
    let handshake = || {
        let mut client = try_connect(&lab, "a.test", Arc::clone(&settings)).unwrap();
        // The tickets come with the first answer.
        assert_eq!(client.get("a.test", "/").status, 200);
        client.inner().conn.handshake_kind()
    };
    assert_eq!(handshake(), Some(HandshakeKind::Full));
    assert_eq!(handshake(), Some(HandshakeKind::Resumed));
    sb.reload(&text("timeouts: { idle: 10m }"));
    assert_eq!(handshake(), Some(HandshakeKind::Resumed));
    sb.kill9();
    let sb = Signalbox::start(&lab, &text(""));
    sb.wait_healthy(&["east-1"]);
    assert_eq!(handshake(), Some(HandshakeKind::Resumed));
    let resumed = sb.metric("signalbox_tls_handshakes_total{listener=\"https\",version=\"1.3\",resumed=\"yes\"}");
    assert!((resumed - 1.0).abs() < 0.5, "{resumed}");
    sb.reload(&text("tls: { tickets: false }"));
    assert_eq!(handshake(), Some(HandshakeKind::Full));
}

/// Each balancer has its own state database; only the table in etcd is shared.
#[test]
fn a_balancer_resumes_the_sessions_that_another_one_has_begun() {
    const TEST: &str = "a_balancer_resumes_the_sessions_that_another_one_has_begun";
    if !privileged(TEST) || !etcd::available(TEST) {
        return;
    }
    let lab = Lab::new();
    let server = etcd::spawn(&lab);
    etcd::wait_up(&lab, &server);
    let _east = WebHost::start(&lab, "east-1");
    let pem = certificate(&lab, "lb", &["a.test"]);
    let start = |own: &str, tls: &str| {
        let store = format!(
            "store: {{ path: {}/{own}.redb, etcd: {{ endpoints: [\"{}\"] }} }}",
            lab.dir().display(),
            etcd::CLIENT
        );
        let extra = format!("{}\n{store}\n{tls}", certificates(&pem));
        let sb = Signalbox::start(&lab, &body("", &extra, &[("east-1", "")], &[ROUTE]));
        sb.wait_healthy(&["east-1"]);
        sb
    };
    let settings = Arc::new(trusting(&lab));
    let handshake = || {
        let mut client = try_connect(&lab, "a.test", Arc::clone(&settings)).unwrap();
        assert_eq!(client.get("a.test", "/").status, 200);
        client.inner().conn.handshake_kind()
    };
    let mut first = start("first", "");
    assert_eq!(handshake(), Some(HandshakeKind::Full));
    first.kill9();
    let mut second = start("second", "");
    assert_eq!(handshake(), Some(HandshakeKind::Resumed));
    second.kill9();
    let mut third = start("third", "tls: { tickets: own }");
    assert_eq!(handshake(), Some(HandshakeKind::Full));
    third.kill9();
    // The second one has kept a copy, for a start without etcd.
    drop(server);
    let _second = start("second", "");
    assert_eq!(handshake(), Some(HandshakeKind::Full), "the session is the third one's");
    assert_eq!(handshake(), Some(HandshakeKind::Resumed));
}
