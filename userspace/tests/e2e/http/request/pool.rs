//! Connections to hosts that clients share.

use super::scene::{HTTP, config_of};
use crate::http::h2c::clients::{h2load, is_installed};
use crate::lab::{Lab, Router, Signalbox, http, privileged};

/// Requests that h2load has under way at a time.
const CONCURRENCY: u32 = 400;

/// Connections that nginx has accepted.
fn accepted(lab: &Lab) -> u32 {
    let said = http::curl(
        lab,
        "10.1.0.1",
        &["-H", "Host: a.test", &format!("http://{HTTP}/accepted")],
    );
    let counts = said.body.lines().nth(2).unwrap_or_default();
    let accepts = counts.split_whitespace().next().and_then(|count| count.parse().ok());
    accepts.unwrap_or_else(|| panic!("no status of nginx: {}", said.body))
}

/// A few clients that speak HTTP/2 have hundreds of requests under way: each connection to the host serves many.
#[test]
fn an_http1_host_gets_no_more_connections_than_requests_at_once() {
    let name = "an_http1_host_gets_no_more_connections_than_requests_at_once";
    if !privileged(name) || !is_installed("h2load", "nghttp2-client") {
        return;
    }
    let lab = Lab::new();
    let _east = Router::nginx_with(&lab, "east-1", "", "location = /accepted { stub_status; }");
    let route = "{ host: a.test, clusters: { east-1: 1 } }";
    let sb = Signalbox::start(&lab, &config_of("", &["east-1"], &[route]));
    sb.wait_healthy(&["east-1"]);
    let before = accepted(&lab);
    h2load(&lab, &format!("http://{HTTP}/"), 8000, CONCURRENCY / 4);
    let made = accepted(&lab) - before;
    // Health checks are connections, too.
    assert!(
        made < CONCURRENCY + 50,
        "{made} connections for {CONCURRENCY} requests at a time"
    );
}
