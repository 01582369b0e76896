//! A route's settings for requests: cookies that keep clients, changed fields, another path, time limits, limits of
//! each client.

use std::time::Instant;

use super::scene::{Answer, Client, WebHost, body_of, config_of, field};
use crate::lab::{Lab, SOON, Signalbox, config, eventually, http, lab_test, servers};

/// Requests that carry other cookies, too.
fn ask(client: &mut Client, cookie: Option<&str>, path: &str) -> Answer {
    let cookie = cookie.map(|cookie| format!("; {cookie}")).unwrap_or_default();
    client.send(&format!(
        "GET {path} HTTP/1.1\r\nHost: a.test\r\nCookie: own=1{cookie}\r\n\r\n"
    ));
    let answer = client.answer("GET");
    assert_eq!(answer.status, 200, "{}", answer.head);
    answer
}

fn host(answer: &Answer) -> String {
    http::field(&answer.text, "host")
}

/// The `name=value` of a cookie that an answer sets.
fn cookie(answer: &Answer) -> Option<String> {
    let set = field(&answer.head, "set-cookie")?;
    let (pair, attributes) = set.split_once("; ").unwrap();
    assert_eq!(attributes, "Path=/; HttpOnly; SameSite=Lax");
    assert_eq!(field(&answer.head, "cache-control"), Some("private"));
    Some(pair.to_owned())
}

#[lab_test]
fn a_cookie_keeps_a_client_at_its_cluster_through_a_migration() {
    let lab = Lab::new();
    let names = ["east-1", "west-1"];
    let hosts = names.map(|host| WebHost::start(&lab, host));
    let route = |east: u32| {
        let clusters = format!("{{ east-1: {east}, west-1: 1 }}");
        format!("{{ host: a.test, clusters: {clusters}, affinity: {{ cookie: sb }} }}")
    };
    let text = |east: u32| config_of("", &names, &[&route(east)]);
    let sb = Signalbox::start(&lab, &text(1));
    sb.wait_healthy(&names);
    let mut client = Client::connect(&lab);
    let first = ask(&mut client, None, "/");
    let second = ask(&mut client, None, "/");
    assert_ne!(host(&first), host(&second), "clients without a cookie are balanced");
    let (east, west) = if host(&first) == "east-1" {
        (first, second)
    } else {
        (second, first)
    };
    let (east, west) = (cookie(&east).unwrap(), cookie(&west).unwrap());
    assert!(
        east.starts_with("sb=") && east != west && !east.contains("east"),
        "{east}"
    );
    hosts.iter().for_each(|host| drop(host.take()));
    for _ in 0..5 {
        for (pair, name) in [(&east, "east-1"), (&west, "west-1")] {
            let answer = ask(&mut client, Some(pair), "/");
            assert_eq!((&*host(&answer), cookie(&answer)), (name, None));
        }
    }
    for head in hosts.iter().flat_map(WebHost::take) {
        assert_eq!(field(&head, "cookie"), Some("own=1"), "the host sees its own cookies");
    }
    let older_first = format!("sb=junk; {east}");
    for _ in 0..4 {
        let answer = ask(&mut client, Some(&older_first), "/");
        assert_eq!((&*host(&answer), cookie(&answer)), ("east-1", None));
    }
    // Weight 0: existing clients stay, no new one comes.
    sb.reload(&text(0));
    assert_eq!(host(&ask(&mut client, Some(&east), "/")), "east-1");
    assert!((0..4).all(|_| host(&ask(&mut client, None, "/")) == "west-1"));
    // Out of rotation: every client moves, and gets the other's cookie.
    let out = r#"{"action":"out","names":["cluster:east-1"],"timeout":1.0,"force":true}"#;
    assert!(sb.unix("POST", "/api/v1/rotations", out).status < 300);
    let mut moved = None;
    assert!(eventually(SOON, || {
        let answer = ask(&mut Client::connect(&lab), Some(&east), "/");
        moved = cookie(&answer);
        host(&answer) == "west-1"
    }));
    assert_eq!(moved.as_deref(), Some(&*west));
    for invented in ["sb=", "sb=0123456789abcdef", "sb=east-1"] {
        let mut client = Client::connect(&lab);
        assert_eq!(
            cookie(&ask(&mut client, Some(invented), "/")).as_deref(),
            Some(&*west),
            "{invented}"
        );
    }
}

