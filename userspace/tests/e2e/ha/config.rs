//! Changes of the configuration, and the firewall.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::scene::{HaLab, VIP6, VIPS, privileged};
use crate::lab::{SOON, eventually, lab_test};

#[lab_test(privileged)]
fn a_changed_ha_config_is_applied_and_a_wrong_one_ignored() {
    let lab = HaLab::start("  groups: [{ name: g1, vips: 10.1.0.101, prefer: node-a }]\n");
    lab.wait_owner(VIPS[0], 0);
    for node in &lab.nodes {
        node.write("  groups: [{ name: g1, vips: 10.1.0.101, prefer: nobody }]\n");
    }
    let log = || lab.nodes[0].supervisor.as_ref().unwrap().log();
    assert!(
        eventually(SOON, || log().contains("`nobody` is not one of the `nodes`")),
        "{}",
        log()
    );
    // An interface that does not exist: the file is valid, but keepalived refuses it.
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

/// A change of the groups reaches one node before the other. Until the second has it no address has two owners, and
/// each address that both files have has one.
#[lab_test(privileged)]
fn addresses_have_one_owner_while_nodes_have_different_groups() {
    let group = |name: &str, vips: &str| format!("{{ name: {name}, vips: [{vips}], prefer: node-a }}");
    let list = |groups: &[String]| format!("  groups: [{}]\n", groups.join(", "));
    let (short, long) = (
        "10.1.0.101, \"fd00:1::101\"",
        "10.1.0.101, 10.1.0.103, \"fd00:1::101\", \"fd00:1::103\"",
    );
    let before = list(&[group("g5", short), group("g6", "10.1.0.102")]);
    let after = list(&[group("g7", "10.1.0.104"), group("g6", "10.1.0.102"), group("g5", long)]);
    let lab = HaLab::start(&before);
    let kept = [VIPS[0], VIP6, VIPS[1]];
    kept.iter().for_each(|address| lab.wait_owner(address, 0));
    // The owner's file first, and then the other node's; and back the other way round.
    for (step, (node, lines)) in (1..).zip([(0, &after), (1, &after), (1, &before), (0, &before)]) {
        lab.nodes[node].write(lines);
        let file = lab.nodes[node].file("run").join("keepalived.conf");
        let has_long = || std::fs::read_to_string(&file).is_ok_and(|text| text.contains("10.1.0.103"));
        let is_taken = eventually(SOON, || has_long() == (lines == &after));
        assert!(is_taken, "step {step}\n{}", lab.logs());
        // Longer than a node waits for adverts that do not come.
        for _ in 0..20 {
            for address in kept {
                assert!(lab.nodes[0].has(address), "step {step}: {address}\n{}", lab.logs());
            }
            for address in kept.into_iter().chain(["10.1.0.103", "fd00:1::103", "10.1.0.104"]) {
                let both = lab.nodes.iter().all(|node| node.has(address));
                assert!(!both, "step {step}: {address} is at both nodes\n{}", lab.logs());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[lab_test(privileged)]
fn a_group_that_is_not_configured_any_more_is_nobody_s() {
    let mut lab = HaLab::new();
    let node = &mut lab.nodes[0];
    node.write("  mode: external\n  vips: 10.1.0.101-102\n");
    node.start_signalbox();
    assert!(eventually(SOON, || node.status()["mode"] == "external"));
    let put = |group: &str| {
        node.ask("PUT", &format!("/api/v1/ha/groups/{group}"), r#"{ "state": "master" }"#)
            .status
    };
    assert_eq!((put("g1"), put("g2")), (200, 200));
    node.write("  mode: external\n  vips: 10.1.0.101\n");
    let names = || node.status()["groups"].as_array().map_or(0, Vec::len);
    assert!(eventually(SOON, || names() == 1));
    // The same group again counts as one that has not been reported yet.
    node.write("  mode: external\n  vips: 10.1.0.101-102\n");
    assert!(eventually(SOON, || names() == 2));
    assert!(
        node.state("g2").is_null() && node.state("g1") == "master",
        "{}",
        node.status()
    );
}

#[lab_test(privileged)]
fn openshift_s_variables_become_a_section_that_is_put_in_force() {
    let mut lab = HaLab::new();
    for (at, node) in lab.nodes.iter_mut().enumerate() {
        node.write_without_section();
        let variables = [
            ("OPENSHIFT_HA_CONFIG_NAME", "router-west"),
            ("OPENSHIFT_HA_VIRTUAL_IPS", "10.1.0.101-102"),
            ("OPENSHIFT_HA_VIP_GROUPS", "1"),
            ("OPENSHIFT_HA_NETWORK_INTERFACE", "front"),
            ("OPENSHIFT_HA_MONITOR_PORT", "0"),
            ("OPENSHIFT_HA_USE_UNICAST", "true"),
            ("OPENSHIFT_HA_UNICAST_PEERS", ["10.1.0.12", "10.1.0.11"][at]),
            ("OPENSHIFT_HA_VRRP_ID_OFFSET", "10"),
            ("HA_EXCLUDED_VRRP_IDS", "11"),
        ];
        let mut command = node.ns.command(crate::lab::signalbox::binary());
        let words = ["ha-config", "--from-env", "--create", "--into"];
        let made = command.args(words).arg(node.config()).envs(variables).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        node.start_signalbox();
        node.start_supervisor();
    }
    let priority = |node: usize| {
        let text = std::fs::read_to_string(lab.nodes[node].file("run").join("keepalived.conf"));
        text.is_ok_and(|text| text.contains("priority 250\n"))
    };
    let mut owner = None;
    assert!(eventually(SOON, || {
        owner = [0, 1].into_iter().find(|node| priority(*node));
        owner.is_some()
    }));
    let owner = owner.unwrap();
    VIPS.iter().for_each(|vip| lab.wait_owner(vip, owner));
    lab.wait_served(VIPS[1]);
    let text = std::fs::read_to_string(lab.nodes[owner].file("run").join("keepalived.conf")).unwrap();
    assert!(text.contains("virtual_router_id 12\n"), "{text}");
    lab.nodes[1 - owner].wait_state("g1", "backup");
    let mut command = lab.nodes[0].ns.command(crate::lab::signalbox::binary());
    let shown = command
        .args(["ha-config", "-o", "json", "--into"])
        .arg(lab.nodes[0].config())
        .output()
        .unwrap();
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["ha"]["name"], "router-west");
}

#[lab_test(privileged)]
fn the_firewall_lets_vrrp_in_while_the_supervisor_runs() {
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

#[lab_test(privileged)]
fn unicast_needs_no_multicast() {
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
