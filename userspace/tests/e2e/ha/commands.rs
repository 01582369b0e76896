//! Commands of operators to a node, and the programs that they give it.

use std::fs;

use super::scene::{HaLab, VIPS, privileged};
use crate::lab::{SOON, eventually, lab_test};

const GROUPS: &str =
    "  groups: [{ name: g1, vips: 10.1.0.101, prefer: node-a }, { name: g2, vips: 10.1.0.102, prefer: node-a }]\n";

#[lab_test(privileged)]
fn a_group_is_released_and_reclaimed() {
    let lab = HaLab::start(GROUPS);
    let (first, second) = (&lab.nodes[0], &lab.nodes[1]);
    VIPS.iter().for_each(|vip| lab.wait_owner(vip, 0));
    first.wait_state("g1", "master");
    let said = first.ha(&["release", "g1"]);
    assert!(said.status.success() && said.stdout == b"g1: released\n", "{said:?}");
    assert_ne!(first.state("g1"), "master");
    lab.wait_owner(VIPS[0], 1);
    lab.wait_owner(VIPS[1], 0);
    lab.wait_served(VIPS[0]);
    second.wait_state("g1", "master");
    assert!(first.ha(&["reclaim", "g1"]).status.success());
    lab.wait_owner(VIPS[0], 0);
    // All of them.
    let said = first.ha(&["release"]);
    assert!(
        said.status.success() && said.stdout == b"g1: released\ng2: released\n",
        "{said:?}"
    );
    VIPS.iter().for_each(|vip| lab.wait_owner(vip, 1));
    assert!(first.ha(&["reclaim"]).status.success());
    VIPS.iter().for_each(|vip| lab.wait_owner(vip, 0));
    let wrong = first.ha(&["release", "g3"]);
    let why = String::from_utf8_lossy(&wrong.stderr);
    assert!(
        !wrong.status.success() && why.contains("there is no group `g3` (known: g1, g2)"),
        "{why}"
    );
    let table = String::from_utf8_lossy(&first.ha(&["status"]).stdout).into_owned();
    assert!(
        table.contains("10.1.0.101") && table.contains("master") && table.contains("router-west on node-a"),
        "{table}"
    );
}

#[lab_test(privileged)]
fn a_watch_script_sets_node_health_and_notify_hears_of_changes() {
    let mut lab = HaLab::new();
    for node in &lab.nodes {
        let check = node.write_program("check", &format!("test ! -e {}", node.file("sick").display()));
        let notify = node.write_program("notify", &format!("echo \"$*\" >> {}", node.file("heard").display()));
        node.write(&format!(
            "  groups: [{{ name: g1, vips: [10.1.0.101, \"fd00:1::101\"], prefer: node-a }}]\n  notify: {}\n  \
             watch: {{ script: {}, interval: 200ms }}\n",
            notify.display(),
            check.display()
        ));
    }
    for node in &mut lab.nodes {
        node.start_signalbox();
        node.start_supervisor();
    }
    lab.wait_owner(VIPS[0], 0);
    assert!(lab.nodes[0].ha(&["check"]).status.success());
    fs::write(lab.nodes[0].file("sick"), "").unwrap();
    lab.wait_owner(VIPS[0], 1);
    let said = lab.nodes[0].ha(&["check"]);
    assert!(
        !said.status.success() && String::from_utf8_lossy(&said.stderr).contains("exit status: 1"),
        "{said:?}"
    );
    fs::remove_file(lab.nodes[0].file("sick")).unwrap();
    lab.wait_owner(VIPS[0], 0);
    let heard = || fs::read_to_string(lab.nodes[0].file("heard")).unwrap_or_default();
    // A group of two families is two instances.
    for line in [
        "GROUP g1 MASTER 250",
        "INSTANCE g1:ipv4 MASTER 250",
        "INSTANCE g1:ipv6 MASTER 250",
        "GROUP g1 FAULT 250",
    ] {
        assert!(
            eventually(SOON, || heard().lines().any(|found| found == line)),
            "{line}: {}",
            heard()
        );
    }
}

#[lab_test(privileged)]
fn a_port_says_whether_a_node_is_well_even_without_signalbox() {
    let ha = "  groups: [{ name: g1, vips: 10.1.0.101, prefer: node-a }]\n  watch: { ready: false, port: 8080, interval: 200ms }\n";
    let mut lab = HaLab::new();
    for node in &mut lab.nodes {
        node.write(ha);
        node.start_supervisor();
    }
    let listeners = [0, 1].map(|at| Some(lab.nodes[at].ns.listen(["10.1.0.11:8080", "10.1.0.12:8080"][at])));
    let [mut first, _second] = listeners;
    lab.wait_owner(VIPS[0], 0);
    drop(first.take());
    lab.wait_owner(VIPS[0], 1);
    let log = lab.nodes[0].supervisor.as_ref().unwrap().log();
    assert!(log.contains("10.1.0.11:8080"), "{log}");
}
