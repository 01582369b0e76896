//! Predictions by `explain` of the tier of a connection that does not exist yet.

use crate::lab;

use lab::{Lab, Router, SOON, Signalbox, config, eventually, http, lab_test};

fn body() -> String {
    let east = config::cluster("east", &[], &["east-1"]);
    format!(
        "limits: {{ per_source: {{ concurrent: 9 }} }}\nlisteners:\n  \
         - {{ name: http, protocol: http, listen: [\"10.1.0.1:80\", \"[fd00:1::1]:80\"], proxy_protocol: {{ trusted: [10.1.0.4] }} }}\n  \
         - {{ name: off, protocol: http, listen: [\"10.1.0.1:81\"], datapath: {{ cut: off }} }}\n  \
         - {{ name: forced, protocol: http, listen: [\"10.1.0.1:82\"], datapath: {{ tier: splice }} }}\n\
         clusters:\n{east}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n"
    )
}

#[lab_test]
fn explain_says_whether_a_connection_would_be_cut_and_why_not() {
    let lab = Lab::new();
    let _router = Router::start(&lab, "east-1");
    let sb = Signalbox::start(&lab, &body());
    sb.wait_healthy(&["east-1"]);
    for (client, listener, not_cut) in [
        ("10.1.0.2", "http", None),
        ("fd00:1::2", "http", Some("address_families_differ")),
        ("10.1.0.4", "http", Some("source_named_by_proxy")),
        ("10.1.0.1", "http", Some("client_handshake_not_seen")),
        ("192.0.2.1", "http", Some("client_handshake_not_seen")),
        ("10.1.0.2", "off", Some("off")),
        ("10.1.0.2", "forced", Some("off")),
    ] {
        let answer = sb.json(&format!(
            "/api/v1/explain?host=a.test&client={client}&listener={listener}"
        ));
        let tier = &answer["listeners"][0]["datapath"];
        assert_eq!(tier["not_cut"].as_str(), not_cut, "{client} at {listener}: {answer}");
        let verdict = if not_cut.is_none() {
            "would be cut"
        } else {
            "would not be cut"
        };
        assert_eq!(tier["verdict"], verdict, "{client} at {listener}");
    }
    let text = |words: &[&str]| String::from_utf8(sb.cli(words).stdout).unwrap();
    let said = text(&["explain", "a.test", "--client", "10.1.0.2", "--listener", "forced"]);
    let part = "tier splice: would not be cut (off): the configuration demands tier splice";
    assert!(said.contains(part), "{said}");
    let said = text(&["explain", "a.test"]);
    assert!(said.contains("tier cut: depends on the client: "), "{said}");
}

/// The answer that a client would get, in its own protocol, and nothing that contradicts it.
#[lab_test]
fn explain_says_what_a_refused_client_gets() {
    let lab = Lab::new();
    let _router = Router::start(&lab, "east-1");
    let east = config::cluster("east", &[], &["east-1"]) + &config::cluster("west", &[], &["west-2"]);
    let body = format!(
        "{}clusters:\n{east}routes:\n  - {{ host: app.a.test, clusters: {{ east: 1 }} }}\n  \
         - {{ host: dead.a.test, clusters: {{ west: 1 }} }}\n",
        config::WEB_LISTENERS
    );
    let sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1"]);
    assert!(eventually(SOON, || sb.host("west-2")["health"] == "unhealthy"));
    let explain = |name: &str| {
        let output = sb.cli(&["explain", name]);
        String::from_utf8(output.stdout).unwrap()
    };
    let unknown = explain("ap.a.test");
    for part in [
        "no route has this name; did you mean app.a.test?",
        "the client gets HTTP 404",
        "the client gets the TLS alert unrecognized_name",
    ] {
        assert!(unknown.contains(part), "{part}: {unknown}");
    }
    for part in ["tier", "passes through", "kernel peek"] {
        assert!(!unknown.contains(part), "{part}: {unknown}");
    }
    assert_eq!(http::ask(&lab, "10.1.0.1:80", "ap.a.test").status, 404);
    let dead = explain("dead.a.test");
    for part in ["the client gets HTTP 503", "next: none", "its checks fail"] {
        assert!(dead.contains(part), "{part}: {dead}");
    }
    assert_eq!(http::ask(&lab, "10.1.0.1:80", "dead.a.test").status, 503);
    let served = explain("app.a.test");
    assert!(
        served.contains("next: east/east-1") && !served.contains("client gets"),
        "{served}"
    );
}
