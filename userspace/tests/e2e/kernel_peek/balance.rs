//! Hosts that are chosen by the client's address, and at random.

use crate::lab;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use lab::cut::CutLab;
use lab::{Router, SOON, Signalbox, config, eventually, http};

use super::{PEEK, exits, start_with};

const HOSTS: [&str; 3] = ["east-1", "east-2", "east-3"];

fn body(datapath: &str, balance: &str, weights: [u32; 3]) -> String {
    let hosts: Vec<_> = (HOSTS.iter().zip(weights))
        .map(|(host, weight)| config::host_with(host, &format!("weight: {weight}")))
        .collect();
    let east = config::cluster_of("east", &[balance], &hosts);
    format!(
        "{datapath}\n{}clusters:\n{east}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n",
        config::WEB_LISTENERS
    )
}

/// Starts signalbox in front of three hosts, and waits until it knows that all are up.
fn start(lab: &CutLab, balance: &str, weights: [u32; 3]) -> (Vec<Router>, Signalbox) {
    let routers = Router::start_all(lab, &HOSTS);
    let sb = start_with(lab, &body(PEEK, balance, weights), 2);
    let settled = || HOSTS.iter().all(|host| sb.host(host)["health"] == "healthy");
    assert!(eventually(SOON, settled));
    std::thread::sleep(std::time::Duration::from_millis(200));
    (routers, sb)
}

/// A connection that has got an answer. `None`: it waits.
fn keep_open(lab: &CutLab, name: &str) -> Option<TcpStream> {
    let mut stream = lab.client.connect("10.1.0.1:80");
    let limit = Duration::from_millis(300) * signalbox_lab::patience();
    stream.set_read_timeout(Some(limit)).unwrap();
    write!(stream, "GET / HTTP/1.1\r\nHost: {name}\r\n\r\n").unwrap();
    stream.read_exact(&mut [0; 12]).ok()?;
    Some(stream)
}

/// Addresses of the client's.
fn clients(lab: &CutLab) -> Vec<String> {
    let clients: Vec<_> = (40..64).map(|n| format!("10.1.0.{n}")).collect();
    for client in &clients {
        lab.client.ip(&format!("addr add {client}/24 dev eth0")).unwrap();
    }
    clients
}

fn host_of(lab: &CutLab, client: &str, url: &str) -> String {
    let answer = http::curl(lab, "10.1.0.1", &["-k", "--interface", client, url]);
    http::field(&answer.body, "host")
}

#[test]
fn maglev_gives_a_client_the_host_that_userspace_gives_it() {
    let Some(lab) = super::lab("maglev_gives_a_client_the_host_that_userspace_gives_it") else {
        return;
    };
    let (_routers, sb) = start(&lab, "balance: maglev", [1, 1, 2]);
    let clients = clients(&lab);
    let hosts_of = |url: &str| -> Vec<_> { clients.iter().map(|client| host_of(&lab, client, url)).collect() };
    let before = exits(&sb, "routed");
    let in_kernel = hosts_of("http://a.test/");
    assert_eq!(exits(&sb, "routed"), before + clients.len() as u64);
    assert_eq!(
        hosts_of("https://a.test/"),
        in_kernel,
        "the ports are others, the hosts are not"
    );
    assert_eq!(exits(&sb, "routed"), before + 2 * clients.len() as u64);
    assert!(
        HOSTS.iter().all(|host| in_kernel.contains(&(*host).to_owned())),
        "{in_kernel:?}"
    );
    sb.reload(&body("datapath: { peek: userspace }", "balance: maglev", [1, 1, 2]));
    assert!(eventually(SOON, || sb.metric("signalbox_kernel_peek_routes") == 0.0));
    let routed = exits(&sb, "routed");
    assert_eq!(hosts_of("http://a.test/"), in_kernel);
    assert_eq!(exits(&sb, "routed"), routed);
}

