use std::sync::Arc;

use super::*;
use crate::discovered::discovery::Claim;
use crate::model::Host;
use crate::model::labels::LabelSets;

/// Model whose two clusters both accept discovery.
fn model() -> Model {
    let mut model = crate::routing::view::tests::model();
    model.clusters.iter_mut().for_each(|cluster| cluster.learn = true);
    model
}

fn host(name: &str, last: u8) -> Host {
    Host {
        name: name.into(),
        address: [10, 9, 0, last].into(),
        http: Some(80),
        https: None,
        tcp: None,
        ports: std::collections::BTreeMap::new(),
        weight: 1,
        backup: false,
        health_page: None,
    }
}

fn learned(hosts: &[Host], routes: &[(&str, u32)]) -> Arc<ClusterDiscovery> {
    let claim = |&(host, weight): &(&str, u32)| Claim {
        hostname: HostnamePattern::parse(host).unwrap(),
        depth: WildcardDepth::Any,
        weight: Some(weight),
        owner: "test".into(),
        since: 1,
        origin: format!("Route test/{host}"),
        notes: Vec::new(),
        settings: Vec::new(),
        labels: LabelSets::default(),
        termination: None,
        is_edge: false,
        insecure: crate::model::tls::InsecurePolicy::Allow,
        certificate: None,
    };
    Arc::new(ClusterDiscovery {
        hosts: hosts.to_vec(),
        routes: routes.iter().map(claim).collect(),
        rejected: Vec::new(),
        endpoints: Vec::new(),
    })
}

fn discovered(all: &[(&str, &str, Arc<ClusterDiscovery>)]) -> Discovered {
    let mut discovered = Discovered::new();
    for (source, cluster, learned) in all {
        let of = discovered.entry((*source).to_owned()).or_default();
        of.insert((*cluster).to_owned(), Arc::clone(learned));
    }
    discovered
}

fn shares<'a>(model: &'a Model, host: &str) -> Option<Vec<(&'a str, u32)>> {
    let route = model.routes.iter().find(|route| route.hostname.to_string() == host)?;
    let name = |&(at, weight): &(usize, u32)| (model.clusters[at].name.as_str(), weight);
    Some(route.clusters.iter().map(name).collect())
}

#[test]
fn a_name_goes_to_every_cluster_that_serves_it() {
    let discovered = discovered(&[
        ("kube:west", "west", learned(&[], &[("shop.test", 80), ("app.test", 1)])),
        ("kube:east", "east", learned(&[], &[("shop.test", 10)])),
        ("api", "new", learned(&[host("n1", 1)], &[("*.new.test", 1)])),
    ]);
    let file = model();
    let merged = merge(&file, &discovered, &WeightOverrides::new());
    // Claims of sources are in a fixed order, whichever source reports first.
    assert_eq!(shares(&merged, "shop.test"), Some(vec![("east", 10), ("west", 80)]));
    assert_eq!(shares(&merged, "*.new.test"), Some(vec![("new", 1)]));
    assert_eq!(
        shares(&merged, "app.test"),
        Some(vec![("east", 10), ("west", 80)]),
        "the file's"
    );
    assert_eq!(merged.clusters[2].hosts, [host("n1", 1)]);
    let app = HostnamePattern::parse("app.test").unwrap();
    let [(by, rejected)] = &unserved_claims(&file, &discovered, &WeightOverrides::new(), &app)[..] else {
        panic!()
    };
    assert_eq!(
        (by.as_str(), rejected.origin.as_str()),
        ("kube:west in west", "Route test/app.test")
    );
    let app = &merged.routes[0];
    assert_eq!(
        app.hostname.to_string(),
        "app.test",
        "the file's routes keep their places"
    );
}

#[test]
fn a_star_stands_for_as_many_labels_as_one_of_its_claims_means() {
    let of = |depth: WildcardDepth| {
        let mut learned = (*learned(&[], &[("*.shop.test", 1)])).clone();
        learned.routes[0].depth = depth;
        Arc::new(learned)
    };
    let depth = |discovered: &Discovered| {
        let merged = merge(&model(), discovered, &WeightOverrides::new());
        let route = merged
            .routes
            .iter()
            .find(|route| route.hostname.to_string() == "*.shop.test");
        route.unwrap().depth
    };
    let one = discovered(&[("kube:west", "west", of(WildcardDepth::One))]);
    assert_eq!(depth(&one), WildcardDepth::One);
    let both = discovered(&[
        ("kube:west", "west", of(WildcardDepth::One)),
        ("kube:east", "east", of(WildcardDepth::Any)),
    ]);
    assert_eq!(depth(&both), WildcardDepth::Any);
}

