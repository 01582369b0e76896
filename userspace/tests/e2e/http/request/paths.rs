//! Routes by path, clients behind proxies, ids of requests, and their entries in the log.

use super::scene::{Client, WebHost, body_of, config_of, field};
use crate::lab::{Lab, SOON, Signalbox, config, eventually, lab_test};

#[lab_test]
fn the_longest_path_decides_and_each_path_keeps_its_weights() {
    let lab = Lab::new();
    let hosts = ["east-1", "east-2", "west-1"];
    let _hosts: Vec<_> = hosts.iter().map(|host| WebHost::start(&lab, host)).collect();
    let routes = [
        "{ host: a.test, path: /api, clusters: { east-2: 10, west-1: 80 } }",
        "{ host: a.test, clusters: { east-1: 1 } }",
        "{ host: a.test, path: /api/old/, clusters: { east-1: 1 } }",
        "{ host: b.test, path: /only, clusters: { east-2: 1 } }",
    ];
    let sb = Signalbox::start(&lab, &config_of("", &hosts, &routes));
    sb.wait_healthy(&hosts);
    let mut client = Client::connect(&lab);
    let mut host_of = |name: &str, path: &str| {
        let answer = client.get(name, path);
        match answer.status {
            200 => crate::lab::http::field(&answer.text, "host"),
            status => status.to_string(),
        }
    };
    for (path, host) in [
        ("/", "east-1"),
        ("/apis", "east-1"),
        ("/?/api", "east-1"),
        ("/api/old/x", "east-1"),
    ] {
        assert_eq!(host_of("a.test", path), host, "{path}");
    }
    let mut east = 0;
    for _ in 0..90 {
        match &*host_of("a.test", "/api?x=1") {
            "east-2" => east += 1,
            other => assert_eq!(other, "west-1"),
        }
        // Requests of other paths do not disturb the turns.
        assert_eq!(host_of("a.test", "/x"), "east-1");
    }
    assert_eq!(east, 10, "10 : 80 is exact for the path");
    assert_eq!(host_of("b.test", "/only/this"), "east-2");
    assert_eq!(host_of("b.test", "/"), "404", "the name has this path only");
    let explained = sb.cli(&["explain", "http://a.test/api/v1"]);
    let text = String::from_utf8_lossy(&explained.stdout).into_owned();
    assert!(
        text.contains("): path") && text.contains("cluster west-1: weight 80"),
        "{text}"
    );
    // A host that goes takes its path's requests along to the other cluster of that path.
    let out = r#"{"action":"out","names":["cluster:west-1"],"timeout":1.0,"force":true}"#;
    let answer = sb.unix("POST", "/api/v1/rotations", out);
    assert!(answer.status < 300, "{}", answer.body);
    assert!(eventually(SOON, || (0..10).all(|_| host_of("a.test", "/api") == "east-2")));
}

#[lab_test]
fn clients_of_trusted_proxies_are_known_and_others_cannot_lie() {
    let lab = Lab::new();
    let east = WebHost::start(&lab, "east-1");
    let log = lab.dir().join("access.json");
    let start = |trusted: &str| {
        let text = body_of(
            &format!("log: {{ connections: {{ to: {} }} }}", log.display()),
            &config::cluster("east-1", &[], &["east-1"]),
            &["{ host: a.test, clusters: { east-1: 1 } }"],
        );
        text.replace(
            "routing: request,",
            &format!("routing: request, request_id: X-Request-Id, forwarded: {{ trusted: [{trusted}] }},"),
        )
    };
    let sb = Signalbox::start(&lab, &start("10.1.0.2/32"));
    sb.wait_healthy(&["east-1"]);
    let ask = "GET /a?b HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-For: 192.0.2.7\r\nX-Request-Id: from-proxy-1\r\n\r\n";
    let mut client = Client::connect(&lab);
    client.send(ask);
    assert_eq!(client.answer("GET").status, 200);
    let head = east.take().remove(0);
    assert_eq!(field(&head, "x-request-id"), Some("from-proxy-1"));
    assert_eq!(head.matches("X-Forwarded-For: ").count(), 2, "{head}");
    let logged = |part: &str| std::fs::read_to_string(&log).is_ok_and(|text| text.contains(part));
    for part in [
        r#""client":"192.0.2.7:0""#,
        r#""method":"GET","target":"/a?b","status":200,"request_id":"from-proxy-1""#,
    ] {
        assert!(
            eventually(SOON, || logged(part)),
            "{part}: {:?}",
            std::fs::read_to_string(&log)
        );
    }
    // The same fields from another client.
    sb.reload(&start("192.0.2.0/24"));
    client.send(ask);
    assert_eq!(client.answer("GET").status, 200);
    let head = east.take().remove(0);
    assert_eq!(field(&head, "x-forwarded-for"), Some("10.1.0.2"));
    let id = field(&head, "x-request-id").unwrap().to_owned();
    assert!(id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()), "{id}");
    client.send("GET / HTTP/1.1\r\nHost: none.test\r\n\r\n");
    assert_eq!(client.answer("GET").status, 404);
    assert!(eventually(SOON, || logged(r#""reason":"no_route""#) && logged(r#""status":404"#)));
}

#[lab_test]
fn clients_that_a_route_does_not_allow_reach_no_host() {
    let lab = Lab::new();
    let east = WebHost::start(&lab, "east-1");
    let routes = ["{ host: a.test, clusters: { east-1: 1 }, allow: [10.1.0.3/32, 192.0.2.0/24] }"];
    let text = config_of("", &["east-1"], &routes);
    let sb = Signalbox::start(&lab, &text);
    sb.wait_healthy(&["east-1"]);
    let mut client = Client::connect(&lab);
    assert_eq!(client.get("a.test", "/").status, 403);
    let mut other = Client::connect_from(&lab, "10.1.0.3");
    assert_eq!(other.get("a.test", "/").status, 200);
    // The same connection, by the address that a trusted proxy names.
    sb.reload(&text.replace(
        "routing: request,",
        "routing: request, forwarded: { trusted: [10.1.0.2/32] },",
    ));
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-For: 192.0.2.7\r\n\r\n");
    assert_eq!(client.answer("GET").status, 200);
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-For: 192.0.2.7, 10.1.0.9\r\n\r\n");
    assert_eq!(client.answer("GET").status, 403);
    // A connection that goes to one host as a whole.
    sb.reload(&text.replace("routing: request,", ""));
    assert_eq!(Client::connect(&lab).get("a.test", "/").status, 403);
    assert_eq!(Client::connect_from(&lab, "10.1.0.3").get("a.test", "/").status, 200);
    assert_eq!(east.take().len(), 3);
}
