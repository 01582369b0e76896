use super::*;
use crate::model::Route;
use crate::wire::peek::proxy::ProxyTlvs;

fn route(host: &str, clusters: &[(usize, u32)]) -> Route {
    Route {
        hostname: HostnamePattern::parse(host).unwrap(),
        clusters: clusters.to_vec(),
        drain: None,
        prefer: Vec::new(),
        labels: crate::model::labels::Labels::new(),
        tls: None,
        claimed_termination: None,
        claimed: None,
        allow: None,
        connections: None,
        paths: Vec::new(),
        requests: Default::default(),
        depth: crate::wire::hostname::WildcardDepth::default(),
    }
}

/// Model with three clusters: east with two hosts, an application with one host, and an application without any.
fn model() -> Model {
    let mut model = crate::routing::view::tests::model();
    model.clusters[0].hosts[1].weight = 3;
    model.clusters[1].name = "shop/web".into();
    model.clusters[1].proxy_protocol = Some(ProxyTlvs::DEFAULT);
    model.clusters[1].balance = Balance::Maglev;
    model.clusters.push(Cluster::discovered("bank/new"));
    model.routes = vec![
        route("app.test", &[(0, 1)]),
        route("both.test", &[(0, 10), (1, 80)]),
        route("*.test", &[(1, 1), (0, 0)]),
        route("*.deep.test", &[(0, 1)]),
        route("new.test", &[(2, 1)]),
        route("closed.test", &[(0, 1)]),
        route("default", &[(0, 1)]),
    ];
    model
}

fn text(format: Format, protocol: Protocol) -> String {
    let model = model();
    let is_out = |_: &str, host: &str, _: IpAddr| host == "h2";
    let is_closed = |route: &Route| route.hostname.to_string() == "closed.test";
    ExportTable::new(&model, protocol, &is_out, &is_closed).render(format)
}

#[test]
fn haproxys_maps_and_backends() {
    assert_eq!(
        text(Format::HaproxyMap, Protocol::Http),
        "app.test east\nboth.test east:10:shop:web:80\ndefault east\nnew.test bank:new\n"
    );
    assert_eq!(
        text(Format::HaproxyWildcards, Protocol::Http),
        ".deep.test east\n.test shop:web\n",
        "the longest first; what has weight 0 gets nothing"
    );
    assert_eq!(
        text(Format::HaproxyMap, Protocol::Tls),
        "app.test east::tls\nboth.test east:10:shop:web:80::tls\ndefault east::tls\nnew.test bank:new::tls\n"
    );
    // Shares are one ninth and eight ninths: the hosts of east divide theirs by 1 and 3.
    assert_eq!(
        text(Format::HaproxyBackends, Protocol::Tls),
        "backend bank:new::tls\n  mode tcp\n  balance leastconn\n\
         backend east:10:shop:web:80::tls\n  mode tcp\n  balance roundrobin\n  server east:h1 10.0.0.1:443 weight 8 check\n  \
         server east:h2 10.0.0.2:443 weight 24 check disabled\n  \
         server shop:web:h3 10.0.0.3:443 weight 256 check send-proxy-v2\n\
         backend east::tls\n  mode tcp\n  balance leastconn\n  server east:h1 10.0.0.1:443 weight 1 check\n  \
         server east:h2 10.0.0.2:443 weight 3 check disabled\n\
         backend shop:web::tls\n  mode tcp\n  balance source\n  hash-type consistent\n  \
         server shop:web:h3 10.0.0.3:443 weight 1 check send-proxy-v2\n"
    );
}

#[test]
fn nginxs_map_and_upstreams() {
    assert_eq!(
        text(Format::NginxMap, Protocol::Http),
        "split_clients \"$remote_addr $remote_port $msec\" $signalbox_split_1 {\n  11.11% east;\n  * shop+web;\n}\n\
         map $host $signalbox_cluster {\n  hostnames;\n  default \"\";\n  *.deep.test east;\n  *.test shop+web;\n  \
         app.test east;\n  both.test $signalbox_split_1;\n  \\default east;\n  new.test bank+new;\n}\n\
         upstream east {\n  least_conn;\n  server 10.0.0.1:80 weight=1;\n  server 10.0.0.2:80 weight=3 down;\n}\n\
         upstream shop+web {\n  hash $remote_addr consistent;\n  server 10.0.0.3:80 weight=1;\n}\n\
         upstream bank+new {\n  least_conn;\n  server 127.0.0.1:9 down; # no host\n}\n"
    );
    let tls = text(Format::NginxMap, Protocol::Tls);
    assert!(
        tls.contains("map $ssl_preread_server_name ") && tls.contains("10.0.0.1:443"),
        "{tls}"
    );
}

#[test]
fn long_names_get_room() {
    let mut model = model();
    model
        .routes
        .push(route(&format!("{}.example.test", "a".repeat(60)), &[(0, 1)]));
    let table = ExportTable::new(&model, Protocol::Http, &|_, _, _| false, &|_| false);
    assert!(table.render(Format::NginxMap).contains("map_hash_bucket_size 128;"));
}
