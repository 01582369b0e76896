//! Tests of the routing view, and the model that other tests share with them.

use std::time::Duration;

use super::*;
use crate::model::*;
use crate::wire::hostname::HostnamePattern;

pub(crate) fn model() -> Model {
    let host = |n: u8| Host {
        name: format!("h{n}"),
        address: [10, 0, 0, n].into(),
        http: Some(80),
        https: Some(443),
        tcp: None,
        ports: std::collections::BTreeMap::new(),
        weight: 1,
        backup: false,
        health_page: None,
    };
    let cluster = |name: &str, hosts| Cluster {
        name: name.into(),
        role: ClusterRole::Routers,
        balance: Balance::LeastConnections,
        health: HealthCheck {
            probe: Probe::Tcp { port: None },
            ..HealthCheck::DEFAULT
        },
        ejection: Ejection {
            failures: 3,
            time: Duration::from_secs(10),
            max_percent: 50,
        },
        proxy_protocol: None,
        drain: None,
        hosts,
        named_hosts: Vec::new(),
        resolve: DEFAULT_RESOLVE_INTERVAL,
        learn: false,
        kubernetes: None,
        subset: None,
        join: crate::model::JoinPolicy::None,
        backend_tls: crate::model::tls::BackendTls::default(),
        h2c: false,
        repairs_answers: false,
        max_host_connections: None,
    };
    Model {
        admin: Admin {
            listen: None,
            socket: "/run/x.sock".into(),
            token_file: None,
            tls: None,
            reads_need_token: false,
            max_connections: crate::model::DEFAULT_ADMIN_CONNECTIONS,
            names: Vec::new(),
        },
        listeners: vec![],
        services: vec![],
        layer4: crate::model::Layer4::default(),
        shield: crate::model::Shield::default(),
        clusters: vec![cluster("east", vec![host(1), host(2)]), cluster("west", vec![host(3)])],
        routes: vec![Route {
            hostname: HostnamePattern::parse("app.test").unwrap(),
            depth: crate::wire::hostname::WildcardDepth::Any,
            clusters: vec![(0, 10), (1, 80)],
            drain: None,
            prefer: Vec::new(),
            labels: crate::model::labels::Labels::new(),
            tls: None,
            claimed_termination: None,
            claimed: None,
            allow: None,
            connections: None,
            paths: Vec::new(),
            requests: http::RequestPolicy::default(),
        }],
        unmatched: Unmatched::Any,
        timeouts: Timeouts {
            connect: Duration::from_secs(5),
            queue: Duration::from_secs(5),
            peek_http: Duration::from_secs(10),
            peek_tls: Duration::from_secs(5),
            idle: Duration::from_secs(3600),
            shutdown: Duration::from_secs(30),
            drain: Duration::from_secs(120),
            http: crate::model::HttpTimeouts {
                keep_alive: Duration::from_secs(60),
                body: Duration::from_secs(30),
                answer: Duration::from_secs(30),
                tunnel: Duration::from_secs(3600),
            },
            first_read: Duration::from_secs(60),
        },
        limits: Limits {
            cut_flows: 1,
            max_connections: None,
            per_source: PerSource {
                concurrent: 0,
                per_second: 0,
                peeking: 0,
            },
            handshakes: crate::model::HandshakeLimits {
                per_worker: 0,
                per_source: 0,
            },
            heads: crate::model::HeadLimits::default(),
        },
        datapath: Datapath {
            tier: None,
            cut: true,
            cuts_last_requests: true,
            cuts_long_answers: false,
            peek: crate::model::PeekPlace::Userspace,
            serves_orphaned: false,
        },
        store: "/nowhere/state.redb".into(),
        etcd: None,
        balancers: Vec::new(),
        subset: Subset {
            name: None,
            size: crate::model::SubsetSize::All,
        },
        routing_events: None,
        metrics: Metrics::DEFAULT,
        access_log: None,
        pages: std::collections::BTreeMap::new(),
        ha: None,
        tls: crate::model::tls::TlsSettings::default(),
    }
}

const GOOD: Eligibility = Eligibility {
    usable: true,
    ejected: false,
    rotated_out: false,
};

#[test]
fn a_cluster_without_a_healthy_host_gets_no_turn() {
    let view = RoutingView::new(&model(), |c, _| Eligibility { usable: c == 0, ..GOOD }, |_| false);
    for ticket in 0..20 {
        assert_eq!(view.cluster(Destination::Route(0), ticket), Some(0));
    }
    let view = RoutingView::new(&model(), |_, _| Eligibility { usable: false, ..GOOD }, |_| false);
    assert_eq!(view.cluster(Destination::Route(0), 0), None);
    assert_eq!(view.any_host(Protocol::Http, 0, &[], |_, _| 0), None);
}

