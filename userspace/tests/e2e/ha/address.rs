//! Modes without keepalived.

use nix::sys::signal::Signal;

use super::scene::{HaLab, SOURCE, VIP6, VIPS, privileged};
use crate::lab::{SOON, eventually, lab_test};

#[lab_test(privileged)]
fn every_ready_node_has_the_addresses_on_its_loopback_interface() {
    let group = format!(
        "{{ name: g1, vips: [{}, \"{VIP6}\"], sources: [\"{SOURCE}/24\"] }}",
        VIPS[0]
    );
    let mut lab = HaLab::start(&format!(
        "  mode: address\n  groups: [{group}, {{ name: g2, vips: {} }}]\n",
        VIPS[1]
    ));
    let has_all = |lab: &HaLab, node: usize| {
        [VIPS[0], VIP6, SOURCE, VIPS[1]]
            .iter()
            .all(|ip| lab.nodes[node].has(ip))
    };
    assert!(
        eventually(SOON, || has_all(&lab, 0) && has_all(&lab, 1)),
        "{}",
        lab.logs()
    );
    let on_loopback = lab.nodes[0]
        .ns
        .must(&["ip", "-oneline", "address", "show", "dev", "lo"]);
    // The whole network of the source would be this machine's own.
    assert!(on_loopback.contains(&format!("{SOURCE}/32")), "{on_loopback}");
    lab.nodes[0].wait_state("g1", "master");
    let metrics = lab.nodes[0].ask("GET", "/metrics", "").body;
    let is_info = |line: &&str| line.starts_with("signalbox_ha_info{") && line.contains("mode=\"address\"");
    assert!(metrics.lines().any(|line| is_info(&line)), "{metrics}");

    assert!(lab.nodes[0].ha(&["release", "g1"]).status.success());
    assert!(
        eventually(SOON, || !lab.nodes[0].has(VIPS[0]) && !lab.nodes[0].has(SOURCE)),
        "{}",
        lab.logs()
    );
    assert!(lab.nodes[0].has(VIPS[1]));
    assert!(lab.nodes[0].ha(&["reclaim"]).status.success());
    assert!(eventually(SOON, || has_all(&lab, 0)), "{}", lab.logs());

    lab.nodes[0].signalbox.as_mut().unwrap().kill();
    assert!(
        eventually(SOON, || !lab.nodes[0].has(VIPS[0]) && !lab.nodes[0].has(VIPS[1])),
        "{}",
        lab.logs()
    );
    assert!(has_all(&lab, 1));
    let supervisor = lab.nodes[1].supervisor.as_mut().unwrap();
    supervisor.signal(Signal::SIGTERM);
    assert_eq!(supervisor.exit_code(SOON), 0);
    assert!(!lab.nodes[1].has(VIPS[0]));
}

#[lab_test(privileged)]
fn in_mode_external_a_program_says_by_the_api_who_has_a_group() {
    let mut lab = HaLab::new();
    lab.nodes[0].write("  mode: external\n  vips: 10.1.0.101\n");
    lab.nodes[0].start_signalbox();
    let node = &lab.nodes[0];
    assert!(eventually(SOON, || node.status()["mode"] == "external"));
    assert!(node.state("g1").is_null(), "nobody has said anything");
    let put = |group: &str, body: &str| node.ask("PUT", &format!("/api/v1/ha/groups/{group}"), body);
    assert_eq!(put("g1", r#"{ "state": "master", "priority": 7 }"#).status, 200);
    assert_eq!(node.state("g1"), "master");
    assert_eq!(put("g1", r#"{ "state": "backup" }"#).status, 200);
    assert_eq!(node.state("g1"), "backup");
    let unknown = put("g7", r#"{ "state": "master" }"#);
    assert!(
        unknown.status == 404 && unknown.body.contains("(known: g1)"),
        "{}",
        unknown.body
    );
    assert_eq!(put("g1", r#"{ "state": "owner" }"#).status, 400);
    let mut command = node.ns.command(crate::lab::signalbox::binary());
    let refused = command
        .args(["ha", "run", "--config"])
        .arg(node.config())
        .output()
        .unwrap();
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && why.contains("nothing is to run"), "{why}");
}
