//! gRPC's C core (Python) as client and as host.

use crate::http::h2c::clients::{PYTHON, has_grpcio, script};
use crate::http::https::scene::{HTTPS, body, certificate, certificates};
use crate::http::request::scene::{HTTP, ROUTE};
use crate::lab::{Lab, Proc, SOON, Server, Signalbox, eventually, lab_test, servers};

/// Starts a gRPC server on east-1: in plain on :80, or in TLS on :443.
fn host(lab: &Lab, tls: Option<&str>) -> (Server, Proc) {
    let ns = lab.host("east-1");
    let mut command = ns.command(PYTHON);
    let path = script(lab, "grpc_server.py", include_str!("../h2c/grpc_server.py"));
    let at = if tls.is_some() { "[::]:443" } else { "[::]:80" };
    command.arg(path).args([at, "east-1"]).args(tls);
    let server = Proc::spawn("grpc-server", command, lab.dir());
    let is_up = eventually(SOON, || server.log().contains("serving"));
    assert!(is_up, "{}", server.log());
    (servers::healthy(ns), server)
}

/// Makes all kinds of calls at an address.
fn call(lab: &Lab, sb: &Signalbox, words: &[&str]) {
    let path = script(lab, "grpc_calls.py", include_str!("grpc_calls.py"));
    let words = [&[PYTHON, path.to_str().unwrap()], words].concat();
    let output = lab.client.output(&words);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "all there\n",
        "{}\n{}",
        String::from_utf8_lossy(&output.stderr),
        sb.proc.log()
    );
}

/// Checks that the host has learnt of the call that the client has cancelled, and of the one that took too long.
fn expect_ended(server: &Proc, calls: usize) {
    let count = |line: &str| server.log().lines().filter(|said| *said == line).count();
    // The stream that was served to its end counts as ended, too.
    let has_ended = eventually(SOON, || count("ended") == calls && count("stream ended") == 2 * calls);
    assert!(has_ended, "{}", server.log());
}

#[lab_test]
fn grpc_calls_by_plain_and_tls_clients_reach_plain_hosts() {
    if !has_grpcio() {
        return;
    }
    let lab = Lab::new();
    let (_health, server) = host(&lab, None);
    let pem = certificate(&lab, "lb", &["a.test"]);
    let edge = "{ host: a.test, clusters: { east-1: 1 }, tls: { termination: edge, insecure: allow } }";
    let config = body("", &certificates(&pem), &[("east-1", "h2c: true")], &[edge]);
    let sb = Signalbox::start(&lab, &config);
    sb.wait_healthy(&["east-1"]);
    call(&lab, &sb, &[HTTP, "a.test"]);
    expect_ended(&server, 1);
    call(
        &lab,
        &sb,
        &[HTTPS, "a.test", lab.dir().join("ca.pem").to_str().unwrap()],
    );
    expect_ended(&server, 2);
    // 300 calls at once took four connections, of a worker.
    let total = sb.host("east-1")["total_connections"].as_u64().unwrap();
    assert!((1..=8).contains(&total), "{total}");
    let active = || sb.metric("signalbox_host_http2_streams_active{cluster=\"east-1\"}");
    assert!(eventually(SOON, || active() < 0.5));
    // The call whose client went away counts against the client: nothing was wrong with the host.
    assert_eq!(sb.metric("signalbox_retries_total{cluster=\"east-1\"}"), 0.0);
}

#[lab_test]
fn calls_are_encrypted_again_for_hosts_in_tls() {
    if !has_grpcio() {
        return;
    }
    let lab = Lab::new();
    let own = certificate(&lab, "east-1", &["a.test"]);
    let (_health, server) = host(&lab, Some(own.to_str().unwrap()));
    let pem = certificate(&lab, "lb", &["a.test"]);
    let keys = format!("backend_tls: {{ ca: {}, alpn: [h2, http/1.1] }}", own.display());
    let route = "{ host: a.test, clusters: { east-1: 1 }, tls: { termination: reencrypt } }";
    let sb = Signalbox::start(&lab, &body("", &certificates(&pem), &[("east-1", &keys)], &[route]));
    sb.wait_healthy(&["east-1"]);
    call(
        &lab,
        &sb,
        &[HTTPS, "a.test", lab.dir().join("ca.pem").to_str().unwrap()],
    );
    expect_ended(&server, 1);
}

#[lab_test]
fn a_stream_may_be_silent_for_longer_than_a_body() {
    if !has_grpcio() {
        return;
    }
    let lab = Lab::new();
    let (_health, _server) = host(&lab, None);
    let cluster = crate::lab::config::cluster("east-1", &["h2c: true"], &["east-1"]);
    let config = crate::http::request::scene::body_of("timeouts: { body: 1s, answer: 1s }", &cluster, &[ROUTE]);
    let sb = Signalbox::start(&lab, &config);
    sb.wait_healthy(&["east-1"]);
    let path = script(&lab, "grpc_pause.py", include_str!("grpc_pause.py"));
    let output = lab.client.output(&[PYTHON, path.to_str().unwrap(), HTTP, "a.test"]);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "all there\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
