//! Plain HTTP for names that are served over TLS: `insecure`.

use std::io::{Read as _, Write as _};

use super::scene::{HTTPS, body, certificate, certificates};
use crate::http::request::scene::{Client, WebHost, field};
use crate::lab::http::curl;
use crate::lab::{Lab, Signalbox, lab_test};

#[lab_test]
fn plain_requests_are_sent_to_https_or_nowhere() {
    let lab = Lab::new();
    let east = WebHost::start(&lab, "east-1");
    let pem = certificate(&lab, "lb", &["a.test"]);
    let route = |name: &str, insecure: &str| {
        format!("{{ host: {name}, clusters: {{ east-1: 1 }}, tls: {{ termination: edge, insecure: {insecure} }} }}")
    };
    let routes = [
        route("r.test", "redirect"),
        route("n.test", "none"),
        route("a.test", "allow"),
    ];
    let routes: Vec<_> = routes.iter().map(String::as_str).collect();
    let sb = Signalbox::start(&lab, &body("", &certificates(&pem), &[("east-1", "")], &routes));
    sb.wait_healthy(&["east-1"]);
    let mut client = Client::connect(&lab);
    let answer = client.get("r.test", "/a/b?c=%20d");
    assert_eq!(
        (answer.status, field(&answer.head, "location")),
        (302, Some("https://r.test/a/b?c=%20d"))
    );
    // The method stays, and so does the connection; an unread body ends it.
    client.send("DELETE http://r.test:80/x HTTP/1.1\r\nHost: r.test:80\r\n\r\n");
    let answer = client.answer("DELETE");
    assert_eq!(
        (answer.status, field(&answer.head, "location")),
        (307, Some("https://r.test/x"))
    );
    assert_eq!(client.get("n.test", "/").status, 404);
    let answer = client.get("a.test", "/");
    assert_eq!(answer.status, 200);
    assert_eq!(field(&answer.head, "strict-transport-security"), None);
    assert_eq!(east.take().len(), 1, "the others have reached no host");
    client.send("POST /x HTTP/1.1\r\nHost: r.test\r\nContent-Length: 3\r\n\r\nabc");
    let answer = client.answer("POST");
    assert_eq!((answer.status, field(&answer.head, "connection")), (307, Some("close")));
    assert!(client.is_at_end());
}

#[lab_test]
fn a_redirect_names_the_port_of_its_listener() {
    let lab = Lab::new();
    let _east = WebHost::start(&lab, "east-1");
    let pem = certificate(&lab, "lb", &["a.test"]);
    let route = "{ host: a.test, clusters: { east-1: 1 }, tls: { termination: edge, insecure: redirect } }";
    let text = body("", &certificates(&pem), &[("east-1", "")], &[route]).replace(":443\"", ":8443\"");
    let sb = Signalbox::start(&lab, &text);
    sb.wait_healthy(&["east-1"]);
    let location = || {
        let answer = Client::connect(&lab).get("a.test", "/x");
        field(&answer.head, "location").map(str::to_owned)
    };
    assert_eq!(
        location().as_deref(),
        Some("https://a.test:8443/x"),
        "the port that is listened on"
    );
    for routing in ["routing: request", "routing: connection"] {
        for (port, expected) in [("443", "https://a.test/x"), ("9443", "https://a.test:9443/x")] {
            sb.reload(&text.replace("routing: request", &format!("{routing}, redirect_port: {port}")));
            assert_eq!(location().as_deref(), Some(expected), "{routing}, {port}");
        }
    }
}