#[test]
fn ejection_fails_open_but_a_failed_check_does_not() {
    let draw = PickContext {
        ticket: 0,
        random: 0,
        source_hash: 0,
    };
    let view = RoutingView::new(
        &model(),
        |_, h| Eligibility {
            usable: true,
            ejected: h == 0,
            rotated_out: false,
        },
        |_| false,
    );
    assert_eq!(view.host(0, Protocol::Http, draw, &[], |_| 0), Some(1));
    assert_eq!(
        view.host(1, Protocol::Http, draw, &[], |_| 0),
        Some(0),
        "its only host stays in"
    );
    let view = RoutingView::new(
        &model(),
        |c, h| Eligibility {
            usable: c == 1 || h == 0,
            ejected: h == 0,
            rotated_out: false,
        },
        |_| false,
    );
    assert_eq!(view.host(0, Protocol::Http, draw, &[], |_| 0), Some(0));
}

#[test]
fn a_rotated_out_target_gets_nothing_even_if_none_is_left() {
    let out = |cluster: usize, host: usize| {
        let standing = move |c, h| Eligibility {
            rotated_out: (c, h) == (cluster, host),
            ..GOOD
        };
        RoutingView::new(&model(), standing, |_| false)
    };
    let view = out(1, 0);
    for ticket in 0..20 {
        assert_eq!(view.cluster(Destination::Route(0), ticket), Some(0));
    }
    for ticket in 0..20 {
        assert!(matches!(
            view.any_host(Protocol::Http, ticket, &[], |_, _| 0),
            Some((0, _))
        ));
    }
    assert_eq!(out(0, 0).usable(0, Protocol::Http), [(1, 1)]);
    let app = Hostname::parse(b"app.test").unwrap();
    let closed = RoutingView::new(&model(), |_, _| GOOD, |route| route.hostname.to_string() == "app.test");
    assert_eq!(closed.destination(Some(&app), only(1)), Destination::Closed);
    assert_eq!(closed.cluster(Destination::Closed, 0), None);
}

fn only(cluster: usize) -> Option<ClusterWithBackup> {
    Some(ClusterWithBackup { cluster, backup: None })
}

#[test]
fn a_subset_is_used_and_the_next_steps_in() {
    let order = |hosts: Vec<u16>| [Some(HostOrder { hosts, size: 1 }), None];
    let usable = |down: Option<usize>| {
        let standing = move |c, h| Eligibility {
            usable: c == 1 || Some(h) != down,
            ..GOOD
        };
        let view = RoutingView::with_subsets(&model(), &order(vec![1, 0]), standing, |_| false);
        let drawn: Vec<_> = (0..20)
            .filter_map(|ticket| view.any_host(Protocol::Http, ticket, &[(1, 0)], |_, _| 0))
            .collect();
        let usable = view.usable(0, Protocol::Http).to_vec();
        assert!(
            drawn
                .iter()
                .all(|(_, host)| usable.iter().any(|(used, _)| used == host))
        );
        assert_eq!(view.usable(1, Protocol::Http), [(0, 1)], "a cluster without a subset");
        (usable, view.eligible_hosts(0).len())
    };
    assert_eq!(usable(None), (vec![(1, 1)], 2), "services use all");
    assert_eq!(usable(Some(1)), (vec![(0, 1)], 1));
    assert_eq!(usable(Some(0)), (vec![(1, 1)], 1));
}

#[test]
fn a_backup_is_used_while_nothing_else_of_its_cluster_is() {
    let mut model = model();
    model.clusters[0].hosts[1].backup = true;
    let with = |first: Eligibility, backup: Eligibility| {
        let standing = move |c, h| match (c, h) {
            (0, 0) => first,
            (0, _) => backup,
            _ => Eligibility { usable: false, ..GOOD },
        };
        RoutingView::new(&model, standing, |_| false)
    };
    let down = Eligibility { usable: false, ..GOOD };
    let ejected = Eligibility { ejected: true, ..GOOD };
    let out = Eligibility {
        rotated_out: true,
        ..GOOD
    };
    let used = |first, backup| {
        let view = with(first, backup);
        let used: Vec<u16> = view.usable(0, Protocol::Http).iter().map(|(host, _)| *host).collect();
        let any = view
            .any_host(Protocol::Http, 0, &[], |_, h| u32::from(h == 0))
            .map(|(_, host)| host);
        assert_eq!(any, used.first().copied());
        used
    };
    assert_eq!(used(GOOD, GOOD), [0]);
    for first in [down, ejected, out] {
        assert_eq!(used(first, GOOD), [1], "{first:?}");
    }
    assert_eq!(used(ejected, ejected), [0], "ejection fails open");
    assert_eq!(used(down, ejected), [1]);
    assert_eq!(used(down, down), [0u16; 0]);
    assert_eq!(with(GOOD, GOOD).eligible_hosts(0), [0, 1], "flows of a backup go on");
    assert_eq!(with(GOOD, GOOD).cluster(Destination::Route(0), 0), Some(0));
    assert_eq!(with(down, GOOD).cluster(Destination::Route(0), 0), Some(0));
}