#[test]
fn of_two_random_hosts_the_one_with_fewer_connections_is_taken() {
    let Some(lab) = super::lab("of_two_random_hosts_the_one_with_fewer_connections_is_taken") else {
        return;
    };
    let (_routers, sb) = start(&lab, "balance: random-two", [1, 1, 2]);
    let before = exits(&sb, "routed");
    let mut open = Vec::new();
    for _ in 0..80 {
        let stream = lab.client.connect("10.1.0.1:80");
        let host = http::get(&stream, "a.test", "/").unwrap().field("host");
        open.push((stream, host));
    }
    assert_eq!(exits(&sb, "routed"), before + 80);
    let of = |name: &str| open.iter().filter(|(_, host)| host == name).count();
    let found = HOSTS.map(of);
    // 20, 20 and 40 by their weights: chance alone would be further off once in some thousand times.
    let are_near = found
        .iter()
        .zip([20usize, 20, 40])
        .all(|(found, share)| found.abs_diff(share) <= 8);
    assert!(are_near, "{found:?}");
}

/// Settings of a Route in front of servers, which this balancer obeys in place of a router.
#[test]
fn a_routes_balancing_and_its_limit_of_a_server_are_kept() {
    let Some(lab) = super::lab("a_routes_balancing_and_its_limit_of_a_server_are_kept") else {
        return;
    };
    let _routers = Router::start_all(&lab, &HOSTS);
    let hosts: Vec<_> = HOSTS.iter().map(|host| config::host_with(host, "weight: 1")).collect();
    let keys = ["balance: round-robin", "role: servers", "learn: true"];
    let east = config::cluster_of("east", &keys, &hosts);
    let body = format!("{PEEK}\n{}clusters:\n{east}", config::WEB_LISTENERS);
    let sb = Signalbox::start(&lab, &body);
    let settled = || HOSTS.iter().all(|host| sb.host(host)["health"] == "healthy");
    assert!(eventually(SOON, settled));
    let claim = |name: &str, settings: &str| {
        format!(
            r#"{{ "host": "{name}", "weight": 1, "origin": "Route shop/{name}", "settings": [{{ "origin": "Route shop/{name}" {settings} }}] }}"#
        )
    };
    let claims = [
        claim("plain.test", ""),
        claim("source.test", r#", "balance": "maglev""#),
        claim("few.test", r#", "server_connections": 5"#),
    ];
    let claims = format!(r#"{{ "routes": [{}] }}"#, claims.join(","));
    let answer = sb.unix("PUT", "/api/v1/clusters/east/learned", &claims);
    assert_eq!(answer.status, 200, "{}", answer.body);
    super::expect_routes(&sb, 6);
    let clients = clients(&lab);
    let ask = |name: &str| -> Vec<_> {
        let url = format!("http://{name}/");
        clients.iter().map(|client| host_of(&lab, client, &url)).collect()
    };
    let routed = |name: &str| {
        let before = exits(&sb, "routed");
        let hosts = ask(name);
        (hosts, exits(&sb, "routed") - before)
    };
    let all = clients.len() as u64;
    // The cluster's own balancing beside the route's.
    let (plain, in_kernel) = routed("plain.test");
    assert_eq!(in_kernel, all);
    for host in HOSTS {
        assert_eq!(
            plain.iter().filter(|chosen| *chosen == host).count() as u64,
            all / 3,
            "{plain:?}"
        );
    }
    let (first, in_kernel) = routed("source.test");
    assert_eq!(in_kernel, all);
    assert_eq!(
        routed("source.test"),
        (first.clone(), all),
        "a client stays with its host"
    );
    assert!(
        HOSTS.iter().all(|host| first.contains(&(*host).to_owned())),
        "{first:?}"
    );
    // A route's limit of a server's connections is kept in the kernel.
    let held: Vec<_> = (0..3 * 5)
        .map(|_| keep_open(&lab, "few.test").expect("room for it"))
        .collect();
    assert!(keep_open(&lab, "few.test").is_none(), "no host has room");
    drop(held);
    let current = || sb.metric("signalbox_connections_current");
    assert!(eventually(SOON, || current() == 0.0), "{} connections", current());
    assert_eq!(routed("few.test").1, all);
}
