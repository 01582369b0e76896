//! The addresses that move between nodes, and their owners.

use serde_json::{Value, json};

use super::network::{MOVING, mac};
use super::pair::{Pair, node_name};
use crate::lab::{SOON, eventually};

impl Pair {
    /// Waits until a node has the addresses, and its balancer knows it.
    pub(super) fn wait_owner(&self, node: usize) {
        let mut last = Value::Null;
        let is = eventually(SOON, || {
            last = self.balancer(node).json("/api/v1/ha");
            last["groups"][0]["state"] == "master"
        });
        assert!(is, "{} does not have the addresses: {last:#}", node_name(node));
    }

    /// Waits until exactly one other node has the addresses; returns it.
    pub(super) fn wait_other_owner(&self, former: usize) -> usize {
        let mut owners = Vec::new();
        let is = eventually(SOON, || {
            owners = self.running();
            owners.retain(|&node| self.state(node) == "master");
            matches!(owners[..], [owner] if owner != former)
        });
        assert!(is, "{owners:?} have the addresses:\n{}", self.logs());
        owners[0]
    }

    /// State of the group at a node.
    pub(super) fn state(&self, node: usize) -> Value {
        self.balancer(node).json("/api/v1/ha")["groups"][0]["state"].clone()
    }

    /// How often a node has got the addresses since its process began.
    pub(super) fn times_master(&self, node: usize) -> f64 {
        let key = "signalbox_ha_transitions_total{state=\"master\"}";
        self.balancer(node).metric(key)
    }

    /// Waits until a node has the addresses and no other one has, and all balancers know it.
    pub(super) fn wait_sole_owner(&self, node: usize) {
        self.wait_owner(node);
        let has_given_way = eventually(SOON, || {
            let mut running = self.running().into_iter();
            running.all(|other| (self.state(other) == "master") == (other == node))
        });
        assert!(has_given_way, "{}", self.logs());
    }

    /// Gives the addresses of the first group to a node, and takes them from the others: as a change of owner by VRRP
    /// looks from outside.
    pub(super) fn give(&self, node: usize) {
        self.give_group(0, node);
    }

    /// Gives the addresses of a group to a node, and takes them from the others.
    pub(super) fn give_group(&self, group: usize, node: usize) {
        for other in (0..self.nodes.len()).filter(|&other| other != node) {
            self.withdraw_group(group, other);
        }
        self.take_group(group, node);
    }

    /// Gives the addresses of the first group to a node.
    pub(super) fn take(&self, node: usize) {
        self.take_group(0, node);
    }

    fn take_group(&self, group: usize, node: usize) {
        self.add_group(group, node);
        self.report_group(group, node, "master");
    }

    /// Gives the addresses of a group to a node whose balancer hears of it from the kernel alone.
    pub(super) fn add_group(&self, group: usize, node: usize) {
        let add = |(address, device): (&str, &str)| format!("addr add {address} dev {device} nodad\n");
        self.nodes[node].ip(&MOVING[group].1.map(add).concat()).unwrap();
        self.set_neighbours(group, node, "permanent");
    }

    /// Has client and host find a node at the addresses, as its gratuitous ARP does.
    pub(super) fn announce(&self, node: usize) {
        self.set_neighbours(0, node, "permanent");
    }

    /// Has client and host find a node at the addresses until another announces them.
    pub(super) fn point_to(&self, node: usize) {
        self.set_neighbours(0, node, "reachable");
    }

    fn set_neighbours(&self, group: usize, node: usize, state: &str) {
        for (address, device) in MOVING[group].1 {
            let (neighbour, link) = if device == "front" {
                (&self.client, "front")
            } else {
                (&self.host, "back")
            };
            let mac = mac(&self.nodes[node], device);
            let address = address.split('/').next().unwrap_or_default();
            let line = format!("neigh replace {address} lladdr {mac} dev {link} nud {state}\n");
            neighbour.ip(&line).unwrap();
        }
    }

    /// Takes the addresses of the first group from a node, if it has them.
    pub(super) fn withdraw(&self, node: usize) {
        self.withdraw_group(0, node);
    }

    fn withdraw_group(&self, group: usize, node: usize) {
        for (address, device) in MOVING[group].1 {
            let _ = self.nodes[node].ip(&format!("addr del {address} dev {device}\n"));
        }
        self.report_group(group, node, "backup");
    }

    /// Reports the state of the first group to a balancer, if it runs.
    pub(super) fn report(&self, node: usize, state: &str) {
        self.report_group(0, node, state);
    }

    fn report_group(&self, group: usize, node: usize, state: &str) {
        if let Some(balancer) = &self.balancers[node] {
            let body = json!({ "state": state }).to_string();
            let answer = balancer.unix("PUT", &format!("/api/v1/ha/groups/{}", MOVING[group].0), &body);
            assert_eq!(answer.status, 200, "{}", answer.body);
        }
    }
}
