//! Annotations of a watched cluster's Routes, obeyed by the balancer: addresses, limits and times in front of routers, and
//! all the work of a router in front of servers.

use serde_json::{Value, json};

use crate::http::request::scene::{Client, WebHost, field};
use crate::kube::agent::Cluster;
use crate::kube_api::objects::route;
use crate::lab::{Lab, SOON, Signalbox, config, cut, eventually, lab_test, servers};

/// Addresses of the lab's client.
const CLIENT: &str = "10.1.0.2";
const OTHER_CLIENT: &str = "10.1.0.3";

const HAPROXY: &str = "haproxy.router.openshift.io";

fn put(cluster: &Cluster, host: &str, path: &str, annotations: &[(&str, &str)], spec: Value) {
    let name = format!("{host}{path}").replace(['.', '/'], "-");
    let mut object = route(1, &format!("shop/{name}"), host);
    let annotations = annotations.iter().map(|(key, value)| {
        let key = if key.contains('/') {
            (*key).to_owned()
        } else {
            format!("{HAPROXY}/{key}")
        };
        (key, json!(value))
    });
    object["metadata"]["annotations"] = Value::Object(annotations.collect());
    object["spec"]["path"] = json!(path);
    for (key, value) in spec.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    cluster.api.change(|store| store.put("routes", object));
}

/// A listener that routes connections, and a watched cluster with further keys; further top-level lines.
fn config_text(cluster: &Cluster, keys: &str, extra: &str) -> String {
    format!(
        "{extra}\nlisteners:\n  - {{ name: http, protocol: http, listen: [\"10.1.0.1:80\"] }}\nclusters:\n  \
         - {{ name: east, {}, {keys}kubernetes: {{ url: \"http://{}\" }} }}\n",
        config::FAST_HEALTH,
        cluster.api.addr
    )
}

fn start(lab: &Lab, cluster: &Cluster, keys: &str, extra: &str) -> Signalbox {
    cluster.put_routers(&["east-1"]);
    let sb = Signalbox::start(lab, &config_text(cluster, keys, extra));
    sb.wait_healthy(&["east-1"]);
    sb
}

fn status(lab: &Lab, from: &str, host: &str, path: &str) -> u16 {
    Client::connect_from(lab, from).get(host, path).status
}

fn explained(sb: &Signalbox, words: &[&str]) -> String {
    let words: Vec<_> = ["explain"].iter().chain(words).copied().collect();
    String::from_utf8_lossy(&sb.cli(&words).stdout).into_owned()
}

