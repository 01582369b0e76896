//! Handshakes in progress: clients that stall in theirs keep no other client out for long.

use std::net::TcpStream;
use std::sync::Arc;

use rustls::ClientConnection;
use rustls::pki_types::ServerName;

use super::scene::{HTTPS, TlsClient, body, certificate, certificates, shake_hands, trusting};
use crate::http::request::scene::WebHost;
use crate::lab::{Lab, SOON, Signalbox, eventually, lab_test};

const STALLED: [&str; 2] = ["10.1.0.2", "10.1.0.3"];
const OTHER: &str = "10.1.0.4";

/// Connects from an address, sends a ClientHello and takes no answer.
fn stall(lab: &Lab, from: &str) -> TcpStream {
    let name = ServerName::try_from("a.test").unwrap();
    let mut session = ClientConnection::new(Arc::new(trusting(lab)), name).unwrap();
    let mut stream = lab.client.connect_from(from, HTTPS);
    while session.wants_write() {
        session.write_tls(&mut stream).unwrap();
    }
    stream
}

/// Connects from an address and shakes hands.
fn connect(lab: &Lab, from: &str) -> std::io::Result<TlsClient> {
    let stream = lab.client.connect_from(from, HTTPS);
    shake_hands(stream, "a.test", Arc::new(trusting(lab)))
}

fn refused(sb: &Signalbox, reason: &str) -> f64 {
    sb.metric(&format!(
        "signalbox_refused_total{{listener=\"https\",reason=\"{reason}\"}}"
    ))
}

#[lab_test]
fn clients_that_stall_in_the_handshake_keep_other_sources_in() {
    let lab = Lab::new();
    let _east = WebHost::start(&lab, "east-1");
    let pem = certificate(&lab, "lb", &["a.test"]);
    let route = "{ host: a.test, clusters: { east-1: 1 }, tls: { termination: edge } }";
    let with = |patience: &str| {
        let limits = "limits: { handshakes: { per_worker: 8, per_source: 4 } }";
        let extra = format!("{limits}\ntimeouts: {{ peek_tls: {patience} }}\n{}", certificates(&pem));
        body("", &extra, &[("east-1", "")], &[route])
    };
    let sb = Signalbox::start_with(&lab, &with("10m"), &["--workers", "1"]);
    sb.wait_healthy(&["east-1"]);
    let in_progress = |wanted: f64| {
        let metric = "signalbox_tls_handshakes_in_progress";
        assert!(
            eventually(SOON, || sb.metric(metric) == wanted),
            "{}, not {wanted}",
            sb.metric(metric)
        );
    };
    // Twice as many as the source may have in progress.
    let mut stalled: Vec<_> = (0..8).map(|_| stall(&lab, STALLED[0])).collect();
    in_progress(4.0);
    let mut other = connect(&lab, OTHER).unwrap();
    assert_eq!(other.host_of("a.test"), "east-1", "another source's handshake succeeds");
    in_progress(4.0);
    // Clients that come later are refused soon.
    sb.reload(&with("500ms"));
    assert!(connect(&lab, STALLED[0]).is_err());
    assert_eq!(
        (refused(&sb, "source_handshakes"), refused(&sb, "worker_handshakes")),
        (1.0, 0.0)
    );
    // Two sources fill the worker.
    sb.reload(&with("10m"));
    stalled.extend((0..4).map(|_| stall(&lab, STALLED[1])));
    in_progress(8.0);
    sb.reload(&with("500ms"));
    assert!(connect(&lab, OTHER).is_err());
    assert_eq!(refused(&sb, "worker_handshakes"), 1.0);
    assert_eq!(other.host_of("a.test"), "east-1", "who has shaken hands needs no turn");
    // A client that waits is served as soon as others have ended.
    sb.reload(&with("10m"));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| connect(&lab, STALLED[0]).map(|mut client| client.host_of("a.test")));
        assert!(eventually(SOON, || sb
            .metric("signalbox_tls_handshakes_waiting")
            .ge(&5.0)));
        stalled.clear();
        assert_eq!(waiting.join().unwrap().unwrap(), "east-1");
    });
    in_progress(0.0);
    assert_eq!(connect(&lab, OTHER).unwrap().host_of("a.test"), "east-1");
}