#[test]
fn a_backup_cluster_takes_over_while_no_host_of_the_other_can() {
    let mut model = model();
    model.clusters[0].hosts[1].https = None;
    let clusters = ClusterWithBackup {
        cluster: 0,
        backup: Some(1),
    };
    let with = |first: Eligibility, second: Eligibility, backup: Eligibility| {
        let standing = move |c, h| match (c, h) {
            (0, 0) => first,
            (0, _) => second,
            _ => backup,
        };
        RoutingView::new(&model, standing, |_| false)
    };
    let taking = |first, second, backup| with(first, second, backup).taking(clusters, Protocol::Http);
    let down = Eligibility { usable: false, ..GOOD };
    let ejected = Eligibility { ejected: true, ..GOOD };
    let out = Eligibility {
        rotated_out: true,
        ..GOOD
    };
    assert_eq!(taking(GOOD, GOOD, GOOD), 0);
    assert_eq!(taking(down, GOOD, GOOD), 0);
    for gone in [down, ejected, out] {
        assert_eq!(taking(gone, gone, GOOD), 1, "{gone:?}");
    }
    assert_eq!(taking(down, out, ejected), 1, "ejection fails open");
    assert_eq!(taking(ejected, ejected, ejected), 0, "ejection fails open");
    assert_eq!(taking(down, down, down), 0);
    assert_eq!(with(down, GOOD, GOOD).taking(clusters, Protocol::Tls), 1, "no port");
}

#[test]
fn a_client_whose_cookie_names_a_backup_stays_there() {
    use crate::model::http::CookieAffinity;
    use crate::routing::affinity::cookie_value;
    use crate::wire::http::cookie::StickyCookie;

    let mut model = model();
    model.clusters[0].hosts[1].backup = true;
    model.routes[0].requests.affinity = Some(CookieAffinity {
        cookie: StickyCookie::new("sb", None).unwrap(),
        scope: AffinityScope::Host,
    });
    let stays = |backup: Eligibility| {
        let standing = move |_, h| if h == 1 { backup } else { GOOD };
        let view = RoutingView::new(&model, standing, |_| false);
        let value = cookie_value("east", Some("h2"));
        let found = view.stickiness(value.as_bytes(), AffinityScope::Host, &[(0, 1)], Protocol::Http);
        found.is_some()
    };
    assert!(stays(GOOD));
    assert!(!stays(Eligibility { usable: false, ..GOOD }));
}

#[test]
fn a_backup_takes_a_protocol_that_no_other_host_has() {
    let mut model = model();
    model.clusters[0].hosts[1].backup = true;
    model.clusters[0].hosts[0].https = None;
    let view = RoutingView::new(&model, |_, _| GOOD, |_| false);
    assert_eq!(view.usable(0, Protocol::Http), [(0, 1)]);
    assert_eq!(view.usable(0, Protocol::Tls), [(1, 1)]);
}

#[test]
fn a_host_without_the_port_is_not_chosen() {
    let draw = PickContext {
        ticket: 0,
        random: 0,
        source_hash: 0,
    };
    let view = RoutingView::new(&model(), |_, _| GOOD, |_| false);
    assert_eq!(view.host(0, Protocol::Tcp, draw, &[], |_| 0), None);
}

#[test]
fn unmatched_goes_where_the_listener_or_the_configuration_says() {
    let view = RoutingView::new(&model(), |_, _| GOOD, |_| false);
    let name = Hostname::parse(b"other.test").unwrap();
    assert_eq!(view.destination(Some(&name), None), Destination::Any);
    assert_eq!(
        Some(view.destination(Some(&name), only(1))),
        only(1).map(Destination::Cluster)
    );
    assert_eq!(
        view.destination(Some(&Hostname::parse(b"app.test").unwrap()), only(1)),
        Destination::Route(0)
    );
    assert_eq!(view.any_host(Protocol::Http, 0, &[], |c, _| 5 - c as u32), Some((1, 0)));
}

#[test]
fn a_route_may_balance_in_its_own_way() {
    let mut model = model();
    let second = Route {
        hostname: HostnamePattern::parse("other.test").unwrap(),
        ..model.routes[0].clone()
    };
    model.routes.push(second);
    model.routes[1].claimed = Some(Box::new(claimed::ClaimedPolicy {
        balance: Some(Balance::RoundRobin),
        ..claimed::ClaimedPolicy::default()
    }));
    let usable = Eligibility {
        usable: true,
        ejected: false,
        rotated_out: false,
    };
    let view = RoutingView::new(&model, |_, _| usable, |_| false);
    let host = |route, ticket| {
        let draw = PickContext {
            ticket,
            random: 0,
            source_hash: 0,
        };
        // The second host is the busy one: only turns reach it.
        view.host_to(Destination::Route(route), 0, Protocol::Http, draw, &[], |host| {
            u32::from(host) * 9
        })
    };
    assert_eq!([0, 1].map(|ticket| host(0, ticket)), [Some(0), Some(0)]);
    let mut turns = [0, 1].map(|ticket| host(1, ticket));
    turns.sort_unstable();
    assert_eq!(turns, [Some(0), Some(1)]);
}