#[lab_test]
fn an_ip_allowlist_applies_to_connections_which_are_still_cut() {
    let lab = cut::lab();
    let _east = WebHost::start(&lab, "east-1");
    let cluster = Cluster::start(&lab.lb);
    put(&cluster, "all.test", "", &[], json!({}));
    put(
        &cluster,
        "mine.test",
        "",
        &[("ip_allowlist", "10.1.0.2 192.0.2.0/24")],
        json!({}),
    );
    put(&cluster, "void.test", "", &[("ip_whitelist", " 10.1.0.2")], json!({}));
    put(&cluster, "paths.test", "", &[], json!({}));
    put(
        &cluster,
        "paths.test",
        "/admin",
        &[("ip_allowlist", "10.1.0.3")],
        json!({}),
    );
    let sb = start(&lab, &cluster, "", "");
    assert!(eventually(SOON, || status(&lab, CLIENT, "mine.test", "/") == 200));
    for (host, path, client, other) in [
        ("all.test", "/", 200, 200),
        ("mine.test", "/", 200, 403),
        ("void.test", "/", 403, 403),
        ("paths.test", "/", 200, 200),
        ("paths.test", "/admin/x", 403, 200),
    ] {
        let found = (status(&lab, CLIENT, host, path), status(&lab, OTHER_CLIENT, host, path));
        assert_eq!(found, (client, other), "{host}{path}");
    }
    let mut client = Client::connect_from(&lab, CLIENT);
    assert_eq!(client.get("mine.test", "/").status, 200);
    cut::expect_cut(&sb, client.stream());
    let refused = sb.metric("signalbox_refused_total{listener=\"http\",reason=\"not_allowed\"}");
    assert_eq!(refused, 3.0);
    let text = explained(&sb, &["http://mine.test/", "--client", OTHER_CLIENT]);
    for said in [
        "obeyed here: haproxy.router.openshift.io/ip_allowlist",
        "cluster east serves 10.1.0.2/32, 192.0.2.0/24 (annotation)",
        "this client is refused",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let text = explained(&sb, &["void.test"]);
    assert!(
        text.contains("it allows no client") && text.contains("without spaces at the ends"),
        "{text}"
    );
    // A changed list holds for the next connection.
    put(&cluster, "mine.test", "", &[("ip_allowlist", "10.1.0.3")], json!({}));
    assert!(eventually(SOON, || {
        let other = status(&lab, OTHER_CLIENT, "mine.test", "/");
        (status(&lab, CLIENT, "mine.test", "/"), other) == (403, 200)
    }));
}

#[lab_test]
fn annotations_limit_a_clients_connections_and_requests() {
    let lab = cut::lab();
    let _east = WebHost::start(&lab, "east-1");
    let cluster = Cluster::start(&lab.lb);
    let limited = |name: &'static str, limit: &'static str| [("rate-limit-connections", "true"), (name, limit)];
    put(
        &cluster,
        "open.test",
        "",
        &limited("rate-limit-connections.concurrent-tcp", "2"),
        json!({}),
    );
    put(
        &cluster,
        "new.test",
        "",
        &limited("rate-limit-connections.rate-tcp", "1000000"),
        json!({}),
    );
    put(
        &cluster,
        "once.test",
        "",
        &limited("rate-limit-connections.rate-tcp", "1"),
        json!({}),
    );
    put(
        &cluster,
        "asked.test",
        "",
        &limited("rate-limit-connections.rate-http", "1"),
        json!({}),
    );
    let sb = start(&lab, &cluster, "", "");
    assert!(eventually(SOON, || status(&lab, CLIENT, "new.test", "/") == 200));
    // Connections at once, which the flow GC releases when they have ended.
    let open = || {
        let mut client = Client::connect_from(&lab, CLIENT);
        (client.get("open.test", "/").status, client)
    };
    let (first, second) = (open(), open());
    assert_eq!((first.0, second.0), (200, 200));
    cut::expect_cut(&sb, first.1.stream());
    assert_eq!(open().0, 429);
    assert_eq!(status(&lab, OTHER_CLIENT, "open.test", "/"), 200, "another client");
    drop(first);
    assert!(eventually(SOON, || open().0 == 200), "a place is free again");
    // Connections and requests in a period: of the many that a client makes at once, few are served.
    let many = |host: &str| (0..20).filter(|_| status(&lab, CLIENT, host, "/") == 200).count();
    assert!((1..20).contains(&many("once.test")));
    assert_eq!(status(&lab, OTHER_CLIENT, "once.test", "/"), 200);
    assert!((1..20).contains(&many("asked.test")));
    let mut kept = Client::connect_from(&lab, OTHER_CLIENT);
    let answers: Vec<_> = (0..20).map(|_| kept.get("asked.test", "/")).collect();
    let refused = answers.iter().find(|answer| answer.status == 429).unwrap();
    assert!(field(&refused.head, "retry-after").is_some(), "{}", refused.head);
    let text = explained(&sb, &["http://asked.test/"]);
    assert!(
        text.contains("1 requests in 10 seconds, 1 at once (annotation)"),
        "{text}"
    );
    assert!(
        text.contains("not cut for its sake") && text.contains("routed_per_request"),
        "{text}"
    );
    for reason in ["route_connections", "route_connection_rate"] {
        let refused = sb.metric(&format!(
            "signalbox_refused_total{{listener=\"http\",reason=\"{reason}\"}}"
        ));
        assert!(refused > 0.0, "{reason}");
    }
}

#[lab_test]
fn times_of_annotations_end_flows_and_requests() {
    let lab = cut::lab();
    let _health = servers::healthy(lab.host("east-1"));
    let (_host, accepted) = servers::hand_over(lab.host("east-1"), "[::]:80");
    let cluster = Cluster::start(&lab.lb);
    put(&cluster, "tunnel.test", "", &[("timeout-tunnel", "1s")], json!({}));
    put(&cluster, "plain.test", "", &[], json!({}));
    put(&cluster, "quick.test", "", &[("timeout", "300ms")], json!({}));
    let sb = start(&lab, &cluster, "", "timeouts: { answer: 1s, idle: 1h }");
    let begin = |host: &str| {
        let mut client = Client::connect(&lab);
        client.send(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        client
    };
    let is_known = || sb.json("/api/v1/routes").to_string().contains("tunnel.test");
    assert!(eventually(SOON, is_known));
    // Cut flows end by the time of their route; the answer of a silent host never comes.
    let (plain, mut tunnel) = (begin("plain.test"), begin("tunnel.test"));
    let _hosts: Vec<_> = (0..2).map(|_| accepted.recv_timeout(SOON).unwrap()).collect();
    cut::expect_cut(&sb, plain.stream());
    assert!(tunnel.is_at_end());
    plain.stream().set_nonblocking(true).unwrap();
    let waiting = plain.stream().peek(&mut [0]).unwrap_err();
    assert_eq!(
        waiting.kind(),
        std::io::ErrorKind::WouldBlock,
        "another route has the common time"
    );
    let text = explained(&sb, &["http://tunnel.test/"]);
    assert!(
        text.contains("a flow that carries nothing for 1s is ended (annotation)"),
        "{text}"
    );
    // Userspace tiers know it, too; requests have the time of an answer.
    let by_request = text_of_requests(&cluster);
    sb.reload(&by_request);
    sb.wait_healthy(&["east-1"]);
    let mut quick = begin("quick.test");
    let _host = accepted.recv_timeout(SOON).unwrap();
    assert_eq!(quick.answer("GET").status, 504);
    let off = config_text(
        &cluster,
        "",
        "timeouts: { answer: 1s, idle: 1h }\ndatapath: { cut: off }",
    );
    sb.reload(&off);
    let mut tunnel = begin("tunnel.test");
    let _host = accepted.recv_timeout(SOON).unwrap();
    assert!(tunnel.is_at_end());
}

/// Requests are routed one by one, and may take an hour unless annotations say otherwise.
fn text_of_requests(cluster: &Cluster) -> String {
    config_text(cluster, "", "timeouts: { answer: 1h, idle: 1h }")
        .replace("protocol: http,", "protocol: http, routing: request,")
}

#[lab_test]
fn servers_get_what_routers_would_make_of_a_request() {
    let lab = Lab::new();
    let east = WebHost::start(&lab, "east-1");
    let cluster = Cluster::start(&lab.lb);
    let set = json!([{ "name": "X-Env", "action": { "type": "Set", "set": { "value": "prod" } } }]);
    let delete = json!([{ "name": "Content-Length", "action": { "type": "Delete" } },
        { "name": "X-Gone", "action": { "type": "Delete" } }]);
    let headers = json!({ "httpHeaders": { "actions": { "request": set, "response": delete } } });
    let annotations = [
        ("rewrite-target", "/"),
        ("router.openshift.io/cookie_name", "sb"),
        ("router.openshift.io/cookie-same-site", "Lax"),
        ("balance", "leastconn"),
        ("pod-concurrent-connections", "5"),
        ("set-forwarded-headers", "never"),
    ];
    put(&cluster, "app.test", "/app", &annotations, headers);
    put(&cluster, "app.test", "", &[], json!({}));
    let sb = start(&lab, &cluster, "role: servers, ", "");
    let ask = |path: &str, cookie: &str| {
        let mut client = Client::connect(&lab);
        client.send(&format!(
            "GET {path} HTTP/1.1\r\nHost: app.test\r\nCookie: own=1{cookie}\r\n\r\n"
        ));
        client.answer("GET")
    };
    assert!(eventually(SOON, || ask("/app/x", "").status == 200));
    east.take();
    let answer = ask("/app/x?q", "");
    let set_cookie = field(&answer.head, "set-cookie").unwrap().to_owned();
    let (pair, attributes) = set_cookie.split_once("; ").unwrap();
    assert!(pair.starts_with("sb="), "{set_cookie}");
    assert_eq!(attributes, "Path=/app; HttpOnly; SameSite=Lax");
    let head = east.take().remove(0);
    assert!(head.starts_with("GET /x?q HTTP/1.1\r\n"), "{head}");
    assert_eq!(field(&head, "x-env"), Some("prod"));
    assert_eq!(field(&head, "x-forwarded-for"), None, "{head}");
    let answer = ask("/app", &format!("; {pair}"));
    assert_eq!(field(&answer.head, "set-cookie"), None);
    let head = east.take().remove(0);
    assert!(head.starts_with("GET / HTTP/1.1\r\n"), "{head}");
    assert_eq!(field(&head, "cookie"), Some("own=1"), "the cookie is hidden");
    // Other paths of the name are not changed.
    let answer = ask("/other", "");
    assert_eq!(field(&answer.head, "set-cookie"), None);
    assert!(east.take().remove(0).starts_with("GET /other HTTP/1.1\r\n"));
    let text = explained(&sb, &["http://app.test/app"]);
    for said in [
        "the path becomes / (annotation)",
        "cookie sb keeps a client at its host (annotation)",
        "1 changes of request fields, 1 of answer fields (annotation)",
        "hosts are chosen by least-connections (annotation)",
        "a host has at most 5 connections at once (annotation)",
        "spec.httpHeaders.actions.response: Content-Length: this field",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    // Routers do all of that themselves.
    sb.reload(&text_of(&cluster));
    assert!(eventually(SOON, || {
        let answer = ask("/app/x", "");
        let head = east.take().pop().unwrap();
        head.starts_with("GET /app/x HTTP/1.1\r\n") && field(&answer.head, "set-cookie").is_none()
    }));
    let text = explained(&sb, &["http://app.test/app"]);
    assert!(
        text.contains("left to the router: router.openshift.io/cookie_name"),
        "{text}"
    );
}

fn text_of(cluster: &Cluster) -> String {
    config_text(cluster, "", "")
}

#[lab_test]
fn routes_redirect_or_refuse_plain_http_if_there_is_no_router() {
    let lab = Lab::new();
    let east = WebHost::start(&lab, "east-1");
    let cluster = Cluster::start(&lab.lb);
    let tls = |termination: &str, insecure: Value| json!({ "tls": { "termination": termination, "insecureEdgeTerminationPolicy": insecure } });
    for (host, path, spec) in [
        ("none.test", "", tls("edge", Value::Null)),
        ("sent.test", "", tls("reencrypt", json!("Redirect"))),
        ("open.test", "", tls("edge", json!("Allow"))),
        ("passed.test", "", tls("passthrough", json!("Redirect"))),
        ("hidden.test", "", tls("passthrough", json!("Allow"))),
        ("paths.test", "", json!({})),
        ("paths.test", "/login", tls("edge", json!("Redirect"))),
        ("said.test", "", tls("edge", json!("Redirect"))),
        ("plain.test", "", json!({})),
    ] {
        put(&cluster, host, path, &[], spec);
    }
    let said = "routes:\n  - { host: said.test, tls: { insecure: allow } }";
    let expected = [
        ("none.test", "/", 404),
        ("sent.test", "/a?q", 302),
        ("open.test", "/", 200),
        ("passed.test", "/a?q", 302),
        ("hidden.test", "/", 404),
        ("paths.test", "/", 200),
        ("paths.test", "/login/x", 302),
        ("said.test", "/", 200),
        ("plain.test", "/", 200),
    ];
    let by_connection = config_text(&cluster, "role: servers, ", said);
    let by_request = by_connection.replace("protocol: http,", "protocol: http, routing: request,");
    let sb = start(&lab, &cluster, "role: servers, ", said);
    assert!(eventually(SOON, || status(&lab, CLIENT, "plain.test", "/") == 200));
    for text in [by_request, by_connection] {
        sb.reload(&text);
        sb.wait_healthy(&["east-1"]);
        east.take();
        for (host, path, status) in expected {
            let answer = Client::connect(&lab).get(host, path);
            assert_eq!(answer.status, status, "{host}{path}");
            let location = (status == 302).then(|| format!("https://{host}{path}"));
            assert_eq!(field(&answer.head, "location"), location.as_deref(), "{host}{path}");
        }
        let reached = expected.iter().filter(|(.., status)| *status == 200).count();
        assert_eq!(east.take().len(), reached, "the others have reached no host");
    }
    for (url, texts) in [
        (
            "http://sent.test/",
            &[
                "obeyed here: spec.tls.insecureEdgeTerminationPolicy",
                "plain HTTP is sent to https (spec.tls)",
            ][..],
        ),
        ("http://none.test/", &["plain HTTP is not served (404) (spec.tls)"]),
        (
            "http://said.test/",
            &["`tls.insecure` of the configuration comes first"],
        ),
        (
            "http://hidden.test/",
            &["expected Redirect or None, since TLS passes through"],
        ),
    ] {
        let explained = explained(&sb, &[url]);
        assert!(texts.iter().all(|text| explained.contains(text)), "{url}: {explained}");
    }
    // A changed Route holds for the next request; routers are left to do it themselves.
    put(&cluster, "sent.test", "", &[], tls("edge", json!("Allow")));
    assert!(eventually(SOON, || status(&lab, CLIENT, "sent.test", "/") == 200));
    sb.reload(&text_of(&cluster));
    sb.wait_healthy(&["east-1"]);
    for host in ["none.test", "passed.test", "said.test"] {
        assert!(eventually(SOON, || status(&lab, CLIENT, host, "/") == 200), "{host}");
    }
    let text = explained(&sb, &["http://none.test/"]);
    assert!(
        text.contains("left to the router: spec.tls.insecureEdgeTerminationPolicy"),
        "{text}"
    );
}
