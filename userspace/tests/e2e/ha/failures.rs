//! Failures, and the places of the addresses afterwards.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::scene::{HaLab, Node, SOURCE, VIP6, VIPS, privileged};
use crate::lab::{SOON, eventually, lab_test};

/// Group of an IPv4 and an IPv6 address, with a source on the other interface.
fn one_group() -> String {
    format!(
        "  groups: [{{ name: g1, vips: [{}, \"{VIP6}\"], sources: [\"{SOURCE}/24@back\"], prefer: node-a }}]\n",
        VIPS[0]
    )
}

/// Waits until a node has everything that belongs to the group.
fn wait_all(lab: &HaLab, node: usize) {
    for address in [VIPS[0], VIP6, SOURCE] {
        lab.wait_owner(address, node);
    }
    // Nothing answers for an address while the kernel checks whether another machine has it.
    let addresses = lab.nodes[node].ns.must(&["ip", "-oneline", "address", "show"]);
    let is_tentative = |line: &str| line.contains(VIP6) && line.contains("tentative");
    assert!(!addresses.lines().any(is_tentative), "{addresses}");
    lab.wait_served(VIPS[0]);
    lab.wait_served(VIP6);
}

#[lab_test(privileged)]
fn addresses_leave_a_signalbox_that_is_killed_and_come_back() {
    let mut lab = HaLab::start(&one_group());
    wait_all(&lab, 0);
    lab.nodes[0].wait_state("g1", "master");
    lab.nodes[1].wait_state("g1", "backup");
    lab.nodes[0].signalbox.as_mut().unwrap().kill();
    wait_all(&lab, 1);
    lab.nodes[1].wait_state("g1", "master");
    lab.nodes[0].start_signalbox();
    // The first node is preferred, and has nothing to learn first.
    wait_all(&lab, 0);
    lab.nodes[0].wait_state("g1", "master");
    let metrics = lab.nodes[1].ask("GET", "/metrics", "").body;
    for line in [
        "signalbox_ha_group_state{group=\"g1\",state=\"backup\"} 1",
        "signalbox_ha_group_state{group=\"g1\",state=\"master\"} 0",
        "signalbox_ha_transitions_total{group=\"g1\",state=\"master\"}",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[lab_test(privileged)]
fn addresses_leave_a_node_that_does_not_reach_the_hosts() {
    let lab = HaLab::start(&one_group());
    wait_all(&lab, 0);
    lab.set_back_link(0, false);
    wait_all(&lab, 1);
    lab.set_back_link(0, true);
    wait_all(&lab, 0);
}

#[lab_test(privileged)]
fn addresses_leave_a_stopping_signalbox_before_its_flows_end() {
    let mut lab = HaLab::start(&one_group());
    wait_all(&lab, 0);
    lab.nodes[0].signalbox.as_mut().unwrap().signal(Signal::SIGTERM);
    wait_all(&lab, 1);
}

/// As Kubernetes ends a pod: both processes are told to end at once. Connections are accepted until the addresses have left.
#[lab_test(privileged)]
fn a_node_that_is_told_to_stop_refuses_no_connection() {
    let mut lab = HaLab::start(&one_group());
    for both in [false, true] {
        wait_all(&lab, 0);
        let (is_over, connected, refused) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
        let (client, node) = (lab.client.clone(), &mut lab.nodes[0]);
        let (mut signalbox, mut supervisor) = (node.signalbox.take().unwrap(), node.supervisor.take());
        std::thread::scope(|scope| {
            scope.spawn(|| client.run(|| connect_until(&is_over, &connected, &refused)));
            signalbox.signal(Signal::SIGTERM);
            if both && let Some(supervisor) = &supervisor {
                supervisor.signal(Signal::SIGTERM);
            }
            signalbox.exit_code(SOON);
            is_over.store(true, Relaxed);
        });
        assert_eq!(refused.load(Relaxed), 0, "both: {both}\n{}", signalbox.log());
        assert!(connected.load(Relaxed) > 0);
        wait_all(&lab, 1);
        if let Some(supervisor) = &mut supervisor {
            supervisor.kill();
        }
        lab.nodes[0].start_signalbox();
        lab.nodes[0].start_supervisor();
    }
}

/// Connects again and again, and counts refusals. A SYN that no node has answered is not one: the client repeats it.
fn connect_until(is_over: &AtomicBool, connected: &AtomicU32, refused: &AtomicU32) {
    let at = format!("{}:80", VIPS[0]).parse().unwrap();
    while !is_over.load(Relaxed) {
        match TcpStream::connect_timeout(&at, Duration::from_millis(50)) {
            Ok(_) => connected.fetch_add(1, Relaxed),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => refused.fetch_add(1, Relaxed),
            Err(_) => continue,
        };
    }
}

#[lab_test(privileged)]
fn addresses_leave_a_node_whose_cables_are_pulled() {
    let lab = HaLab::start(&one_group());
    wait_all(&lab, 0);
    lab.set_links(0, false);
    let moved = eventually(SOON, || {
        lab.nodes[1].has(VIPS[0]) && lab.nodes[1].has(VIP6) && lab.nodes[1].has(SOURCE)
    });
    assert!(moved, "{}", lab.logs());
    lab.wait_served(VIPS[0]);
    lab.set_links(0, true);
    wait_all(&lab, 0);
}

#[lab_test(privileged)]
fn a_killed_keepalived_leaves_no_address_and_is_restarted() {
    // With `never`, a node that comes back does not take the addresses back either.
    let lab = HaLab::start(&(one_group() + "  preemption: never\n"));
    let first = lab.settled_owner("g1", VIPS[0]);
    wait_all(&lab, first);
    let second = 1 - first;
    // Both processes, then only the parent.
    let mut pids = lab.nodes[first].keepalived();
    Node::kill(&pids);
    wait_all(&lab, second);
    let new = eventually(SOON, || lab.nodes[first].keepalived() != pids);
    assert!(new, "{}", lab.logs());
    lab.nodes[first].wait_state("g1", "backup");
    pids = lab.nodes[second].keepalived();
    Node::kill(&pids[..1]);
    wait_all(&lab, first);
    // And only the child.
    pids = lab.nodes[first].keepalived();
    lab.nodes[second].wait_state("g1", "backup");
    Node::kill(&pids[1..]);
    wait_all(&lab, second);
}

#[lab_test(privileged)]
fn a_supervisor_that_is_killed_takes_its_addresses_along() {
    let mut lab = HaLab::start(&one_group());
    wait_all(&lab, 0);
    lab.nodes[0].wait_state("g1", "master");
    let pids = lab.nodes[0].keepalived();
    lab.nodes[0].supervisor.as_mut().unwrap().kill();
    wait_all(&lab, 1);
    let gone = eventually(SOON, || {
        pids.iter()
            .all(|pid| !signalbox_lab::is_alive(pid.as_raw().unsigned_abs()))
    });
    assert!(gone, "keepalived has ended with its parent");
    // signalbox knows that nothing gives it addresses any more.
    lab.nodes[0].wait_state("g1", "fault");
    assert_eq!(lab.nodes[0].status()["supervised"], false);
    // Everything at once leaves addresses: the next supervisor removes them.
    lab.nodes[0].start_supervisor();
    wait_all(&lab, 0);
    let pids = lab.nodes[0].keepalived();
    lab.nodes[0].supervisor.as_ref().unwrap().signal(Signal::SIGSTOP);
    Node::kill(&pids);
    lab.nodes[0].supervisor.as_mut().unwrap().kill();
    assert!(lab.nodes[0].has(VIPS[0]), "keepalived had no chance to remove it");
    lab.nodes[0].signalbox.as_mut().unwrap().kill();
    lab.nodes[0].start_supervisor();
    wait_all(&lab, 1);
}

#[lab_test(privileged)]
fn a_supervisor_that_is_told_to_stop_gives_its_addresses_up() {
    let mut lab = HaLab::start(&one_group());
    wait_all(&lab, 0);
    let (first, _) = lab.pair(0);
    let supervisor = first.supervisor.as_mut().unwrap();
    supervisor.signal(Signal::SIGTERM);
    assert_eq!(supervisor.exit_code(SOON), 0, "{}", supervisor.log());
    assert!(!first.has(VIPS[0]) && !first.has(VIP6) && !first.has(SOURCE));
    first.wait_state("g1", "fault");
    wait_all(&lab, 1);
}

#[lab_test(privileged)]
fn a_successor_of_signalbox_keeps_the_addresses() {
    let mut lab = HaLab::start(&one_group());
    wait_all(&lab, 0);
    lab.nodes[0].wait_state("g1", "master");
    let transitions = |lab: &HaLab| {
        lab.nodes[1]
            .supervisor
            .as_ref()
            .unwrap()
            .log()
            .matches("state=\"MASTER\"")
            .count()
    };
    assert_eq!(transitions(&lab), 0, "{}", lab.logs());
    lab.nodes[0].take_over();
    lab.nodes[0].wait_state("g1", "master");
    assert!(lab.nodes[0].has(VIPS[0]));
    assert_eq!(transitions(&lab), 0, "the other node never had them:\n{}", lab.logs());
    lab.wait_served(VIPS[0]);
}
