//! Mode `address` beside a routing daemon: BIRD announces the addresses of the nodes that are well, with the configuration
//! of docs/high-availability.md.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;

use super::scene::{HaLab, privileged};
use crate::lab::{Ns, Proc, SOON, available, eventually};

const DOCUMENT: &str = include_str!("../../../../docs/high-availability.md");
/// The node that the document's configuration is for, and its router.
const DOCUMENTED: [(&str, &str); 3] = [
    ("10.1.0.11", "10.1.0."),
    ("fd00:1::11", "fd00:1::"),
    ("10.1.0.1 ", "10.1.0.2 "),
];
const VIPS: [&str; 2] = ["10.9.0.101", "fd00:9::101"];

/// A router that divides clients among the nodes.
const ROUTER: &str = "router id 10.1.0.2;
protocol device { scan time 1; }
protocol kernel { ipv4 { import none; export all; }; merge paths on; }
protocol kernel { ipv6 { import none; export all; }; merge paths on; }
template bgp node { local as 65000; hold time 9; ipv4 { import all; export none; }; ipv6 { import all; export none; }; }
protocol bgp node_a from node { neighbor 10.1.0.11 as 65001; }
protocol bgp node_b from node { neighbor 10.1.0.12 as 65001; }
";

/// The document's configuration, for a node whose addresses end so.
fn documented(last: &str) -> String {
    let start = DOCUMENT.find("router id 10.1.0.11;").expect("a configuration of BIRD");
    let text = &DOCUMENT[start..];
    let text = &text[..text.find("```").unwrap()];
    let [(v4, v4_net), (v6, v6_net), (router, ours)] = DOCUMENTED;
    assert!(
        text.contains(v4) && text.contains(v6) && text.contains(router),
        "{text}"
    );
    let text = text.replace(v4, &format!("{v4_net}{last}"));
    text.replace(v6, &format!("{v6_net}{last}")).replace(router, ours)
}

fn start_bird(ns: &Ns, dir: &Path, name: &str, text: &str) -> Proc {
    let file = dir.join(format!("{name}.conf"));
    fs::write(&file, text).unwrap();
    let mut command = ns.command("bird");
    command.arg("-f").arg("-c").arg(&file);
    command.arg("-s").arg(dir.join(format!("{name}.ctl")));
    command.arg("-P").arg(dir.join(format!("{name}.pid")));
    Proc::spawn(name, command, dir)
}

/// Nodes by which the router reaches an address.
fn next_hops(lab: &HaLab, vip: &str) -> Vec<&'static str> {
    let family = if vip.contains(':') { "-6" } else { "-4" };
    let shown = lab.client.must(&["ip", family, "route", "show", vip]);
    let is_next = |(_, v4, v6): &(&str, &str, &str)| shown.contains(v4) || shown.contains(v6);
    let nodes = [
        ("node-a", "via 10.1.0.11 ", "via fd00:1::11 "),
        ("node-b", "via 10.1.0.12 ", "via fd00:1::12 "),
    ];
    nodes.into_iter().filter(is_next).map(|(name, ..)| name).collect()
}

fn wait_next_hops(lab: &HaLab, nodes: &[&str]) {
    for vip in VIPS {
        let is = eventually(2 * SOON, || next_hops(lab, vip) == nodes);
        assert!(
            is,
            "{vip} is reached by {:?}, not by {nodes:?}\n{}",
            next_hops(lab, vip),
            lab.logs()
        );
        lab.wait_served(vip);
    }
}

#[test]
fn routers_reach_the_addresses_by_the_nodes_that_are_well() {
    let test = "routers_reach_the_addresses_by_the_nodes_that_are_well";
    if !privileged(test) || !available(test, &[("bird", "bird2")]) {
        return;
    }
    let mut lab = HaLab::start(&format!(
        "  mode: address\n  vips: [\"{}\", \"{}\"]\n  groups: 1\n",
        VIPS[0], VIPS[1]
    ));
    let _daemons: Vec<_> = ["11", "12"]
        .into_iter()
        .zip(&lab.nodes)
        .map(|(last, node)| start_bird(&node.ns, &node.file(""), "bird", &documented(last)))
        .collect();
    let _router = start_bird(&lab.client, &lab.nodes[0].file(""), "router", ROUTER);
    wait_next_hops(&lab, &["node-a", "node-b"]);
    lab.nodes[0].signalbox.as_mut().unwrap().kill();
    wait_next_hops(&lab, &["node-b"]);
    lab.nodes[0].start_signalbox();
    wait_next_hops(&lab, &["node-a", "node-b"]);
    assert!(lab.nodes[1].ha(&["release", "g1"]).status.success());
    wait_next_hops(&lab, &["node-a"]);
    assert!(lab.nodes[1].ha(&["reclaim"]).status.success());
    wait_next_hops(&lab, &["node-a", "node-b"]);
    let supervisor = lab.nodes[1].supervisor.as_mut().unwrap();
    supervisor.signal(Signal::SIGTERM);
    assert_eq!(supervisor.exit_code(SOON), 0);
    wait_next_hops(&lab, &["node-a"]);
}
