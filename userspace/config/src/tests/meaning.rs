//! Meaning of files without mistakes.

use std::time::Duration;

use signalbox_core::model::{
    Balance, CheckProxyHeader, HttpProbe, PeekPlace, Probe, Protocol, Routing, Tier, TlsProbe, Unmatched,
};
use signalbox_core::routing::health::Hysteresis;
use signalbox_core::wire::peek::proxy::ProxyTlvs;

use super::{EXAMPLE, bent, documented, mistakes_of, plus, right};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn the_example_means_what_it_says() {
    let parsed = right(EXAMPLE);
    assert_eq!(parsed.warnings, []);
    let model = parsed.model;
    assert_eq!(model.admin.listen, Some("127.0.0.1:8089".parse().unwrap()));
    assert_eq!(model.admin.socket.to_str(), Some("/run/signalbox/admin.sock"));

    let [http, https, mysql] = &model.listeners[..] else {
        panic!("{:?}", model.listeners)
    };
    assert_eq!(
        (http.name.as_str(), http.protocol, http.cluster),
        ("http", Protocol::Http, None)
    );
    assert_eq!(
        http.listen.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["10.1.0.1:80", "[fd00:1::1]:80"]
    );
    assert_eq!((https.protocol, https.listen.len()), (Protocol::Tls, 2));
    assert_eq!((mysql.protocol, mysql.cluster), (Protocol::Tcp, Some(0)));
    assert_eq!(mysql.listen[0].single(), Some("10.1.0.1:3306".parse().unwrap()));
    assert_eq!((mysql.trusted_proxies.len(), mysql.datapath.tier), (0, None));

    let [east, west] = &model.clusters[..] else {
        panic!("{:?}", model.clusters)
    };
    let probe = HttpProbe {
        port: Some(1936),
        path: "/healthz".to_owned(),
        host_header: None,
        tls: None,
    };
    assert_eq!((east.name.as_str(), east.balance), ("east", Balance::LeastConnections));
    assert_eq!(east.health.probe, Probe::Http(probe));
    assert_eq!((east.hosts[0].name.as_str(), east.hosts[0].weight), ("east-1", 1));
    let east_2 = &east.hosts[1];
    assert_eq!((east_2.address, east_2.weight), ("10.2.0.3".parse().unwrap(), 2));
    assert_eq!(
        (east_2.http, east_2.https, east_2.tcp),
        (Some(80), Some(443), Some(3306))
    );
    assert_eq!(west.health.probe, Probe::Router);
    assert_eq!(
        (west.hosts[0].address, west.hosts[0].tcp),
        ("fd00:2::4".parse().unwrap(), None)
    );

    let routes: Vec<_> = model
        .routes
        .iter()
        .map(|route| (route.hostname.to_string(), &route.clusters[..]))
        .collect();
    let expected = [
        ("app1.example.com".to_owned(), &[(0, 10), (1, 80)][..]),
        ("*.apps.example.com".to_owned(), &[(1, 100)]),
    ];
    assert_eq!(routes, expected);
    assert_eq!(model.unmatched, Unmatched::Reject);
}

#[test]
fn omitted_settings_have_their_defaults() {
    let text = r#"
        version: 1
        listeners: [{ name: l, protocol: http, listen: ["*:80"] }]
        clusters: [{ name: c, hosts: [{ name: h, address: 10.0.0.1, http: 80 }] }]
        unmatched: any
    "#;
    let model = right(text).model;
    assert_eq!(model.admin.listen, Some("127.0.0.1:8089".parse().unwrap()));
    assert_eq!(model.admin.socket.to_str(), Some("/run/signalbox/admin.sock"));
    assert_eq!(model.datapath.tier, None);
    let times = model.timeouts;
    assert_eq!(
        (times.connect, times.peek_http, times.peek_tls),
        (seconds(5), seconds(10), seconds(5))
    );
    assert_eq!((times.idle, times.shutdown), (seconds(3600), seconds(30)));
    assert_eq!(model.limits.max_connections, None);
    let limits = model.limits.per_source;
    assert_eq!((limits.concurrent, limits.per_second, limits.peeking), (0, 0, 1024));
    let handshakes = model.limits.handshakes;
    assert_eq!((handshakes.per_worker, handshakes.per_source), (256, 64));
    let cluster = &model.clusters[0];
    assert_eq!(
        (cluster.balance, cluster.proxy_protocol),
        (Balance::LeastConnections, None)
    );
    let health = &cluster.health;
    assert_eq!((&health.probe, health.rise, health.fall), (&Probe::Router, 2, 1));
    assert_eq!(health.proxy_header, CheckProxyHeader::Never);
    assert_eq!((health.interval, health.timeout), (seconds(5), seconds(2)));
    let ejection = cluster.ejection;
    assert_eq!(
        (ejection.failures, ejection.time, ejection.max_percent),
        (3, seconds(10), 50)
    );
    assert!(model.routes.is_empty());
}

