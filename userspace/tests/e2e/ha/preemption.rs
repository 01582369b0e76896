//! Which node has a group when the preferred node is back, and groups that are divided.

use super::scene::{HaLab, VIPS, privileged};
use crate::lab::{SOON, eventually, lab_test};

#[lab_test(privileged)]
fn groups_are_spread_over_nodes_and_gathered_when_one_fails() {
    let mut lab = HaLab::start("  vips: 10.1.0.101-102\n  groups: 2\n");
    let owners = VIPS.map(|vip| lab.owner(vip));
    let divided = eventually(SOON, || {
        let owners = VIPS.map(|vip| lab.owner(vip));
        owners[0] != owners[1]
    });
    assert!(divided, "{owners:?}: {}", lab.logs());
    let owners = VIPS.map(|vip| lab.owner(vip));
    lab.nodes[owners[0]].signalbox.as_mut().unwrap().kill();
    for vip in VIPS {
        lab.wait_owner(vip, owners[1]);
        lab.wait_served(vip);
    }
    lab.nodes[owners[0]].start_signalbox();
    lab.wait_owner(VIPS[0], owners[0]);
    lab.wait_owner(VIPS[1], owners[1]);
}

#[lab_test(privileged)]
fn without_preemption_the_group_stays() {
    let vip = VIPS[0];
    let groups = format!("  groups: [{{ name: g1, vips: {vip}, prefer: node-a }}]\n");
    let mut lab = HaLab::start(&(groups.clone() + "  preemption: nopreempt\n"));
    lab.owner(vip);
    // The preferred node has it if it alone is well.
    lab.nodes[1].signalbox.as_mut().unwrap().kill();
    lab.wait_owner(vip, 0);
    lab.nodes[1].start_signalbox();
    lab.nodes[1].wait_state("g1", "backup");
    lab.nodes[0].signalbox.as_mut().unwrap().kill();
    lab.wait_owner(vip, 1);
    lab.nodes[0].start_signalbox();
    lab.nodes[0].wait_state("g1", "backup");
    // Three adverts would be enough to take it.
    std::thread::sleep(std::time::Duration::from_secs(1));
    lab.wait_owner(vip, 1);
    assert_eq!(lab.nodes[0].state("g1"), "backup");

    // With a delay it comes back later; the change needs no restart.
    for node in &lab.nodes {
        node.write(&(groups.clone() + "  preemption: { delay: 2s }\n"));
    }
    lab.wait_owner(vip, 0);
    lab.wait_served(vip);
}
