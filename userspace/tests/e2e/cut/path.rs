//! Paths that are not one cable: a narrower link beyond either leg, and VLANs.

use crate::lab;

use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use lab::cut::{self, expect_cut, expect_none};
use lab::impair::netstat;
use lab::tiers::ping;
use lab::{Lab, Ns, SOON, Server, Signalbox, config, eventually, exchange, lab_test, servers};

const MIB: u64 = 1 << 20;
/// Bytes of a segment with timestamps that fits the narrow way.
const NARROW_SEGMENT: u32 = 1300 - 40 - 12;

/// A namespace beyond another one, to which the path is narrower than either end can see: `10.N.0.2` and `fd00:N::2`.
struct Behind {
    ns: Ns,
    hop: Ns,
}

impl Behind {
    fn new(lab: &Lab, hop: &Ns, net: u8, via: (&str, &str)) -> Self {
        let ns = Ns::create(&format!("{}{net}", hop.name()));
        let ends = |end| [format!("10.{net}.0.{end}/24"), format!("fd00:{net}::{end}/64")];
        hop.cable("far", &ends(1), &ns, &ends(2)).unwrap();
        let on = |ns: &Ns, first: &str, second: &str| ns.ip(&format!("route {first}\nroute {second}")).unwrap();
        on(
            &ns,
            &format!("add default via 10.{net}.0.1"),
            &format!("add default via fd00:{net}::1"),
        );
        hop.sysctl(&["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"])
            .unwrap();
        // The smaller MTU is at no interface of either end: only ICMP from this hop reports it.
        on(
            hop,
            &format!("replace 10.{net}.0.2 dev far mtu lock 1300"),
            &format!("replace fd00:{net}::2 dev far mtu lock 1300"),
        );
        on(
            &lab.lb,
            &format!("add 10.{net}.0.0/24 via {}", via.0),
            &format!("add fd00:{net}::/64 via {}", via.1),
        );
        Self { ns, hop: hop.clone() }
    }

    /// Packets that were too large for the narrow way, IPv4 and IPv6.
    fn refused(&self) -> [u64; 2] {
        let v6 = self.hop.must(&["cat", "/proc/net/snmp6"]);
        let v6 = v6.lines().find_map(|line| line.strip_prefix("Icmp6OutPktTooBigs"));
        [
            netstat(&self.hop, "Ip", "FragFails"),
            v6.unwrap().trim().parse().unwrap(),
        ]
    }
}

#[lab_test]
fn a_smaller_mtu_on_either_leg_is_reported_to_the_other_end() {
    let lab = cut::lab();
    let far = Behind::new(&lab, &lab.client, 4, ("10.1.0.2", "fd00:1::2"));
    let deep = Behind::new(&lab, lab.host("east-1"), 5, ("10.2.0.2", "fd00:2::2"));
    lab.lb.must(&["sysctl", "-qw", "net.ipv4.ip_forward=1"]);
    let mut _servers: Vec<Server> = Vec::new();
    for ns in [lab.host("east-1"), &deep.ns] {
        _servers.push(exchange::server(ns, cut::BACKEND));
        _servers.push(servers::healthy(ns));
    }
    let hosts = [("10.2.0.2", "fd00:2::2"), ("10.5.0.2", "fd00:5::2")];
    let mut clusters = String::new();
    let mut listeners = String::new();
    for (i, (v4, v6)) in hosts.into_iter().enumerate() {
        for (family, address, vip) in [(4, v4, "10.1.0.1"), (6, v6, "[fd00:1::1]")] {
            let host = format!("{{ name: h{i}{family}, address: \"{address}\", tcp: 3306 }}");
            clusters += &config::cluster_of(&format!("c{i}{family}"), &cut::PATIENT, &[host]);
            listeners += &format!(
                "  - {{ name: l{i}{family}, protocol: tcp, listen: [\"{vip}:330{i}\"], cluster: c{i}{family} }}\n"
            );
        }
    }
    let sb = Signalbox::start(&lab, &format!("listeners:\n{listeners}clusters:\n{clusters}"));
    sb.wait_healthy(&["h04", "h06", "h14", "h16"]);
    let (near, far_away) = ((&lab.client, "near"), (&far.ns, "far"));
    // Once checks have seen that hosts take less, that is announced to all clients: the narrow path to clients comes
    // first.
    let ways = [
        (far_away, 3300, "near"),
        (near, 3300, "near"),
        (near, 3301, "deep"),
        (far_away, 3301, "deep"),
    ];
    for ((client, from), port, host) in ways {
        for (n, vip) in ["10.1.0.1", "[fd00:1::1]"].into_iter().enumerate() {
            let case = format!("from {from} to {host}, {vip}");
            let before = (far.refused()[n], deep.refused()[n]);
            let is_told = {
                let stream = client.connect(&format!("{vip}:{port}"));
                signalbox::sys::tcp_info(stream.as_raw_fd()).unwrap().send_mss <= NARROW_SEGMENT
            };
            let start = Instant::now();
            for seed in 0..3 {
                let stream = client.connect(&format!("{vip}:{port}"));
                exchange::client(&stream, seed, 4 * MIB, 4 * MIB).unwrap_or_else(|e| panic!("{case}: {e}"));
            }
            // A connection kept open, for its tier.
            let stream = client.connect(&format!("{vip}:{port}"));
            // A host that has learned of a narrow path to one client sends smaller segments to all, because the
            // balancer's address is the same. Its flows are not cut while it remembers.
            let mut shown = serde_json::Value::Null;
            eventually(SOON, || {
                shown = cut::shown(&sb, stream.local_addr().unwrap());
                !shown.is_null()
            });
            if shown["not_cut"] != "segment_size_differs" {
                expect_cut(&sb, &stream);
            }
            exchange::client(&stream, 9, MIB, MIB).unwrap_or_else(|e| panic!("{case}: {e}"));
            let took = start.elapsed();
            let after = (far.refused()[n], deep.refused()[n]);
            println!("{case}: {took:?}, refused {before:?} -> {after:?}");
            assert!(took < Duration::from_secs(15), "{case}: {took:?}");
            // A sender that has been informed remembers it for ten minutes, so on each path only the first is sure to
            // be refused.
            if (from, host) == ("far", "near") {
                assert!(is_told || after.0 > before.0, "{case}: the narrow way was never met");
            }
            if (from, host) == ("near", "deep") {
                assert!(is_told || after.1 > before.1, "{case}: the narrow way was never met");
            }
        }
    }
    expect_none(&sb);
}