#[test]
fn every_setting_is_read() {
    let text = r#"
        version: 1
        admin: { listen: none, socket: /tmp/s, max_connections: 9 }
        datapath: { tier: splice }
        timeouts: { connect: 250ms, queue: 6s, peek_http: 1s, peek_tls: 2s, idle: 2m, shutdown: 1h,
                    keep_alive: 1s, body: 2s, answer: 3s, tunnel: 4s }
        limits: { max_connections: 5000, per_source: { concurrent: 1, per_second: 2, peeking: 0 },
                  handshakes: { per_worker: 8, per_source: 0 } }
        listeners:
          - name: a
            protocol: tls
            listen: ["*:443", "10.9.0.0/24:80"]
            cluster: c
            proxy_protocol: { trusted: ["10.0.0.0/8", "fd00::/8", 192.0.2.1] }
            datapath: { tier: copy }
          - { name: b, protocol: tls, listen: [":444"] }
          - { name: c, protocol: tls, listen: [":445"], datapath: { tier: auto } }
          - { name: d, protocol: http, listen: [":80"], routing: request }
        clusters:
          - name: c
            balance: maglev
            max_host_connections: 7
            health: { https: { port: 1, path: /a?b=c, host: "h.example:8443", sni: S.example, ca: /ca.pem } }
            ejection: { failures: 0, time: 1m, max_percent: 100 }
            proxy_protocol: v2
            hosts: [{ name: h, address: "::1", https: 443, weight: 100 }]
        unmatched: { cluster: c }
    "#;
    let model = right(text).model;
    assert_eq!(
        (model.admin.listen, model.admin.socket.to_str()),
        (None, Some("/tmp/s"))
    );
    assert_eq!(model.admin.max_connections, 9);
    let times = model.timeouts;
    assert_eq!(
        (times.connect, times.peek_http, times.peek_tls),
        (Duration::from_millis(250), seconds(1), seconds(2))
    );
    assert_eq!(
        (times.idle, times.shutdown, times.queue),
        (seconds(120), seconds(3600), seconds(6))
    );
    assert_eq!((times.http.keep_alive, times.http.body), (seconds(1), seconds(2)));
    assert_eq!((times.http.answer, times.http.tunnel), (seconds(3), seconds(4)));
    let limits = model.limits.per_source;
    assert_eq!(model.limits.max_connections, Some(5000));
    assert_eq!((limits.concurrent, limits.per_second, limits.peeking), (1, 2, 0));
    let handshakes = model.limits.handshakes;
    assert_eq!((handshakes.per_worker, handshakes.per_source), (8, 0));
    let [a, b, c, d] = &model.listeners[..] else {
        panic!("{:?}", model.listeners)
    };
    assert_eq!((a.listen.len(), a.cluster), (3, Some(0)));
    assert_eq!((a.routing, d.routing), (Routing::Connection, Routing::Request));
    let trusted: Vec<String> = a.trusted_proxies.iter().map(ToString::to_string).collect();
    assert_eq!(trusted, ["10.0.0.0/8", "fd00::/8", "192.0.2.1/32"]);
    assert_eq!(
        (a.datapath.tier, b.datapath.tier, c.datapath.tier),
        (Some(Tier::Copy), Some(Tier::Splice), None)
    );
    let cluster = &model.clusters[0];
    assert_eq!(
        (cluster.balance, cluster.proxy_protocol),
        (Balance::Maglev, Some(ProxyTlvs::DEFAULT))
    );
    assert_eq!(cluster.max_host_connections, Some(7));
    let tls = TlsProbe {
        sni: Some("s.example".to_owned()),
        ca: Some("/ca.pem".into()),
    };
    let host = Some("h.example:8443".to_owned());
    let probe = HttpProbe {
        port: Some(1),
        path: "/a?b=c".to_owned(),
        host_header: host,
        tls: Some(tls),
    };
    assert_eq!(cluster.health.probe, Probe::Http(probe));
    let ejection = cluster.ejection;
    assert_eq!(
        (ejection.failures, ejection.time, ejection.max_percent),
        (0, seconds(60), 100)
    );
    assert_eq!(model.unmatched, Unmatched::Cluster(0));
}

