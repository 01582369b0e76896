//! The addresses that move between two nodes, and who has them.

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

    /// State of the group at a node.
    pub(super) fn state(&self, node: usize) -> Value {
        self.balancer(node).json("/api/v1/ha")["groups"][0]["state"].clone()
    }

    /// How often a node has got the addresses since its process began.
    pub(super) fn times_master(&self, node: usize) -> f64 {
        let key = "signalbox_ha_transitions_total{state=\"master\"}";
        self.balancer(node).metric(key)
    }

    /// Waits until a node has the addresses and the other one has not, and both balancers know it.
    pub(super) fn wait_sole_owner(&self, node: usize) {
        self.wait_owner(node);
        let has_given_way = eventually(SOON, || {
            self.state(1 - node) != "master" && self.state(node) == "master"
        });
        assert!(has_given_way, "{}", self.logs());
    }

    /// Gives the addresses to a node, and takes them from the other: as a change of owner by VRRP looks to everybody.
    pub(super) fn give(&self, node: usize) {
        self.withdraw(1 - node);
        self.take(node);
    }

    /// Gives the addresses to a node.
    pub(super) fn take(&self, node: usize) {
        let add = |(address, device): (&str, &str)| format!("addr add {address} dev {device} nodad\n");
        self.nodes[node].ip(&MOVING.map(add).concat()).unwrap();
        self.announce(node);
        self.report(node, "master");
    }

    /// Has client and host find a node at the addresses, as its gratuitous ARP does.
    pub(super) fn announce(&self, node: usize) {
        self.set_neighbours(node, "permanent");
    }

    /// Has client and host find a node at the addresses until somebody else announces them.
    pub(super) fn point_to(&self, node: usize) {
        self.set_neighbours(node, "reachable");
    }

    fn set_neighbours(&self, node: usize, state: &str) {
        for (address, device) in MOVING {
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

    /// Takes the addresses from a node, if it has them.
    pub(super) fn withdraw(&self, node: usize) {
        for (address, device) in MOVING {
            let _ = self.nodes[node].ip(&format!("addr del {address} dev {device}\n"));
        }
        self.report(node, "backup");
    }

    /// Tells a balancer the state of its group, if it runs.
    pub(super) fn report(&self, node: usize, state: &str) {
        if let Some(balancer) = &self.balancers[node] {
            let body = json!({ "state": state }).to_string();
            let answer = balancer.unix("PUT", "/api/v1/ha/groups/g1", &body);
            assert_eq!(answer.status, 200, "{}", answer.body);
        }
    }
}
