//! Changes of the configuration, and the firewall.

use nix::sys::signal::Signal;

use super::scene::{HaLab, VIPS, privileged};
use crate::lab::{SOON, eventually};

#[test]
fn a_changed_configuration_is_taken_and_a_wrong_one_changes_nothing() {
    if !privileged("a_changed_configuration_is_taken_and_a_wrong_one_changes_nothing") {
        return;
    }
    let lab = HaLab::start("  groups: [{ name: g1, vips: 10.1.0.101, prefer: node-a }]\n");
    lab.wait_owner(VIPS[0], 0);
    for node in &lab.nodes {
        node.write("  groups: [{ name: g1, vips: 10.1.0.101, prefer: nobody }]\n");
    }
    let log = || lab.nodes[0].supervisor.as_ref().unwrap().log();
    assert!(
        eventually(SOON, || log().contains("`nobody` is none of the `nodes`")),
        "{}",
        log()
    );
    // An interface that is not there: the file is right, but keepalived does not take it.
    for node in &lab.nodes {
        node.write("  groups: [{ name: g1, vips: 10.1.0.101, sources: [10.2.0.101@nowhere], prefer: node-a }]\n");
    }
    assert!(
        eventually(SOON, || log().contains("keepalived does not take its configuration")),
        "{}",
        log()
    );
    lab.wait_owner(VIPS[0], 0);
    lab.wait_served(VIPS[0]);
    let pids = lab.nodes[0].keepalived();
    for node in &lab.nodes {
        node.write("  groups: [{ name: g1, vips: 10.1.0.101, prefer: node-b }, { name: g2, vips: 10.1.0.102, prefer: node-a }]\n");
    }
    lab.wait_owner(VIPS[0], 1);
    lab.wait_owner(VIPS[1], 0);
    assert_eq!(lab.nodes[0].keepalived(), pids, "keepalived reads it anew and goes on");
    // And a group less.
    for node in &lab.nodes {
        node.write("  groups: [{ name: g1, vips: 10.1.0.101, prefer: node-b }]\n");
    }
    assert!(
        eventually(SOON, || !lab.nodes[0].has(VIPS[1]) && !lab.nodes[1].has(VIPS[1])),
        "{}",
        lab.logs()
    );
    assert!(lab.nodes[1].has(VIPS[0]));
}

#[test]
fn the_firewall_lets_vrrp_in_while_the_supervisor_runs() {
    if !privileged("the_firewall_lets_vrrp_in_while_the_supervisor_runs") {
        return;
    }
    let mut lab = HaLab::new();
    for node in &mut lab.nodes {
        node.write("  groups: [{ name: g1, vips: 10.1.0.101, prefer: node-a }]\n  firewall: accept\n");
        let rules = "table inet guard { chain input { type filter hook input priority 0; policy drop;\n\
                     ct state established,related accept; tcp dport 80 accept; meta l4proto icmpv6 accept; iif lo accept; }; }";
        node.ns.try_must(&["nft", "-f", "-"], rules).unwrap();
        node.start_signalbox();
        node.start_supervisor();
    }
    // Without the rule both would have it.
    lab.wait_owner(VIPS[0], 0);
    lab.wait_served(VIPS[0]);
    lab.nodes[1].wait_state("g1", "backup");
    let rules = |lab: &HaLab| lab.nodes[1].ns.must(&["nft", "list", "ruleset"]);
    assert!(rules(&lab).contains("signalbox-ha"), "{}", rules(&lab));
    let supervisor = lab.nodes[1].supervisor.as_mut().unwrap();
    supervisor.signal(Signal::SIGTERM);
    assert_eq!(supervisor.exit_code(SOON), 0);
    assert!(
        !rules(&lab).contains("signalbox-ha") && rules(&lab).contains("tcp dport 80"),
        "{}",
        rules(&lab)
    );
}

#[test]
fn unicast_needs_no_multicast() {
    if !privileged("unicast_needs_no_multicast") {
        return;
    }
    let mut lab = HaLab::new();
    for node in &mut lab.nodes {
        node.write("  groups: [{ name: g1, vips: [10.1.0.101, \"fd00:1::101\"], prefer: node-b }]\n  vrrp: { unicast: true, version: 2 }\n");
        let rules =
            "table inet guard { chain input { type filter hook input priority 0; ip daddr 224.0.0.18 drop; }; }";
        node.ns.try_must(&["nft", "-f", "-"], rules).unwrap();
        node.start_signalbox();
        node.start_supervisor();
    }
    lab.wait_owner(VIPS[0], 1);
    lab.nodes[0].wait_state("g1", "backup");
    lab.wait_owner("fd00:1::101", 1);
    lab.nodes[1].signalbox.as_mut().unwrap().kill();
    lab.wait_owner(VIPS[0], 0);
    lab.wait_served("fd00:1::101");
}