#[test]
fn a_later_claim_of_a_name_gets_no_traffic_and_names_its_rival() {
    let with = |since: u64, owner: &str, weight: Option<u32>| {
        let mut learned = (*learned(&[], &[("shop.test", 1)])).clone();
        learned.routes[0].since = since;
        learned.routes[0].weight = weight;
        learned.routes[0].owner = owner.into();
        learned.routes[0].origin = format!("Route {owner}/web");
        Arc::new(learned)
    };
    let shop = HostnamePattern::parse("shop.test").unwrap();
    let mut file = model();
    let discovered = |weight, owner: &str| {
        discovered(&[
            ("kube:east", "east", with(20, owner, weight)),
            ("kube:west", "west", with(10, "shop", None)),
        ])
    };
    let none = WeightOverrides::new();
    let same = discovered(None, "shop");
    assert_eq!(
        shares(&merge(&file, &same, &none), "shop.test"),
        Some(vec![("east", 0), ("west", 1)])
    );
    let [(by, waits)] = &unserved_claims(&file, &same, &none, &shop)[..] else {
        panic!()
    };
    assert_eq!(
        (by.as_str(), waits.rival.as_deref()),
        ("kube:east in east", Some("Route shop/web"))
    );
    assert!(
        waits.reason.starts_with("it has joined without a weight"),
        "{}",
        waits.reason
    );
    let rival = discovered(Some(50), "thief");
    assert_eq!(
        shares(&merge(&file, &rival, &none), "shop.test"),
        Some(vec![("east", 0), ("west", 1)])
    );
    assert!(
        unserved_claims(&file, &rival, &none, &shop)[0]
            .1
            .reason
            .starts_with("another owner has the name")
    );
    // Weights by an operator, for the name or for the cluster.
    let set = WeightOverrides::from([(
        "shop.test".to_owned(),
        vec![("east".to_owned(), 3), ("west".to_owned(), 0)],
    )]);
    assert_eq!(
        shares(&merge(&file, &rival, &set), "shop.test"),
        Some(vec![("east", 3), ("west", 0)])
    );
    assert_eq!(unserved_claims(&file, &rival, &set, &shop), []);
    file.clusters[0].join = JoinPolicy::Share;
    assert_eq!(
        shares(&merge(&file, &rival, &none), "shop.test"),
        Some(vec![("east", 50), ("west", 1)])
    );
    assert_eq!(unserved_claims(&file, &rival, &none, &shop), []);
}

#[test]
fn two_sources_of_one_cluster_are_not_two_clusters() {
    let shop = HostnamePattern::parse("shop.test").unwrap();
    let twice = discovered(&[
        ("agent:new", "new", learned(&[], &[("shop.test", 1)])),
        ("api:new", "new", learned(&[], &[("shop.test", 1)])),
    ]);
    assert_eq!(
        shares(&merge(&model(), &twice, &WeightOverrides::new()), "shop.test"),
        Some(vec![("new", 1)])
    );
    assert_eq!(unserved_claims(&model(), &twice, &WeightOverrides::new(), &shop), []);
}

#[test]
fn a_cluster_that_does_not_learn_is_what_the_file_says() {
    let mut file = model();
    let discovered = discovered(&[("agent:east", "east", learned(&[host("n1", 1)], &[("shop.test", 10)]))]);
    assert_eq!(
        merge(&file, &discovered, &WeightOverrides::new()).clusters[0]
            .hosts
            .len(),
        3
    );
    file.clusters[0].learn = false;
    let merged = merge(&file, &discovered, &WeightOverrides::new());
    assert_eq!(
        (merged.clusters[0].hosts.len(), shares(&merged, "shop.test")),
        (2, None)
    );
}

#[test]
fn hosts_are_known_by_name_and_the_files_come_first() {
    let twice = discovered(&[
        ("agent:east", "east", learned(&[host("h1", 7), host("n1", 1)], &[])),
        ("kube:east", "east", learned(&[host("n1", 2), host("n2", 3)], &[])),
    ]);
    let file = model();
    let merged = merge(&file, &twice, &WeightOverrides::new());
    let hosts: Vec<_> = merged.clusters[0]
        .hosts
        .iter()
        .map(|h| (h.name.as_str(), h.address))
        .collect();
    let of_file = file.clusters[0].hosts[0].address;
    assert_eq!(hosts[0], ("h1", of_file));
    assert_eq!(hosts[2..], [("n1", [10, 9, 0, 1].into()), ("n2", [10, 9, 0, 3].into())]);
}

