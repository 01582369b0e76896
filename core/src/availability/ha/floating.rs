//! Addresses that move between nodes, as connections to hosts need them.

use std::collections::HashMap;
use std::net::IpAddr;

use foldhash::fast::FixedState;
use ipnet::IpNet;

use crate::model::ha::{FloatingSource, HighAvailability, VipGroup};

/// Groups of virtual addresses, and the addresses from which their owner connects to hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FloatingSources {
    groups: Vec<FloatingGroup>,
    of_vip: HashMap<IpAddr, usize, FixedState>,
}

/// A group of virtual addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FloatingGroup {
    name: String,
    /// Source addresses with the lengths of their networks' prefixes.
    sources: Vec<IpNet>,
}

impl FloatingSources {
    /// Takes the groups of a configuration.
    #[must_use]
    pub fn new(ha: Option<&HighAvailability>) -> Self {
        let groups = ha.map_or(&[][..], |ha| &ha.groups);
        let numbered = || groups.iter().enumerate();
        Self {
            groups: groups.iter().map(floating_group).collect(),
            of_vip: numbered()
                .flat_map(|(at, group)| group.vips.iter().map(move |vip| (*vip, at)))
                .collect(),
        }
    }

    /// Returns whether no address moves.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Returns the virtual addresses of all groups.
    pub fn vips(&self) -> impl Iterator<Item = IpAddr> {
        self.of_vip.keys().copied()
    }

    /// Returns the source addresses of all groups.
    pub fn sources(&self) -> impl Iterator<Item = IpAddr> {
        self.groups.iter().flat_map(|group| &group.sources).map(IpNet::addr)
    }

    /// Returns the group of a virtual address.
    #[must_use]
    pub fn group_of(&self, vip: IpAddr) -> Option<usize> {
        // An address without a group is the usual case: the table is empty then.
        self.of_vip.get(&vip).copied()
    }

    /// Returns the name of a group.
    #[must_use]
    pub fn name_of(&self, group: usize) -> Option<&str> {
        self.groups.get(group).map(|group| group.name.as_str())
    }

    /// Returns the group's source addresses for a host that the kernel would connect to from `ordinary`: those in the
    /// same network.
    pub fn sources_for(&self, group: usize, ordinary: IpAddr) -> impl Iterator<Item = IpAddr> {
        let sources = self.groups.get(group).map_or(&[][..], |group| &group.sources);
        sources
            .iter()
            .filter(move |source| source.contains(&ordinary))
            .map(IpNet::addr)
    }

    /// Returns the number of groups.
    #[must_use]
    pub const fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// Whether an address is one of a group's source addresses.
    #[must_use]
    pub fn is_source_of(&self, group: usize, address: IpAddr) -> bool {
        let group = self.groups.get(group);
        group.is_some_and(|group| group.sources.iter().any(|source| source.addr() == address))
    }

    /// Whether an address moves with a group: as one of its source addresses, or as a virtual address.
    #[must_use]
    pub fn moves(&self, address: IpAddr) -> bool {
        self.of_vip.contains_key(&address) || self.sources().any(|source| source == address)
    }
}

fn floating_group(group: &VipGroup) -> FloatingGroup {
    let net = |source: &FloatingSource| IpNet::new(source.address, source.prefix).ok();
    FloatingGroup {
        name: group.name.clone(),
        sources: group.sources.iter().filter_map(net).collect(),
    }
}

/// Share of a node in the source ports of addresses that move, which all nodes divide among themselves. Two nodes that
/// have the same address at once, or one after the other, never connect from the same port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeShare {
    /// Position of the node among all, from 0.
    pub slot: u16,
    /// Number of nodes, at least 1.
    pub nodes: u16,
}

impl NodeShare {
    /// Share of a node that is alone.
    pub const ALL: Self = Self { slot: 0, nodes: 1 };

    /// Returns the share of the node with this host name.
    #[must_use]
    pub fn of(ha: Option<&HighAvailability>, host_name: &str) -> Self {
        ha.and_then(|ha| {
            Some(Self {
                slot: ha.own_slot(host_name)? as u16,
                nodes: ha.nodes.len() as u16,
            })
        })
        .unwrap_or(Self::ALL)
    }

    /// Whether a source port of an address that moves is this node's.
    #[must_use]
    pub const fn has_port(self, port: u16) -> bool {
        port % self.nodes == self.slot
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::model::ha::{HaMode, HaNode, HaWatch, Preemption, Vrrp};

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    pub(in super::super) fn ha() -> HighAvailability {
        let source = |text: &str, prefix| FloatingSource {
            address: address(text),
            prefix,
            interface: None,
        };
        let group = |name: &str, vips: &[&str], sources| VipGroup {
            id: None,
            name: name.into(),
            vips: vips.iter().map(|vip| address(vip)).collect(),
            sources,
            prefer: None,
        };
        let node = |name: &str| HaNode {
            name: name.into(),
            address: address("10.1.0.1"),
        };
        HighAvailability {
            name: "ha".into(),
            mode: HaMode::External,
            node: Some("b".into()),
            nodes: vec![node("a"), node("b"), node("c")],
            interface: None,
            groups: vec![
                group("g1", &["10.1.1.5"], vec![source("10.2.0.5", 24), source("fd00::5", 64)]),
                group(
                    "g2",
                    &["10.1.1.6", "fd01::6"],
                    vec![source("10.2.0.6", 24), source("10.3.0.6", 16)],
                ),
            ],
            watch: HaWatch::default(),
            preemption: Preemption::default(),
            vrrp: Vrrp::default(),
            notify: None,
            firewall: false,
            email: None,
            sync: None,
        }
    }

    #[test]
    fn a_groups_connections_use_its_address_in_the_hosts_network() {
        let floating = FloatingSources::new(Some(&ha()));
        let sources = |vip: &str, ordinary: &str| -> Vec<String> {
            let group = floating.group_of(address(vip)).unwrap();
            let sources = floating.sources_for(group, address(ordinary));
            sources.map(|source| source.to_string()).collect()
        };
        assert_eq!(sources("10.1.1.5", "10.2.0.11"), ["10.2.0.5"]);
        assert_eq!(sources("10.1.1.5", "fd00::11"), ["fd00::5"]);
        assert_eq!(sources("10.1.1.6", "10.3.9.9"), ["10.3.0.6"]);
        assert_eq!(sources("fd01::6", "192.0.2.1"), [""; 0]);
        assert_eq!(floating.group_of(address("10.1.1.9")), None);
        assert_eq!(floating.name_of(1), Some("g2"));
        for (moving, moves) in [("10.1.1.5", true), ("10.3.0.6", true), ("10.2.0.11", false)] {
            assert_eq!(floating.moves(address(moving)), moves, "{moving}");
        }
        assert_eq!(FloatingSources::new(None), FloatingSources::default());
    }

    #[test]
    fn every_port_is_one_nodes() {
        let shares = ["a", "b", "c"].map(|node| {
            let ha = HighAvailability {
                node: Some(node.into()),
                ..ha()
            };
            NodeShare::of(Some(&ha), "host")
        });
        assert_eq!(shares.map(|share| share.slot), [0, 1, 2]);
        for port in 0..=u16::MAX {
            assert_eq!(shares.iter().filter(|share| share.has_port(port)).count(), 1);
        }
        let unknown = HighAvailability { node: None, ..ha() };
        assert_eq!(NodeShare::of(Some(&unknown), "elsewhere"), NodeShare::ALL);
        assert_eq!(NodeShare::of(None, "a"), NodeShare::ALL);
    }
}