#[lab_test]
fn a_cookie_keeps_a_client_at_its_host_while_that_is_there() {
    let lab = Lab::new();
    let names = ["east-1", "east-2"];
    let (first, _second) = (WebHost::start(&lab, "east-1"), WebHost::start(&lab, "east-2"));
    let clusters = config::cluster("east", &["balance: round-robin"], &names);
    let route = "{ host: a.test, clusters: { east: 1 }, affinity: { cookie: sb, to: host } }";
    let sb = Signalbox::start(&lab, &body_of("", &clusters, &[route]));
    sb.wait_healthy(&names);
    let mut client = Client::connect(&lab);
    let answers = [(); 2].map(|()| ask(&mut client, None, "/"));
    let of_first = answers.iter().find(|answer| host(answer) == "east-1").unwrap();
    let pair = cookie(of_first).unwrap();
    for _ in 0..6 {
        let answer = ask(&mut client, Some(&pair), "/");
        assert_eq!((&*host(&answer), cookie(&answer)), ("east-1", None));
    }
    let explained = sb.cli(&["explain", "http://a.test/"]);
    let text = String::from_utf8_lossy(&explained.stdout).into_owned();
    assert!(text.contains("cookie sb keeps a client at its host"), "{text}");
    drop(first);
    assert!(eventually(SOON, || {
        let mut client = Client::connect(&lab);
        client.send(&format!("GET / HTTP/1.1\r\nHost: a.test\r\nCookie: {pair}\r\n\r\n"));
        client.try_answer("GET").is_ok_and(|answer| {
            answer.status == 200 && host(&answer) == "east-2" && cookie(&answer).is_some_and(|moved| moved != pair)
        })
    }));
}

#[lab_test]
fn fields_and_paths_are_changed_as_the_route_says() {
    let lab = Lab::new();
    let east = WebHost::start(&lab, "east-1");
    let headers = "headers: { request: { set: { X-Env: prod }, remove: [x-debug], add: { X-Via: sb } }, \
                   response: { set: { X-Frame-Options: DENY }, remove: [Connection-Id, link] } }";
    let routes = [
        &format!("{{ host: a.test, clusters: {{ east-1: 1 }}, {headers} }}"),
        "{ host: a.test, path: /api, clusters: { east-1: 1 }, rewrite: / }",
        "{ host: a.test, path: /old/, clusters: { east-1: 1 }, rewrite: /bytes, headers: {} }",
    ];
    // A listener by connection: names like this are routed by request there, too.
    let text = config_of("", &["east-1"], &routes).replace(" routing: request,", "");
    let sb = Signalbox::start(&lab, &text);
    sb.wait_healthy(&["east-1"]);
    let mut client = Client::connect(&lab);
    let mut ask = |path: &str| {
        client.send(&format!(
            "GET {path} HTTP/1.1\r\nHost: a.test\r\nX-Debug: 1\r\nX-Env: test\r\nX-Via: me\r\nX-Debug: 2\r\n\r\n"
        ));
        (client.answer("GET"), east.take().remove(0))
    };
    let (answer, head) = ask("/x?q");
    assert!(head.starts_with("GET /x?q HTTP/1.1\r\n"), "{head}");
    assert_eq!(field(&head, "x-env"), Some("prod"));
    assert!(field(&head, "x-debug").is_none() && head.contains("X-Via: me\r\n") && head.contains("X-Via: sb\r\n"));
    assert_eq!(field(&answer.head, "x-frame-options"), Some("DENY"));
    // An interim answer is not the answer.
    client_sees_interim_as_it_is(&lab);
    east.take();
    let (answer, head) = ask("/api/v1?q=/api");
    assert!(head.starts_with("GET /v1?q=/api HTTP/1.1\r\n"), "{head}");
    assert_eq!(
        field(&answer.head, "x-frame-options"),
        Some("DENY"),
        "a path has the headers of its name"
    );
    assert!(ask("/api").1.starts_with("GET / HTTP/1.1\r\n"));
    let (answer, head) = ask("/old/5");
    assert!(
        answer.status == 200 && head.starts_with("GET /bytes/5 HTTP/1.1\r\n"),
        "{head}"
    );
    assert_eq!(field(&head, "x-env"), Some("test"), "a path with headers of its own");
    let explained = sb.cli(&["explain", "http://a.test/api"]);
    let text = String::from_utf8_lossy(&explained.stdout).into_owned();
    assert!(
        text.contains("the path becomes /") && text.contains("3 changes of request fields"),
        "{text}"
    );
}