#[lab_test]
fn plain_http_at_a_tls_port_is_answered_in_http() {
    let lab = Lab::new();
    let east = WebHost::start(&lab, "east-1");
    let pem = certificate(&lab, "lb", &["a.test"]);
    let route = "{ host: a.test, clusters: { east-1: 1 }, tls: { termination: edge } }";
    let https = body("", &certificates(&pem), &[("east-1", "")], &[route]);
    let sb = Signalbox::start(&lab, &https);
    sb.wait_healthy(&["east-1"]);
    let words = ["-w", "%{http_code}", "http://a.test:443/"];
    let refused = |protocol: &str| {
        let answer = curl(&lab, "10.1.0.1", &words);
        assert_eq!(answer.code, 0, "{}", answer.trace);
        assert!(
            answer.body.contains("sent to an HTTPS port.") && answer.body.ends_with("400"),
            "{}",
            answer.body
        );
        // Byte by byte, and a body that is not read.
        let mut slow = lab.client.connect(HTTPS);
        slow.set_nodelay(true).unwrap();
        for byte in b"POST / HTTP/1.1" {
            slow.write_all(&[*byte]).unwrap();
        }
        let mut page = String::new();
        slow.read_to_string(&mut page).unwrap();
        assert!(
            page.starts_with("HTTP/1.1 400 ") && page.ends_with("</html>\n"),
            "{protocol}: {page}"
        );
    };
    refused("https");
    let counted = "signalbox_peek_total{listener=\"https\",outcome=\"plain_http\"}";
    assert!((sb.metric(counted) - 2.0).abs() < 0.5);
    sb.reload(
        &https
            .replace("protocol: https", "protocol: tls")
            .replace(", tls: { termination: edge }", ""),
    );
    refused("tls");
    assert!((sb.metric(counted) - 4.0).abs() < 0.5);
    assert!(east.take().is_empty());
}

/// `redirect` in the configuration applies to every listener.
#[lab_test]
fn a_listener_that_routes_connections_redirects_all_the_same() {
    let lab = Lab::new();
    let east = WebHost::start(&lab, "east-1");
    let _west = WebHost::start(&lab, "west-1");
    let pem = certificate(&lab, "lb", &["a.test"]);
    let edge = |name: &str, insecure: &str| {
        format!("{{ host: {name}, clusters: {{ east-1: 1 }}, tls: {{ termination: edge, insecure: {insecure} }} }}")
    };
    let routes = [
        edge("r.test", "redirect"),
        edge("n.test", "none"),
        edge("a.test", "allow"),
        "{ host: p.test, clusters: { east-1: 1 } }".to_owned(),
        "{ host: p.test, path: /api, clusters: { west-1: 1 } }".to_owned(),
    ];
    let routes: Vec<_> = routes.iter().map(String::as_str).collect();
    let hosts = [("east-1", ""), ("west-1", "")];
    let text = body("", &certificates(&pem), &hosts, &routes).replace(" routing: request,", "");
    let sb = Signalbox::start(&lab, &text);
    sb.wait_healthy(&["east-1", "west-1"]);
    let mut client = Client::connect(&lab);
    let answer = client.get("r.test", "/a");
    assert_eq!(
        (answer.status, field(&answer.head, "location")),
        (302, Some("https://r.test/a"))
    );
    assert_eq!(client.get("n.test", "/").status, 404);
    // A name that does not need it is served, and its next connection is carried as a whole.
    let answer = client.get("a.test", "/");
    assert_eq!((answer.status, field(&answer.head, "connection")), (200, Some("close")));
    assert!(client.is_at_end());
    let mut client = Client::connect(&lab);
    assert_eq!(client.get("n.test", "/").status, 404);
    assert_eq!(east.take().len(), 1, "the others have reached no host");
    let mut client = Client::connect(&lab);
    for (path, host) in [("/", "east-1"), ("/api/x", "west-1"), ("/apis", "east-1")] {
        let answer = client.get("p.test", path);
        assert_eq!(crate::lab::http::field(&answer.text, "host"), host, "{path}");
    }
    let not_cut = "signalbox_not_cut_total{reason=\"routed_per_request\"}";
    assert!(sb.metric(not_cut) >= 3.0);
    assert_eq!(sb.metric("signalbox_peek_total{outcome=\"no_host\"}"), 0.0);
    // Other names are carried as before.
    let mut client = Client::connect(&lab);
    assert_eq!(client.host_of("a.test"), "east-1");
    let tiers: Vec<_> = sb.flows("limit=10").iter().map(|flow| flow["tier"].clone()).collect();
    assert!(tiers.contains(&"cut".into()), "{tiers:?}");
    for (url, verdict) in [
        ("http://r.test/", "routed_per_request"),
        ("http://p.test/api", "routed_per_request"),
    ] {
        let explained = sb.cli(&["explain", url]);
        let text = String::from_utf8_lossy(&explained.stdout).into_owned();
        assert!(text.contains("requests one by one") || text.contains(verdict), "{text}");
    }
}
