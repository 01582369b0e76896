//! Warnings about settings that are allowed but probably mistakes.

use super::{EXAMPLE, bent, plus, right};

fn oddities(text: &str) -> Vec<String> {
    right(text).warnings.iter().map(ToString::to_string).collect()
}

#[test]
fn a_listener_whose_hosts_lack_the_port() {
    let text = EXAMPLE.replace(", https: 443", "");
    let expected = "5:5: listeners[1]: no host that a route or `unmatched` leads to has the port `https`: \
                    listener `https` refuses everything";
    assert_eq!(oddities(&text), [expected]);
    let text = bent("cluster: east", "cluster: west");
    let expected = "6:5: listeners[2]: no host of `west`, the cluster of listener `mysql`, has the port `tcp`";
    assert_eq!(oddities(&text), [expected]);
}

#[test]
fn a_listener_that_ends_tls_needs_no_port_https() {
    let text = EXAMPLE
        .replace(", https: 443", "")
        .replace("protocol: tls", "protocol: https");
    let refuses = |text: &str| {
        oddities(text)
            .iter()
            .any(|oddity| oddity.contains("refuses everything"))
    };
    assert!(refuses(&text));
    let edge = "  - { host: edge.test, clusters: { east: 1 }, tls: { termination: edge } }\n";
    assert!(!refuses(&text.replace("routes:\n", &format!("routes:\n{edge}"))));
}

#[test]
fn a_listener_that_learns_names_by_events_gets_no_warning() {
    let with = |more: &str| {
        format!(
            "version: 1\nlisteners:\n  - {{ name: http, protocol: http, listen: [\"*:80\"] }}\nclusters: []\n{more}"
        )
    };
    assert_eq!(oddities(&with("")).len(), 1);
    assert_eq!(oddities(&with("routing_events: {}\n")), [""; 0]);
}

#[test]
fn rules_that_hold_for_the_first_name_of_a_connection_only() {
    let with = |keys: &str| {
        let route = format!("routes:\n  - {{ host: kept.test, clusters: {{ east: 1 }}, {keys} }}\n");
        EXAMPLE.replace("routes:\n", &route)
    };
    for keys in [
        "allow: [10.0.0.0/8]",
        "tls: { termination: passthrough, insecure: none }",
    ] {
        let found = oddities(&with(keys));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains("`allow` and `insecure` of `kept.test` and others do not hold"),
            "{found:?}"
        );
        assert!(oddities(&with(keys).replace("protocol: http,", "protocol: http, routing: request,")).is_empty());
    }
    assert!(oddities(&with("drain: 1m")).is_empty());
}

#[test]
fn requests_that_a_listener_cannot_read() {
    for keys in ["affinity: { cookie: sb }", "path: /api"] {
        let route = format!("routes:\n  - {{ host: kept.test, clusters: {{ east: 1 }}, {keys} }}\n");
        let found = oddities(&EXAMPLE.replace("routes:\n", &route));
        assert!(
            found.len() == 1 && found[0].contains("passes on the TLS of `kept.test`, whose requests it cannot read"),
            "{keys}: {found:?}"
        );
    }
    let route = "routes:\n  - { host: kept.test, clusters: { east: 1 }, tls: { termination: edge }, rewrite: /x }\n";
    let found = oddities(&EXAMPLE.replace("routes:\n", route));
    assert!(
        found
            .iter()
            .any(|warning| warning.contains("another path than clients")),
        "{found:?}"
    );
}

#[test]
fn nothing_leads_anywhere() {
    let text = EXAMPLE.split("routes:").next().unwrap_or_default();
    let found = oddities(text);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found[0].contains("there is no route, and `unmatched` rejects: listener `http` refuses"),
        "{found:?}"
    );
    assert!(oddities(&format!("{text}unmatched: any")).is_empty());
    assert!(oddities(&format!("{text}unmatched: {{ cluster: west }}")).is_empty());
}

#[test]
fn a_cluster_without_hosts() {
    let text = plus("").replace("  - name: west\n", "  - { name: none, hosts: [] }\n  - name: west\n");
    assert_eq!(
        oddities(&text),
        ["14:5: clusters[1]: the cluster `none` has no hosts: connections that it should get are refused"]
    );
}

#[test]
fn a_check_timeout_above_half_the_interval_is_warned_about() {
    let health = |to: &str| bent("name: west\n", &format!("name: west\n    health: {to}\n"));
    let expected = "15:44: clusters[1].health.timeout: the timeout (3s) is more than half of the interval (4s): a \
                    host that hangs may be noticed only after 5s; shorten the timeout to notice it within the interval";
    assert_eq!(oddities(&health("{ tcp:, interval: 4s, timeout: 3s }")), [expected]);
    assert!(oddities(&health("{ tcp:, interval: 4s, timeout: 2s }")).is_empty());
    let of_applications = "routing_events: { destination: /queue/x, brokers: [ \"a.test:61613\" ], applications: [ { match: \"*\", \
                           health: { interval: 1s, timeout: 1s } } ] }";
    let found = oddities(&plus(of_applications));
    assert!(
        found.len() == 1 && found[0].contains("applications[0].health.timeout: the timeout (1s)"),
        "{found:?}"
    );
}