#[test]
fn a_proxy_header_has_the_tlvs_of_its_list() {
    let header = |to: &str| {
        let text = bent("name: west\n", &format!("name: west\n    proxy_protocol: {to}\n"));
        right(&text).model.clusters[1].proxy_protocol
    };
    let all = ProxyTlvs::ALL
        .iter()
        .fold(ProxyTlvs::NONE, |all, (_, one)| all.with(*one));
    for (to, tlvs) in [
        ("none", None),
        ("v2", Some(ProxyTlvs::DEFAULT)),
        ("{ version: 2 }", Some(ProxyTlvs::DEFAULT)),
        ("{ tlvs: [authority] }", Some(ProxyTlvs::DEFAULT)),
        ("{ version: 2, tlvs: [] }", Some(ProxyTlvs::NONE)),
        ("{ version: 2, tlvs: [unique_id, authority, crc32c, alpn] }", Some(all)),
    ] {
        assert_eq!(header(to), tlvs, "{to}");
    }
}

#[test]
fn checks_send_the_clusters_proxy_header_unless_set_otherwise() {
    let check = |to: &str| {
        let text = bent("name: west\n", &format!("name: west\n{to}"));
        right(&text).model.clusters[1].health.clone()
    };
    let west = "    proxy_protocol: v2\n";
    assert_eq!(check("").proxy_header, CheckProxyHeader::Never);
    assert_eq!(check(west).proxy_header, CheckProxyHeader::HostPorts);
    let tcp = format!("{west}    health: {{ tcp: }}\n");
    assert_eq!(check(&tcp).proxy_header, CheckProxyHeader::HostPorts);
    let none = format!("{west}    health: {{ tcp:, proxy_protocol: none }}\n");
    assert_eq!(check(&none).proxy_header, CheckProxyHeader::Never);
    assert_eq!(
        check("    health: { proxy_protocol: v2 }\n").proxy_header,
        CheckProxyHeader::Always
    );
}

#[test]
fn a_check_that_hangs_has_failed_within_the_interval() {
    let check = |to: &str| {
        let text = bent("name: west\n", &format!("name: west\n    health: {to}\n"));
        right(&text).model.clusters[1].health.clone()
    };
    for (to, interval, timeout, next) in [
        ("{ tcp:, interval: 1s }", 1000, 500, 500),
        ("{ interval: 3s }", 3000, 1500, 1500),
        ("{ }", 5000, 2000, 3000),
        ("{ interval: 9s }", 9000, 2000, 7000),
        ("{ interval: 9s, timeout: 1s }", 9000, 1000, 8000),
    ] {
        let check = check(to);
        assert_eq!(
            [check.interval, check.timeout, check.until_next(&Hysteresis::default())].map(|time| time.as_millis()),
            [interval, timeout, next],
            "{to}"
        );
        assert_eq!(check.fall, 1, "one failure is enough");
        assert_eq!(check.max_detection_time(), check.interval, "{to}");
        assert_eq!(check.fast_interval, None);
    }
    let fast = check("{ fall: 3, fast_interval: 500ms }").fast_interval;
    assert_eq!(fast.map(|fast| fast.as_millis()), Some(500));
    assert_eq!(check("{ interval: 9s }").probe, Probe::Router);
}

#[test]
fn a_tcp_check_may_be_bare() {
    for health in ["{ tcp: {} }", "{ tcp: }", "{ tcp }", "{ tcp: null, interval: 2s }"] {
        let text = bent("name: west\n", &format!("name: west\n    health: {health}\n"));
        assert_eq!(
            right(&text).model.clusters[1].health.probe,
            Probe::Tcp { port: None },
            "{health}"
        );
    }
}

#[test]
fn an_http_check_may_be_bare_where_hosts_have_the_port() {
    for (kind, tls) in [("http", false), ("https", true)] {
        let text = bent("name: west\n", &format!("name: west\n    health: {{ {kind}: }}\n"));
        let Probe::Http(probe) = right(&text).model.clusters[1].health.probe.clone() else {
            panic!("{kind}")
        };
        assert_eq!((probe.port, probe.path.as_str(), probe.tls.is_some()), (None, "/", tls));
    }
}

