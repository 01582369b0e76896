//! Session tickets.

use std::sync::Arc;

use rustls::HandshakeKind;

use super::scene::{body, certificate, certificates, trusting, try_connect};
use crate::http_request::scene::WebHost;
use crate::lab::{Lab, Signalbox, privileged};

const ROUTE: &str = "{ host: a.test, clusters: { east-1: 1 }, tls: { termination: edge } }";

#[test]
fn sessions_resume_after_a_reload_and_after_a_restart() {
    if !privileged("sessions_resume_after_a_reload_and_after_a_restart") {
        return;
    }
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
