//! Names whose TLS ends at the host, at a listener that ends the TLS of others.

use std::sync::Arc;

use super::scene::{HTTPS, body, certificate, certificates, connect, is_shown, trusting, try_connect};
use crate::lab::{Lab, Router, Signalbox, http, lab_test};

const ROUTES: [&str; 2] = [
    "{ host: a.test, clusters: { east-1: 1 }, tls: { termination: edge } }",
    "{ host: shop.example.com, clusters: { east-1: 1 } }",
];

#[lab_test]
fn the_name_decides_where_tls_ends() {
    let lab = Lab::new();
    let _east = Router::start(&lab, "east-1");
    let pem = certificate(&lab, "lb", &["a.test", "shop.example.com"]);
    let sb = Signalbox::start(&lab, &body("", &certificates(&pem), &[("east-1", "")], &ROUTES));
    sb.wait_healthy(&["east-1"]);
    let mut passed = connect(&lab, "shop.example.com");
    assert!(
        is_shown(&mut passed, &lab.dir().join("east-1.pem")),
        "the host's certificate"
    );
    assert_eq!(
        http::field(&passed.get("shop.example.com", "/").text, "sni"),
        "shop.example.com"
    );
    let mut ended = connect(&lab, "a.test");
    assert!(is_shown(&mut ended, &pem), "the balancer's certificate");
    assert_eq!(ended.get("a.test", "/").status, 200);
    // A browser may use a connection for another name of its certificate.
    assert_eq!(ended.get("shop.example.com", "/").status, 421);
    let curl = http::curl(&lab, "10.1.0.1", &["https://a.test/"]);
    assert_eq!(
        (curl.code, &*http::field(&curl.body, "name")),
        (0, "a.test"),
        "{}",
        curl.trace
    );
    let not_cut = sb.metric("signalbox_not_cut_total{listener=\"https\",reason=\"tls_terminated\"}");
    assert!((not_cut - 2.0).abs() < 0.5, "{not_cut}");
}

#[lab_test]
fn a_strict_listener_refuses_a_name_without_a_certificate() {
    let lab = Lab::new();
    let _east = Router::start(&lab, "east-1");
    let pem = certificate(&lab, "lb", &["a.test"]);
    let text = format!("certificates: [{{ cert: {}, default: true }}]", pem.display());
    let hosts = [("east-1", "")];
    let strict = body(", termination: edge, strict_sni: true", &text, &hosts, &ROUTES);
    let sb = Signalbox::start(&lab, &strict);
    sb.wait_healthy(&["east-1"]);
    let refused = try_connect(&lab, "none.test", Arc::new(trusting(&lab))).err().unwrap();
    assert!(refused.to_string().contains("UnrecognisedName"), "{refused}");
    let failed = sb.metric("signalbox_tls_handshake_failures_total{listener=\"https\",reason=\"no_certificate\"}");
    assert!((failed - 1.0).abs() < 0.5, "{failed}");
    // With a default certificate the client itself decides, and this one wants the name.
    sb.reload(&body(", termination: edge", &text, &hosts, &ROUTES));
    let refused = try_connect(&lab, "none.test", Arc::new(trusting(&lab))).err().unwrap();
    assert!(refused.to_string().contains("not valid for name"), "{refused}");
    // Bytes that are no TLS get no certificate, and the listener stays open.
    let mut plain = crate::http::request::scene::Client::on(lab.client.connect(HTTPS));
    plain.send("SSH-2.0-OpenSSH_9.2\r\n");
    assert!(plain.is_at_end());
    assert_eq!(connect(&lab, "a.test").get("a.test", "/").status, 200);
}