/// Fields are set in the final answer alone, and removed there alone.
fn client_sees_interim_as_it_is(lab: &Lab) {
    let mut client = Client::connect(lab);
    client.send("GET /interim HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let interim = client.answer("HEAD");
    assert_eq!(
        (interim.status, field(&interim.head, "link")),
        (103, Some("</a.css>")),
        "{}",
        interim.head
    );
    assert_eq!(field(&interim.head, "x-frame-options"), None);
    let last = client.answer("GET");
    assert_eq!((last.status, field(&last.head, "x-frame-options")), (200, Some("DENY")));
}

#[lab_test]
fn a_route_has_time_limits_of_its_own() {
    let lab = Lab::new();
    let _health = servers::healthy(lab.host("east-1"));
    let (_host, _accepted) = servers::hand_over(lab.host("east-1"), "[::]:80");
    let routes = [
        "{ host: a.test, clusters: { east-1: 1 }, timeouts: { answer: 1h } }",
        "{ host: a.test, path: /quick, clusters: { east-1: 1 }, timeouts: { answer: 200ms } }",
    ];
    let limits = "timeouts: { answer: 300ms }";
    let sb = Signalbox::start(&lab, &config_of(limits, &["east-1"], &routes));
    sb.wait_healthy(&["east-1"]);
    let mut slow = Client::connect(&lab);
    slow.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    for _ in 0..3 {
        assert_eq!(Client::connect(&lab).get("a.test", "/quick").status, 504);
    }
    // More than the common limit has gone by.
    slow.stream().set_nonblocking(true).unwrap();
    let waiting = slow.stream().peek(&mut [0]).unwrap_err();
    assert_eq!(waiting.kind(), std::io::ErrorKind::WouldBlock);
    drop(sb);
}

#[lab_test]
fn each_client_may_send_so_many_requests_in_a_time() {
    let lab = Lab::new();
    let east = WebHost::start(&lab, "east-1");
    let routes = [
        "{ host: a.test, clusters: { east-1: 1 }, limits: { requests: { rate: 1, burst: 20 } } }",
        "{ host: a.test, path: /counted, clusters: { east-1: 1 } }",
        "{ host: a.test, path: /apart, clusters: { east-1: 1 }, limits: { requests: { rate: 1, burst: 3 } } }",
    ];
    let sb = Signalbox::start(&lab, &config_of("", &["east-1"], &routes));
    sb.wait_healthy(&["east-1"]);
    let began = Instant::now();
    let mut client = Client::connect(&lab);
    let mut served = |path: &str, requests: usize| {
        let answers = (0..requests).map(|_| client.get("a.test", path));
        answers.filter(|answer| answer.status == 200).count()
    };
    // A path without limits is counted with its name.
    let (of_name, of_path, apart) = (served("/", 10), served("/counted", 90), served("/apart", 50));
    let seconds = began.elapsed().as_secs() as usize + 1;
    assert_eq!(of_name, 10);
    assert!((20..=20 + seconds).contains(&(of_name + of_path)), "{of_path}");
    assert!((3..=3 + seconds).contains(&apart), "{apart}");
    assert_eq!(east.take().len(), of_name + of_path + apart, "no host sees the others");
    let refused = client.get("a.test", "/apart");
    assert_eq!(refused.status, 429);
    assert_eq!(field(&refused.head, "retry-after"), Some("1"), "{}", refused.head);
    assert_eq!(
        Client::connect_from(&lab, "10.1.0.3").get("a.test", "/apart").status,
        200
    );
    let refusals = (150 + 1 - of_name - of_path - apart) as f64;
    assert_eq!(
        sb.metric("signalbox_request_refused_total{reason=\"request_rate\"}"),
        refusals
    );
    let explained = sb.cli(&["explain", "http://a.test/apart"]);
    let text = String::from_utf8_lossy(&explained.stdout).into_owned();
    assert!(
        text.contains("each client may send 1 requests a second, 3 at once"),
        "{text}"
    );
}

#[lab_test]
fn each_client_may_have_so_many_requests_in_flight() {
    let lab = Lab::new();
    let _east = WebHost::start(&lab, "east-1");
    let route = "{ host: a.test, clusters: { east-1: 1 }, limits: { concurrent: 2 } }";
    let sb = Signalbox::start(&lab, &config_of("", &["east-1"], &[route]));
    sb.wait_healthy(&["east-1"]);
    let tunnel = || {
        let mut client = Client::connect(&lab);
        client.send("GET /ws HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
        assert_eq!(client.answer("HEAD").status, 101);
        client
    };
    let (first, second) = (tunnel(), tunnel());
    let mut third = Client::connect(&lab);
    let refused = third.get("a.test", "/");
    assert_eq!((refused.status, field(&refused.head, "retry-after")), (429, Some("1")));
    assert_eq!(Client::connect_from(&lab, "10.1.0.3").get("a.test", "/").status, 200);
    drop(first);
    assert!(
        eventually(SOON, || third.get("a.test", "/").status == 200),
        "the refused client's connection is still there"
    );
    drop(second);
    assert_eq!(sb.metric("signalbox_requests_total{cluster=\"\",code=\"5xx\"}"), 0.0);
}