#[test]
fn sections_may_be_empty() {
    let text = plus("timeouts:\nlimits: { per_source: }\ndatapath: {}");
    assert_eq!(right(&text).model.timeouts.connect, seconds(5));
    let text = bent("unmatched: reject ", "unmatched: any\ntimeouts: # to be done\n");
    assert_eq!(right(&text).model.unmatched, Unmatched::Any);
}

#[test]
fn json_will_do() {
    let text = r#"{"version":1,
        "listeners":[{"name":"l","protocol":"tcp","listen":["10.0.0.1:80"],"cluster":"c"}],
        "clusters":[{"name":"c","hosts":[{"name":"h","address":"10.0.0.2","tcp":80,"weight":7}]}],
        "routes":[{"host":"a.example","clusters":{"c":1}}], "unmatched": {"cluster": "c"}}"#;
    let model = right(text).model;
    assert_eq!(
        (model.clusters[0].hosts[0].weight, model.unmatched),
        (7, Unmatched::Cluster(0))
    );
}

#[test]
fn overlapping_prefixes_are_no_mistake() {
    let text = bent(
        r#""10.1.0.1:80", "#,
        r#""10.1.0.1:80", "10.1.0.0/24:80", "0.0.0.0:80", "#,
    );
    assert_eq!(right(&text).model.listeners[0].listen.len(), 4);
}

#[test]
fn ten_thousand_routes_are_read() {
    let mut text = EXAMPLE
        .replace("routes:", "ignored:")
        .split("ignored:")
        .next()
        .unwrap_or_default()
        .to_owned();
    text.push_str("routes:\n");
    for n in 0..10_000 {
        text.push_str(&format!(
            "  - {{ host: app{n}.example.com, clusters: {{ east: 10, west: 80 }} }}\n"
        ));
    }
    assert_eq!(right(&text).model.routes.len(), 10_000);
}

#[test]
fn the_reference_shows_a_right_file() {
    let parsed = right(documented("version: 1"));
    assert_eq!((parsed.warnings.len(), parsed.model.listeners.len()), (0, 3));
}

#[test]
fn a_listener_sets_its_peek_place_or_inherits_the_common_one() {
    let listener = |name: &str, port: u16, rest: &str| {
        format!("  - {{ name: {name}, protocol: http, listen: [\":{port}\"]{rest} }}\n")
    };
    let clusters = "clusters: [{ name: east, hosts: [{ name: h, address: 10.2.0.2, http: 80 }] }]";
    let places = |text: &str| -> Vec<PeekPlace> {
        let model = right(text).model;
        model.listeners.iter().map(|listener| listener.datapath.peek).collect()
    };
    let text = format!("version: 1\nlisteners:\n{}{clusters}\n", listener("a", 81, ""));
    assert_eq!(places(&text), [PeekPlace::Auto]);
    let listeners = listener("a", 81, "")
        + &listener("b", 82, ", datapath: { peek: kernel }")
        + &listener("c", 83, ", datapath: { peek: userspace }");
    let text = format!("version: 1\ndatapath: {{ peek: userspace }}\nlisteners:\n{listeners}{clusters}\n");
    assert_eq!(
        places(&text),
        [PeekPlace::Userspace, PeekPlace::Kernel, PeekPlace::Userspace]
    );
}

#[test]
fn the_kernel_peek_serves_orphaned_for_all_listeners_or_none() {
    let text = |common: &str, own: &str| {
        format!(
            "version: 1\ndatapath: {{ {common} }}\nlisteners:\n  - {{ name: a, protocol: http, listen: [\":81\"]{own} }}\n\
             clusters: [{{ name: east, hosts: [{{ name: h, address: 10.2.0.2, http: 80 }}] }}]\n"
        )
    };
    let outlives = |text: &str| {
        let model = right(text).model;
        (
            model.datapath.serves_orphaned,
            model.listeners[0].datapath.serves_orphaned,
        )
    };
    assert_eq!(outlives(&text("cut: auto", "")), (false, false));
    assert_eq!(outlives(&text("peek_orphan: end", "")), (false, false));
    let own = ", datapath: { peek: kernel }";
    assert_eq!(outlives(&text("peek_orphan: serve", own)), (true, true));
    let of_one = text("peek_orphan: serve", ", datapath: { peek_orphan: serve }");
    for (text, part) in [(of_one, "peek_orphan"), (text("peek_orphan: on", ""), "serve")] {
        let mistakes = mistakes_of(&text);
        assert!(mistakes.len() == 1 && mistakes[0].contains(part), "{mistakes:?}");
    }
}