#[lab_test]
fn legs_on_vlans() {
    let lab = cut::lab();
    let vlan = |ns: &Ns, on: &str, id: u8, end: u8| {
        let name = format!("v{id}");
        let words = [
            "ip",
            "link",
            "add",
            "link",
            on,
            "name",
            &name,
            "type",
            "vlan",
            "id",
            &id.to_string(),
        ];
        let added = ns.output(&words).status.success();
        if added {
            ns.must(&["ip", "addr", "add", &format!("10.{id}.0.{end}/24"), "dev", &name]);
            ns.must(&[
                "ip",
                "addr",
                "add",
                &format!("fd00:{id}::{end}/64"),
                "dev",
                &name,
                "nodad",
            ]);
            ns.must(&["ip", "link", "set", &name, "up"]);
        }
        added
    };
    if !vlan(&lab.client, "eth0", 7, 2) {
        println!("SKIP legs_on_vlans: this kernel has no VLANs (CONFIG_VLAN_8021Q)");
        return;
    }
    assert!(vlan(&lab.lb, "client", 7, 1) && vlan(lab.host("east-1"), "eth0", 8, 2) && vlan(&lab.lb, "back", 8, 1));
    let _server = exchange::server(lab.host("east-1"), cut::BACKEND);
    let _health = servers::healthy(lab.host("east-1"));
    let plain = config::cluster_of("plain", &cut::PATIENT, &[config::host("east-1")]);
    let tagged = ["{ name: tagged, address: \"10.8.0.2\", tcp: 3306 }".to_owned()];
    let tagged = config::cluster_of("tagged", &cut::PATIENT, &tagged);
    let mut listeners = String::new();
    let ways = [("10.1.0.1", "tagged"), ("10.7.0.1", "plain"), ("10.7.0.1", "tagged")];
    for (n, (vip, cluster)) in ways.into_iter().enumerate() {
        listeners += &format!("  - {{ name: l{n}, protocol: tcp, listen: [\"{vip}:330{n}\"], cluster: {cluster} }}\n");
    }
    let sb = Signalbox::start(&lab, &format!("listeners:\n{listeners}clusters:\n{plain}{tagged}"));
    sb.wait_healthy(&["east-1", "tagged"]);
    for (n, (vip, cluster)) in ways.into_iter().enumerate() {
        for seed in 0..20 {
            let stream = lab.client.connect(&format!("{vip}:330{n}"));
            if seed == 0 {
                expect_cut(&sb, &stream);
            }
            exchange::client(&stream, seed, MIB, MIB).unwrap_or_else(|e| panic!("{vip} to {cluster}: {e}"));
        }
    }
    expect_none(&sb);
}

#[lab_test]
fn a_cable_pulled_out_and_put_back_costs_nothing_but_time() {
    let lab = cut::lab();
    let hosts = cut::Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, "");
    let (client, host) = cut::doors()[2].enter_cut(&lab, &sb, &hosts);
    for _ in 0..2 {
        lab.set_link("east-1", false);
        std::thread::scope(|scope| {
            scope.spawn(|| ping(&client, &host));
            std::thread::sleep(Duration::from_secs(2));
            lab.set_link("east-1", true);
        });
        ping(&host, &client);
    }
    cut::finish(&client, &host);
    expect_none(&sb);
}