#[test]
fn plain_http_for_routers() {
    let warns = |cluster: &str, route: &str, listener: &str| {
        let text = format!(
            "version: 1\nlisteners:\n  - {{ name: edge, protocol: https, listen: [\":443\"]{listener} }}\nclusters:\n  \
             - {{ name: east, hosts: [{{ name: e1, address: 10.2.0.1, http: 80, https: 443 }}]{cluster} }}\nroutes:\n  \
             - {{ host: app.test, clusters: {{ east: 1 }}{route} }}\n"
        );
        let all = oddities(&text);
        all.iter()
            .any(|oddity| oddity.contains("speaks plain HTTP to the hosts of `east`"))
    };
    let edge = ", tls: { termination: edge }";
    assert!(warns("", edge, ""), "hosts are routers where nothing else is said");
    assert!(warns(", role: routers", edge, ""));
    assert!(warns("", "", ", termination: edge"));
    assert!(!warns(", role: servers", edge, ""));
    assert!(!warns("", ", tls: { termination: reencrypt }", ", termination: edge"));
    assert!(!warns("", "", ""));
    let watched = ", kubernetes: { url: \"http://10.9.0.1:6443\" }";
    let reencrypt = ", tls: { termination: reencrypt }";
    assert!(warns(watched, reencrypt, ", termination: edge"), "discovered names");
    assert!(!warns(
        &format!("{watched}, role: servers"),
        reencrypt,
        ", termination: edge"
    ));
}

#[test]
fn ports_of_services_that_listeners_take_too() {
    let services = "services:\n  - { name: db, protocol: tcp, listen: [\"10.1.0.9:3306\"], cluster: east }\n";
    let with = |ports: &str, services: &str| {
        let layer4 = format!("layer4: {{ nat: {{ ports: {ports} }} }}\n{services}clusters:\n");
        oddities(&EXAMPLE.replace("clusters:\n", &layer4))
    };
    let found = with("2000-20000", services);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("layer4.nat.ports: connections of listeners also use source ports above 16383"),
        "{found:?}"
    );
    assert!(with("2000-16383", services).is_empty());
    assert!(with("2000-20000", &services.replace("protocol: tcp", "protocol: udp")).is_empty());
    assert!(with("2000-20000", "").is_empty());
}

#[test]
fn ports_of_hosts_where_direct_return_keeps_the_port() {
    let with = |mode: &str, port: u16| {
        let service = "{ name: db, protocol: [tcp, udp], listen: [\"10.1.0.9:3306\"], cluster: one";
        let host = format!("{{ name: e1, address: 10.2.0.9, ports: {{ db: {port} }} }}");
        oddities(&EXAMPLE.replace(
            "clusters:\n",
            &format!("services: [{service}, mode: {mode} }}]\nclusters:\n  - {{ name: one, hosts: [{host}] }}\n"),
        ))
    };
    for mode in ["dsr-l2", "dsr-ipip"] {
        let found = with(mode, 3307);
        assert_eq!(found.len(), 1, "{found:?}");
        let told = format!("host `e1` names port 3307 for the service `db`, whose `mode: {mode}` cannot change ports");
        assert!(found[0].contains(&told), "{found:?}");
        assert!(with(mode, 3306).is_empty());
    }
    assert!(with("nat", 3307).is_empty());
}

#[test]
fn valid_but_suspicious_settings_are_warned_about() {
    let file = |more: &str, listener: &str, hosts: &str| {
        format!(
            "version: 1\n{more}listeners:\n  - {{ name: web, protocol: http, listen: [\"10.1.0.1:80\"]{listener} }}\n\
             clusters:\n  - name: east\n    hosts:\n{hosts}routes: [{{ host: a.test, clusters: {{ east: 1 }} }}]\n"
        )
    };
    let host = |name: &str, address: &str, more: &str| {
        format!("      - {{ name: {name}, address: {address}, http: 80{more} }}\n")
    };
    let one = host("e1", "10.2.0.1", "");
    assert_eq!(oddities(&file("", "", &one)), [""; 0]);
    for (text, said) in [
        (
            file("", "", &host("e1", "10.1.0.1", "")),
            "is the listener `web` itself",
        ),
        (
            file("", "", &(one.clone() + &host("e2", "10.2.0.1", ""))),
            "have the same address and ports",
        ),
        (
            file("", "", &host("e1", "10.2.0.1", ", ports: { dnss: 5353 }")),
            "names `dnss`, which is not a service",
        ),
        (
            file("", "", &host("e1", "e1.test", ", ports: { dnss: 5353 }")),
            "names `dnss`, which is not a service",
        ),
        (file("shield: { allow: [10.0.0.0/8] }\n", "", &one), "nobody is denied"),
        (file("shield: { deny: [\"0.0.0.0/0\"] }\n", "", &one), "nobody gets in"),
        (
            file("", ", proxy_protocol: { trusted: [\"0.0.0.0/0\"] }", &one),
            "any client can claim",
        ),
        (
            file("admin: { listen: \"10.1.0.1:8089\", token_file: /token }\n", "", &one),
            "is sent unencrypted",
        ),
        (
            file("", "", &one).replace("protocol: http,", "protocol: https, termination: edge,"),
            "each handshake fails",
        ),
    ] {
        let found = oddities(&text);
        assert!(
            found.iter().any(|oddity| oddity.contains(said)),
            "{said}: {found:?}\n{text}"
        );
    }
}

#[test]
fn a_listener_that_covers_the_admin_api_is_a_mistake() {
    let file = |listen: &str| {
        format!(
            "version: 1\nadmin: {{ listen: \"127.0.0.1:8089\" }}\nlisteners:\n  \
             - {{ name: web, protocol: http, listen: [\"{listen}\"] }}\nclusters: []\n"
        )
    };
    for covers in ["*:8089", "0.0.0.0:8089", "127.0.0.0/8:8089"] {
        let errors = super::parse(&file(covers)).unwrap_err().to_string();
        assert!(errors.contains("covers 127.0.0.1:8089"), "{covers}: {errors}");
    }
    for beside in ["0.0.0.0:8090", "127.0.0.2:8089", "[::]:8089"] {
        super::parse(&file(beside)).unwrap_or_else(|errors| panic!("{beside}: {errors}"));
    }
}
