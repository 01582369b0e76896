//! Rules of packet filters beside the kernel peek: those that do nothing to its connections leave them in the kernel,
//! and those that would are obeyed.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use socket2::{Domain, Socket, Type};

use crate::lab;

use lab::topology::OTHER_CLIENTS;
use lab::{Router, SOON, Signalbox, StopOnDrop, available, cut, eventually, http, lab_test};

use super::firewall_truth::load;
use super::left_out::{explain, left_out};
use super::{exits, filter, start_with};

/// Kernel peek as it comes, `auto`.
const AUTO: &str = "# peek: as it comes, which is `auto`";

const KUBE_PROXY: &str = include_str!("../../../../core/src/firewall/rulesets/kube-proxy-iptables.txt");

fn is_routed(lab: &cut::CutLab, sb: &Signalbox) -> bool {
    let before = exits(sb, "routed");
    assert_eq!(http::ask(lab, "10.1.0.1:80", "a.test").status, 200);
    exits(sb, "routed") > before
}

#[test]
fn the_kernel_routes_by_default_unless_a_rule_would_interfere() {
    let Some(lab) = super::lab("the_kernel_routes_by_default_unless_a_rule_would_interfere") else {
        return;
    };
    let _router = Router::start(&lab, "east-1");
    let sb = start_with(&lab, &cut::body(AUTO), 2);
    sb.wait_healthy(&["east-1"]);
    assert!(is_routed(&lab, &sb));
    // Another port's rule first: the kernel routes on.
    filter(&lab.lb, "inet", "hook input", "tcp dport 9 drop");
    assert!(eventually(SOON, || is_routed(&lab, &sb)));
    // Quotas are counted by the kernel's own path alone.
    lab.lb
        .must(&["nft", "add rule inet lost it quota over 100000 mbytes drop"]);
    let reason = ("listener", "packet_filter");
    assert!(
        eventually(SOON, || left_out(&sb, reason) == 2.0),
        "{}",
        sb.get("/metrics").1
    );
    assert!(!is_routed(&lab, &sb));
    let why = explain(&sb, &["a.test"]);
    assert!(
        why.contains("inet lost it handle") && why.contains("(packet_filter)"),
        "{why}"
    );
    let status = String::from_utf8(sb.cli(&["status"]).stdout).unwrap();
    assert!(status.contains("inet lost it handle"), "{status}");
    lab.lb.must(&["nft", "delete table inet lost"]);
    assert!(eventually(SOON, || is_routed(&lab, &sb)));
}

#[test]
fn the_kernel_routes_beside_kube_proxy_until_a_rule_drops() {
    const TEST: &str = "the_kernel_routes_beside_kube_proxy_until_a_rule_drops";
    let Some(lab) = super::lab(TEST) else { return };
    if !available(TEST, &[("iptables-nft", "iptables")]) {
        return;
    }
    load(&lab.lb, KUBE_PROXY).unwrap();
    let _router = Router::start(&lab, "east-1");
    // The rules are there at the start.
    let sb = start_with(&lab, &cut::body(AUTO), 2);
    sb.wait_healthy(&["east-1"]);
    let routes = || eventually(SOON, || is_routed(&lab, &sb));
    assert!(routes(), "{}", explain(&sb, &["a.test"]));
    // Connections that are passed up get through the rules, too, though these see no SYN. Connection tracking may pick
    // up connections that it sees late, or take their packets for invalid.
    let odd = "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n";
    for pick_up in [1, 0] {
        let setting = format!("net.netfilter.nf_conntrack_tcp_loose={pick_up}");
        lab.lb.must(&["sysctl", "-qw", &setting]);
        let before = exits(&sb, "passed_up");
        let answer = http::request(lab.client.connect("10.1.0.1:80"), odd);
        assert_eq!(answer.unwrap().status, 200);
        assert_eq!(exits(&sb, "passed_up"), before + 1, "{}", sb.get("/metrics").1);
    }
    assert!(routes(), "{}", explain(&sb, &["a.test"]));

    let stopped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = || {
            while !stopped.load(Relaxed) {
                let _ = http::request(lab.client.connect("10.1.0.1:443"), "x");
            }
        };
        scope.spawn(load);
        let stop = StopOnDrop(&stopped);
        let begun = std::time::Instant::now();
        let rule = "-I INPUT -p tcp --dport 80 -j REJECT --reject-with tcp-reset";
        let words: Vec<&str> = ["iptables-nft"].into_iter().chain(rule.split(' ')).collect();
        lab.lb.must(&words);
        let is_refused = || {
            let at = "10.1.0.1:80".parse().unwrap();
            lab.client
                .run(|| std::net::TcpStream::connect_timeout(&at, SOON).is_err())
        };
        let is_in_force = eventually(SOON, is_refused);
        println!("the rule was in force after {:?}", begun.elapsed());
        drop(stop);
        assert!(is_in_force, "{}", explain(&sb, &["a.test"]));
    });
    let why = explain(&sb, &["a.test", "--client", "10.1.0.9"]);
    assert!(
        why.contains("ip filter INPUT handle") && why.contains("-j REJECT"),
        "{why}"
    );
}

