//! Health checks against real routers: the requests of checks without settings, and with PROXY headers.

use crate::lab;

use lab::{Lab, Router, SOON, Signalbox, config, eventually, http, lab_test, servers};
use nix::sys::signal::Signal;

fn body(clusters: &[String]) -> String {
    format!(
        "{}clusters:\n{}unmatched: reject\n",
        config::WEB_LISTENERS,
        clusters.concat()
    )
}

#[lab_test]
fn a_hung_router_is_unhealthy_by_default_despite_open_ports() {
    let lab = Lab::new();
    let routers = Router::start_all(&lab, &["east-1", "east-2"]);
    let _bare = servers::echo(lab.host("west-2"), "[::]:443");
    let health = "health: { interval: 2s }";
    let sb = Signalbox::start(
        &lab,
        &body(&[
            config::cluster("east", &[health], &["east-1", "east-2"]),
            config::cluster("west", &[health], &["west-2"]),
        ]),
    );
    sb.wait_healthy(&["east-1", "east-2", "west-2"]);
    assert_eq!(sb.host("east-1")["checked_by"], "HTTP on port 1936");
    let bare = sb.host("west-2")["checked_by"].as_str().unwrap().to_owned();
    assert!(
        bare.starts_with("TCP connect on port 443; HTTP on port 1936: "),
        "{bare}"
    );
    let table = String::from_utf8(sb.cli(&["hosts"]).stdout).unwrap();
    assert!(table.contains("HTTP on port 1936"), "{table}");

    routers[0].proc.signal(Signal::SIGSTOP);
    assert!(
        eventually(SOON, || sb.host("east-1")["health"] == "unhealthy"),
        "{}",
        sb.host("east-1")
    );
    let detail = sb.host("east-1")["last_check"]["detail"].clone();
    assert_eq!(detail, "no answer within 1s", "it hangs, and is not refused");
    assert_eq!(sb.host("east-2")["health"], "healthy");
    routers[0].proc.signal(Signal::SIGCONT);
    sb.wait_healthy(&["east-1"]);
}

#[lab_test]
fn a_host_that_drops_syns_is_out_and_comes_back() {
    let lab = Lab::new();
    let _routers = Router::start_all(&lab, &["east-1", "east-2"]);
    let health = "health: { interval: 2s, fast_interval: 200ms, rise: 3, fall: 2 }";
    let sb = Signalbox::start(
        &lab,
        &body(&[config::cluster("east", &[health], &["east-1", "east-2"])]),
    );
    sb.wait_healthy(&["east-1", "east-2"]);
    let machine = lab.host("east-1");
    for words in [
        "add table inet bad",
        "add chain inet bad in { type filter hook input priority 0 ; }",
        "add rule inet bad in tcp flags syn drop",
    ] {
        machine.must(&["nft", words]);
    }
    assert!(
        eventually(SOON, || sb.host("east-1")["health"] == "unhealthy"),
        "{}",
        sb.host("east-1")
    );
    assert_eq!(sb.host("east-1")["last_check"]["detail"], "no answer within 1s");
    assert_eq!(sb.host("east-2")["health"], "healthy");
    machine.must(&["nft", "delete table inet bad"]);
    sb.wait_healthy(&["east-1"]);
}

#[lab_test]
fn a_check_speaks_proxy_where_the_router_expects_it() {
    let lab = Lab::new();
    let _routers = ["east-1", "east-2"].map(|host| Router::accept_proxy(&lab, host));
    let on_80 = "health: { http: {}, interval: 2s }";
    let silent = "health: { http: {}, interval: 2s, proxy_protocol: none }";
    let sb = Signalbox::start(
        &lab,
        &body(&[
            config::cluster("asked", &["proxy_protocol: v2", on_80], &["east-1"]),
            config::cluster(
                "unsaid",
                &["proxy_protocol: v2", "health: { interval: 2s }"],
                &["east-2"],
            ),
        ]),
    );
    sb.wait_healthy(&["east-1", "east-2"]);
    assert_eq!(sb.host("east-1")["checked_by"], "HTTP on port 80, with a PROXY header");
    assert_eq!(sb.host("east-2")["checked_by"], "HTTP on port 1936");
    // The router does not answer connections without one.
    sb.reload(&body(&[config::cluster(
        "asked",
        &["proxy_protocol: v2", silent],
        &["east-1"],
    )]));
    assert!(
        eventually(SOON, || sb.host("east-1")["health"] == "unhealthy"),
        "{}",
        sb.host("east-1")
    );
}

#[lab_test]
fn the_query_of_a_check_is_shown_nowhere() {
    let lab = Lab::new();
    let _router = Router::start(&lab, "east-1");
    let health = "health: { http: { path: \"/ready?token=open-sesame\" }, interval: 2s }";
    let sb = Signalbox::start(&lab, &body(&[config::cluster("east", &[health], &["east-1"])]));
    sb.wait_healthy(&["east-1"]);
    let run = |words: &[&str]| String::from_utf8(sb.cli(words).stdout).unwrap();
    for text in [run(&["config", "show"]), sb.get("/api/v1/config").1] {
        assert!(text.contains("/ready?...") && !text.contains("open-sesame"), "{text}");
    }
    for path in ["/api/v1/clusters", "/api/v1/hosts", "/metrics"] {
        assert!(!sb.get(path).1.contains("open-sesame"), "{path}");
    }
    assert!(!sb.proc.log().contains("open-sesame"), "{}", sb.proc.log());
}

/// A copied line makes a balancer its own host: each connection would come back as another one, up to the limit.
#[lab_test]
fn a_host_that_is_an_own_listener_gets_no_connections() {
    let lab = Lab::new();
    let _router = Router::start(&lab, "east-1");
    let own =
        "  - name: own\n    health: { tcp: { port: 80 } }\n    hosts: [{ name: own-1, address: 10.1.0.1, http: 80 }]\n";
    let routes = "routes:\n  - { host: own.test, clusters: { own: 1 } }\n  - { host: a.test, clusters: { east: 1 } }\n";
    let east = config::cluster("east", &[], &["east-1"]);
    let sb = Signalbox::start(&lab, &format!("{}{routes}", body(&[own.to_owned(), east])));
    sb.wait_healthy(&["east-1"]);
    assert_eq!(sb.host("own-1")["state"], "own_listener");
    for (name, status) in [("own.test", 503), ("a.test", 200), ("own.test", 503)] {
        assert_eq!(http::ask(&lab, "10.1.0.1:80", name).status, status, "{name}");
    }
    // Checks of `own-1` are connections, too, but name no host.
    assert!(sb.metric("signalbox_peek_total{outcome=\"host\"}") <= 3.0);
    let explained = String::from_utf8(sb.cli(&["explain", "own.test"]).stdout).unwrap();
    assert!(explained.contains("it is a listener of this balancer"), "{explained}");
}
