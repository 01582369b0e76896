//! Each request is routed separately, by the configuration at its arrival.

use std::collections::BTreeMap;

use super::scene::{Client, HTTP, WebHost, config_of, field};
use crate::lab::{Lab, Router, SOON, Signalbox, eventually, http, lab_test};

/// Answers by host of `requests` requests on one connection.
fn shares(client: &mut Client, requests: usize) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for _ in 0..requests {
        *counts.entry(client.host_of("a.test")).or_default() += 1;
    }
    counts
}

fn weighted(east: u32, west: u32) -> String {
    let route = format!("{{ host: a.test, clusters: {{ east-1: {east}, west-2: {west} }} }}");
    config_of("", &["east-1", "west-2"], &[&route])
}

#[lab_test]
fn weights_are_exact_on_one_connection_and_change_at_once() {
    let lab = Lab::new();
    let _routers = (Router::start(&lab, "east-1"), Router::nginx(&lab, "west-2"));
    let sb = Signalbox::start(&lab, &weighted(10, 80));
    sb.wait_healthy(&["east-1", "west-2"]);
    let mut client = Client::connect(&lab);
    let by_host = |east: usize, west: usize| {
        let named = [("east-1", east), ("west-2", west)].map(|(host, n)| (host.to_owned(), n));
        named.into_iter().filter(|(_, n)| *n > 0).collect::<BTreeMap<_, _>>()
    };
    assert_eq!(shares(&mut client, 90), by_host(10, 80));
    assert_eq!(shares(&mut client, 90), by_host(10, 80));
    sb.reload(&weighted(0, 1));
    assert_eq!(shares(&mut client, 20), by_host(0, 20));
    sb.reload(&weighted(1, 0));
    assert_eq!(shares(&mut client, 20), by_host(20, 0));
    assert_eq!(
        sb.metric("signalbox_listener_connections_total{listener=\"http\"}"),
        1.0
    );
    let counted = |cluster: &str| {
        sb.metric(&format!(
            "signalbox_requests_total{{listener=\"http\",cluster=\"{cluster}\",code=\"2xx\"}}"
        ))
    };
    assert_eq!((counted("east-1"), counted("west-2")), (40.0, 180.0));
    assert_eq!(
        sb.metric("signalbox_backend_connections_total{host=\"west-2\"}"),
        1.0,
        "one kept connection"
    );
    assert_eq!(sb.metric("signalbox_pool_connections{state=\"active\"}"), 0.0);
    assert_eq!(sb.metric("signalbox_not_cut_total{reason=\"routed_per_request\"}"), 1.0);
}

#[lab_test]
fn names_on_one_connection_go_to_their_hosts_with_their_fields() {
    let lab = Lab::new();
    let (east, west) = (WebHost::start(&lab, "east-1"), WebHost::start(&lab, "west-2"));
    let routes = [
        "{ host: a.test, clusters: { east-1: 1 } }",
        "{ host: b.test, clusters: { west-2: 1 } }",
    ];
    let sb = Signalbox::start(&lab, &config_of("", &["east-1", "west-2"], &routes));
    sb.wait_healthy(&["east-1", "west-2"]);
    let mut client = Client::connect(&lab);
    for _ in 0..3 {
        assert_eq!(client.host_of("a.test"), "east-1");
        assert_eq!(client.host_of("B.test:80"), "west-2");
    }
    east.take();
    west.take();
    // A target is passed on byte for byte; fields for the balancer alone are not.
    client.send(
        "GET /%7Ex/../y?q=%00&r HTTP/1.1\r\nhOsT: a.test\r\nX-a:  1 \r\nConnection: X-Private\r\nX-Private: 1\r\n\
         Keep-Alive: 5\r\nX-Forwarded-For: 192.0.2.9\r\nX-A: 2\r\nUpgrade: h2c\r\n\r\n",
    );
    assert_eq!(client.answer("GET").status, 200);
    let heads = east.take();
    let client_address = client.stream().local_addr().unwrap().ip();
    assert_eq!(
        heads,
        [format!(
            "GET /%7Ex/../y?q=%00&r HTTP/1.1\r\nhOsT: a.test\r\nX-a:  1 \r\nX-Forwarded-For: 192.0.2.9\r\nX-A: 2\r\n\
             X-Forwarded-For: {client_address}\r\nX-Forwarded-Host: a.test\r\nX-Forwarded-Port: 80\r\n\
             X-Forwarded-Proto: http\r\nForwarded: for={client_address};host=a.test;proto=http\r\n\r\n"
        )]
    );
    // A name without a route is refused, and the connection stays open.
    let answer = client.get("c.test", "/");
    assert_eq!((answer.status, field(&answer.head, "connection")), (404, None));
    assert_eq!(client.host_of("a.test"), "east-1");
    assert_eq!(sb.metric("signalbox_request_refused_total{reason=\"no_route\"}"), 1.0);
    let curl = http::curl(&lab, "10.1.0.1", &["http://a.test/", "http://b.test/"]);
    assert!(curl.code == 0 && curl.body.contains("host=east-1") && curl.body.contains("host=west-2"));
    assert_eq!(http::ask(&lab, HTTP, "b.test").field("host"), "west-2");
}

#[lab_test]
fn flows_and_explain_say_that_requests_are_not_cut() {
    let lab = Lab::new();
    let _east = WebHost::start(&lab, "east-1");
    let sb = Signalbox::start(
        &lab,
        &config_of("", &["east-1"], &["{ host: a.test, clusters: { east-1: 1 } }"]),
    );
    sb.wait_healthy(&["east-1"]);
    let mut client = Client::connect(&lab);
    // A request whose body is still to come.
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\n");
    let mut flows = Vec::new();
    let is_there = eventually(SOON, || {
        flows = sb.flows("route=a.test");
        flows.len() == 1
    });
    assert!(is_there, "{flows:?}");
    assert_eq!(flows[0]["not_cut"], "routed_per_request");
    assert_eq!(flows[0]["client"], client.stream().local_addr().unwrap().to_string());
    let said = sb.json("/api/v1/explain?host=a.test&client=10.1.0.2").to_string();
    assert!(said.contains("routed_per_request"), "{said}");
}
