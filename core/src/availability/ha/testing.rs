//! Settings for tests.

use crate::availability::ha::{groups, ranges};
use crate::model::HighAvailability;
use crate::model::ha::{HaMode, HaNode, HaWatch, Preemption, Vrrp};

/// Settings with nodes n1, n2, ... and groups of two addresses.
pub(super) fn ha(nodes: usize, groups: usize) -> HighAvailability {
    let mut vips = Vec::new();
    for group in 0..groups {
        vips.extend(ranges::parse(&format!("10.1.{group}.5-6")).unwrap());
    }
    HighAvailability {
        name: "router-west".to_owned(),
        mode: HaMode::Keepalived,
        node: None,
        nodes: (1..=nodes)
            .map(|at| HaNode {
                name: format!("n{at}"),
                address: format!("10.1.0.{at}").parse().unwrap(),
            })
            .collect(),
        interface: None,
        groups: groups::divide(&vips, groups),
        watch: HaWatch::default(),
        preemption: Preemption::WhenSynced,
        vrrp: Vrrp::default(),
        notify: None,
        firewall: false,
        email: None,
        sync: None,
    }
}
