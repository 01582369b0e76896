//! TLS that ends at the balancer, and begins again to the host.

use super::scene::{body, certificate, certificates, connect};
use crate::connection::access_log::{lines, log_at};
use crate::http::request::scene::Client;
use crate::lab::{Lab, Router, SOON, Signalbox, eventually, http, lab_test};

const ROUTES: [&str; 2] = [
    "{ host: a.test, clusters: { east-1: 1 }, tls: { termination: reencrypt } }",
    "{ host: shop.example.com, clusters: { east-1: 1 }, tls: { termination: reencrypt } }",
];

fn start(lab: &Lab, backend_tls: &str) -> (Router, Signalbox) {
    let east = Router::start(lab, "east-1");
    let pem = certificate(lab, "lb", &["a.test", "shop.example.com"]);
    let sb = Signalbox::start(lab, &body("", &certificates(&pem), &[("east-1", backend_tls)], &ROUTES));
    sb.wait_healthy(&["east-1"]);
    (east, sb)
}

fn ca(lab: &Lab) -> String {
    format!("backend_tls: {{ ca: {} }}", lab.dir().join("east-1.pem").display())
}

#[lab_test]
fn hosts_are_asked_for_the_clients_name_and_verified() {
    let lab = Lab::new();
    let (_east, sb) = start(&lab, &ca(&lab));
    let mut client = connect(&lab, "a.test");
    for _ in 0..3 {
        let answer = client.get("a.test", "/");
        assert_eq!(answer.status, 200, "{}", answer.head);
        assert_eq!(http::field(&answer.text, "sni"), "a.test");
    }
    // Another name is another connection to the host, whose certificate must have that name.
    let answer = client.get("shop.example.com", "/");
    assert_eq!(http::field(&answer.text, "sni"), "shop.example.com");
    assert_eq!(sb.host("east-1")["total_connections"], 2);
    // A kept connection outlives its client.
    drop(client);
    for _ in 0..20 {
        assert_eq!(connect(&lab, "a.test").get("a.test", "/").status, 200);
    }
    // Each worker has its own connections.
    let total = sb.host("east-1")["total_connections"].as_u64().unwrap();
    assert!(total < 10, "{total}");
}

#[lab_test]
fn a_host_that_cannot_prove_its_name_gets_no_request() {
    let lab = Lab::new();
    let stranger = certificate(&lab, "stranger", &["a.test"]);
    let (_east, sb) = start(&lab, &format!("backend_tls: {{ ca: {} }}", stranger.display()));
    let mut client = connect(&lab, "a.test");
    assert_eq!(client.get("a.test", "/").status, 503);
    let failed = sb.metric("signalbox_connect_failures_total{cluster=\"east-1\",reason=\"tls\"}");
    assert!(failed > 0.5, "{failed}");
    let hosts = |backend_tls: &str| {
        let pem = lab.dir().join("lb.pem");
        body("", &certificates(&pem), &[("east-1", backend_tls)], &ROUTES)
    };
    // The same connection is served by the current configuration at each request.
    sb.reload(&hosts("backend_tls: { verify: false }"));
    sb.wait_healthy(&["east-1"]);
    assert_eq!(client.get("a.test", "/").status, 200);
    // A connection that was made without verification is not used with it.
    sb.reload(&hosts(&format!("backend_tls: {{ ca: {} }}", stranger.display())));
    assert_eq!(client.get("a.test", "/").status, 503);
    sb.reload(&hosts(&format!("{}, name: a.test }}", ca(&lab).trim_end_matches(" }"))));
    let answer = client.get("shop.example.com", "/");
    assert_eq!((answer.status, &*http::field(&answer.text, "sni")), (200, "a.test"));
    assert_eq!(
        http::field(&answer.text, "name"),
        "shop.example.com",
        "the Host field stays"
    );
}

#[lab_test]
fn the_proxy_header_goes_before_the_handshake() {
    let lab = Lab::new();
    let file = lab.dir().join("connections.log");
    let _east = Router::accept_proxy(&lab, "east-1");
    let pem = certificate(&lab, "lb", &["a.test"]);
    let tlvs = "proxy_protocol: { version: 2, tlvs: [authority, unique_id, crc32c] }";
    let keys = format!("{}\n    {tlvs}", ca(&lab));
    let body = body("", &certificates(&pem), &[("east-1", &keys)], &ROUTES[..1]);
    let sb = Signalbox::start(&lab, &format!("{}{body}", log_at(&file, "")));
    sb.wait_healthy(&["east-1"]);
    let mut client = connect(&lab, "a.test");
    let answer = client.get("a.test", "/");
    assert_eq!(http::field(&answer.text, "client"), "10.1.0.2");
    assert_eq!(http::field(&answer.text, "authority"), "a.test");
    drop(client);
    let id = http::field(&answer.text, "id");
    let is_logged = eventually(SOON, || lines(&file).iter().any(|line| line["connection_id"] == *id));
    assert!(is_logged && id.len() == 32, "{id}: {:?}", lines(&file));
    let mut plain = Client::connect(&lab);
    assert_eq!(http::field(&plain.get("a.test", "/").text, "client"), "10.1.0.2");
}