#[test]
fn operator_weights_win_while_one_of_their_clusters_exists() {
    let discovered = discovered(&[("kube:west", "west", learned(&[], &[("shop.test", 80)]))]);
    let set = |host: &str, clusters: &[(&str, u32)]| {
        let clusters = clusters
            .iter()
            .map(|&(name, weight)| (name.to_owned(), weight))
            .collect();
        WeightOverrides::from([(host.to_owned(), clusters)])
    };
    let merged = merge(&model(), &discovered, &set("shop.test", &[("east", 3), ("gone", 1)]));
    assert_eq!(shares(&merged, "shop.test"), Some(vec![("east", 3)]));
    let merged = merge(&model(), &discovered, &set("shop.test", &[("gone", 1)]));
    assert_eq!(shares(&merged, "shop.test"), Some(vec![("west", 80)]));
    let merged = merge(&model(), &discovered, &set("app.test", &[("west", 1)]));
    assert_eq!(
        shares(&merged, "app.test"),
        Some(vec![("west", 1)]),
        "also of the file's routes"
    );
}

#[test]
fn tls_ends_where_all_claims_say_and_at_the_host_where_any_does() {
    use Termination::{Edge, Passthrough, Reencrypt};
    let ends = |said: &[Option<Termination>]| {
        let claims: Vec<Claim> = said
            .iter()
            .map(|termination| {
                let learned = learned(&[], &[("a.test", 1)]);
                let mut claim = learned.routes[0].clone();
                claim.termination = *termination;
                claim
            })
            .collect();
        claimed_termination(&claims.iter().enumerate().collect::<Vec<_>>(), &[])
    };
    assert_eq!(ends(&[]), None);
    assert_eq!(ends(&[Some(Reencrypt)]), Some(Reencrypt));
    assert_eq!(ends(&[Some(Reencrypt), Some(Reencrypt)]), Some(Reencrypt));
    assert_eq!(ends(&[Some(Reencrypt), None]), None);
    assert_eq!(ends(&[None, Some(Reencrypt)]), None);
    assert_eq!(ends(&[Some(Reencrypt), Some(Edge)]), None);
    assert_eq!(ends(&[Some(Reencrypt), None, Some(Passthrough)]), Some(Passthrough));
}

#[test]
fn servers_get_plain_http_where_an_edge_route_says_so() {
    let mut clusters = model().clusters;
    let mut learned = (*learned(&[], &[("a.test", 1)])).clone();
    let claim = &mut learned.routes[0];
    claim.termination = Some(Termination::Reencrypt);
    claim.is_edge = true;
    let ends = |clusters: &[Cluster], claim: &Claim| claimed_termination(&[(0, claim)], clusters);
    assert_eq!(ends(&clusters, claim), Some(Termination::Reencrypt), "routers get TLS");
    clusters[0].role = ClusterRole::Servers;
    assert_eq!(ends(&clusters, claim), Some(Termination::Edge));
    claim.is_edge = false;
    assert_eq!(ends(&clusters, claim), Some(Termination::Reencrypt));
}

#[test]
fn each_address_of_a_hostname_is_a_host_as_the_file_says() {
    let mut file = crate::routing::view::tests::model();
    let hostname = crate::wire::hostname::Hostname::parse(b"db.test").unwrap();
    let template = Host {
        tcp: Some(3306),
        ..host("db", 0)
    };
    file.clusters[0].hosts.clear();
    file.clusters[0].named_hosts = vec![crate::model::NamedHost::new(template, hostname.clone())];
    assert_eq!(file.clusters[0].unresolved().count(), 1);
    let v6 = Host {
        address: "fd00::1".parse().unwrap(),
        ..host("y", 0)
    };
    let source = file.clusters[0].dns_source(&hostname);
    let reported = learned(&[host("x", 7), v6], &[]);
    let known = discovered(&[
        (&source, "east", Arc::clone(&reported)),
        // Of other hostnames and clusters, from an earlier configuration.
        ("dns:east/old.test", "east", Arc::clone(&reported)),
        ("dns:west/db.test", "west", reported),
        ("api", "east", learned(&[host("z", 9)], &[])),
    ]);
    let merged = merge(&file, &known, &WeightOverrides::new());
    let names: Vec<_> = merged.clusters[0].hosts.iter().map(|host| host.name.as_str()).collect();
    assert_eq!(names, ["db-10.9.0.7", "db-fd00--1"]);
    assert!(merged.clusters[0].hosts.iter().all(|host| host.tcp == Some(3306)));
    assert_eq!(merged.clusters[1].hosts, file.clusters[1].hosts);
    assert_eq!(merged.clusters[0].unresolved().count(), 0);
}