/// Status that a client gets; `None`: it is refused.
fn status_for(lab: &cut::CutLab, client: &str) -> Option<u16> {
    let connected = lab.client.run(|| -> std::io::Result<TcpStream> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        let (from, at): (SocketAddr, SocketAddr) =
            (format!("{client}:0").parse().unwrap(), "10.1.0.1:80".parse().unwrap());
        socket.bind(&from.into())?;
        socket.connect_timeout(&at.into(), SOON)?;
        Ok(socket.into())
    });
    let answer = http::get(connected.ok()?, "a.test", "/");
    Some(answer.unwrap().status)
}

/// Whether a client is served, and by which path: `Some(true)` by the kernel.
fn path_of(lab: &cut::CutLab, sb: &Signalbox, client: &str) -> Option<bool> {
    let before = exits(sb, "routed");
    let status = status_for(lab, client)?;
    assert_eq!(status, 200);
    Some(exits(sb, "routed") > before)
}

#[lab_test]
fn rules_about_some_clients_cost_only_these_the_kernel() {
    let lab = cut::lab();
    let _router = Router::start(&lab, "east-1");
    let sb = start_with(&lab, &cut::body(AUTO), 2);
    sb.wait_healthy(&["east-1"]);
    let [banned, marked] = OTHER_CLIENTS;
    let paths = || ["10.1.0.2", banned, marked].map(|client| path_of(&lab, &sb, client));
    let becomes = |wanted: [Option<bool>; 3]| {
        let why = || format!("{:?}\n{}", paths(), explain(&sb, &["a.test", "--client", marked]));
        assert!(eventually(SOON, || paths() == wanted), "not {wanted:?}: {}", why());
    };
    let everyone = [Some(true); 3];
    becomes(everyone);
    let nft = |rules: &str| lab.lb.must(&["nft", rules]);
    nft("table inet ban { set banned { type ipv4_addr; flags timeout; }
         chain input { type filter hook input priority 0; ip saddr @banned reject with tcp reset; }; }");
    becomes(everyone);
    nft(&format!("add element inet ban banned {{ {banned} timeout 1h }}"));
    becomes([Some(true), None, Some(true)]);
    // A rule that refuses nobody, and has an effect on some.
    nft(&format!("add rule inet ban input ip saddr {marked} ct mark set 7"));
    becomes([Some(true), None, Some(false)]);
    // While the rules are being read again, which a set with timeouts needs, the answer is that.
    let mut why = String::new();
    let is_told = eventually(SOON, || {
        why = explain(&sb, &["a.test", "--client", banned]);
        why.contains("inet ban input handle") && why.contains("@banned")
    });
    assert!(is_told, "{why}");
    let status = || String::from_utf8(sb.cli(&["status"]).stdout).unwrap();
    let is_told = eventually(SOON, || status().contains("client ranges (packet_filter"));
    assert!(is_told, "{}", status());
    let is_free = eventually(SOON, || {
        why = explain(&sb, &["a.test", "--client", "10.1.0.2"]);
        !why.contains("packet_filter")
    });
    assert!(is_free, "{why}");
    nft("delete table inet ban");
    becomes(everyone);
    // Only some are let in.
    nft(&format!(
        "table inet office {{ chain input {{ type filter hook input priority 0; policy drop;
         ct state established,related accept; iifname \"lo\" accept; ip6 nexthdr icmpv6 accept;
         ip saddr {{ 10.1.0.2, {marked} }} tcp dport 80 accept; ip saddr {banned} reject with tcp reset; }}; }}"
    ));
    becomes([Some(true), None, Some(true)]);
}
