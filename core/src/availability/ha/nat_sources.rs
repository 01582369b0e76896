//! Source addresses and ports of layer-4 services in mode `nat`, where virtual addresses move between nodes.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::floating::{FloatingSources, NodeShare};

/// Source addresses for packets to a host: a block for services whose addresses do not move, then one for each group
/// of virtual addresses, all of the same length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NatSources {
    /// The blocks, one after the other.
    pub addresses: Vec<IpAddr>,
    /// Length of a block; 0 where a block would have no source.
    pub block: usize,
}

impl NatSources {
    /// Chooses the addresses for a host to which the kernel would connect from `ordinary`.
    ///
    /// A group's are its own: those among `configured`, or where none are configured, those in the host's network. The
    /// others, and groups without any, have those of `configured` that do not move, or the ordinary one.
    #[must_use]
    pub fn new(floating: &FloatingSources, configured: &[IpAddr], host: IpAddr, ordinary: Option<IpAddr>) -> Self {
        let is_usable = |source: &IpAddr| source.is_ipv4() == host.is_ipv4();
        let mut fixed: Vec<IpAddr> = configured.iter().copied().filter(is_usable).collect();
        fixed.retain(|source| !floating.moves(*source));
        if fixed.is_empty() {
            fixed.extend(ordinary.filter(is_usable));
        }
        let of_group = |group: usize| -> Vec<IpAddr> {
            let own: Vec<IpAddr> = if configured.is_empty() {
                let ordinary = ordinary.filter(is_usable);
                ordinary.map_or_else(Vec::new, |ordinary| floating.sources_for(group, ordinary).collect())
            } else {
                let own = configured.iter().filter(|source| is_usable(source));
                own.filter(|source| floating.is_source_of(group, **source))
                    .copied()
                    .collect()
            };
            if own.is_empty() { fixed.clone() } else { own }
        };
        let blocks: Vec<Vec<IpAddr>> = std::iter::once(fixed.clone())
            .chain((0..floating.group_count()).map(of_group))
            .collect();
        let block = blocks.iter().map(Vec::len).max().unwrap_or_default();
        if blocks.iter().any(Vec::is_empty) {
            return Self::default();
        }
        Self {
            addresses: blocks
                .iter()
                .flat_map(|addresses| addresses.iter().copied().cycle().take(block))
                .collect(),
            block,
        }
    }
}

/// Source ports of a node at addresses that move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodePorts {
    /// First port.
    pub first: u32,
    /// Number of ports.
    pub count: u32,
    /// Distance between two of them.
    pub step: u32,
}

impl NodePorts {
    /// Returns a node's share of the ports.
    #[must_use]
    pub fn new(ports: &RangeInclusive<u16>, share: NodeShare) -> Self {
        let step = u32::from(share.nodes);
        let Some(first) = ports.clone().find(|port| share.has_port(*port)) else {
            return Self {
                step,
                ..Self::default()
            };
        };
        Self {
            first: u32::from(first),
            count: u32::from(ports.end() - first) / step + 1,
            step,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::floating::tests::ha;
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn blocks(configured: &[&str], host: &str, ordinary: &str) -> Vec<Vec<String>> {
        let configured: Vec<_> = configured.iter().map(|text| address(text)).collect();
        let floating = FloatingSources::new(Some(&ha()));
        let all = NatSources::new(&floating, &configured, address(host), Some(address(ordinary)));
        let shown: Vec<_> = all.addresses.iter().map(ToString::to_string).collect();
        shown.chunks(all.block).map(<[String]>::to_vec).collect()
    }

    #[test]
    fn a_groups_flows_leave_from_its_own_sources() {
        assert_eq!(
            blocks(&[], "10.2.0.9", "10.2.0.11"),
            [["10.2.0.11"], ["10.2.0.5"], ["10.2.0.6"]]
        );
        // A group without a source in the host's network has the ordinary one.
        assert_eq!(
            blocks(&[], "10.3.0.9", "10.3.0.11"),
            [["10.3.0.11"], ["10.3.0.11"], ["10.3.0.6"]]
        );
        assert_eq!(
            blocks(&[], "fd00::9", "fd00::11"),
            [["fd00::11"], ["fd00::5"], ["fd00::11"]]
        );
    }

    #[test]
    fn configured_sources_that_move_are_their_groups() {
        let configured = ["10.2.0.21", "10.2.0.22", "10.2.0.5"];
        assert_eq!(
            blocks(&configured, "10.2.0.9", "10.2.0.11"),
            [
                ["10.2.0.21", "10.2.0.22"],
                ["10.2.0.5", "10.2.0.5"],
                ["10.2.0.21", "10.2.0.22"]
            ]
        );
        // Only those that move: others have the ordinary one, never a group's.
        assert_eq!(
            blocks(&["10.2.0.5"], "10.2.0.9", "10.2.0.11"),
            [["10.2.0.11"], ["10.2.0.5"], ["10.2.0.11"]]
        );
    }

    #[test]
    fn without_a_source_there_is_no_block() {
        let floating = FloatingSources::new(Some(&ha()));
        let none = NatSources::new(&floating, &[], address("10.2.0.9"), None);
        assert_eq!(none, NatSources::default());
        let alone = NatSources::new(
            &FloatingSources::default(),
            &[],
            address("10.2.0.9"),
            Some(address("10.2.0.1")),
        );
        assert_eq!((alone.addresses, alone.block), (vec![address("10.2.0.1")], 1));
    }

    #[test]
    fn nodes_divide_the_ports() {
        for (range, nodes) in [
            (1024..=16_383, 2),
            (1024..=16_383, 3),
            (7..=20, 8),
            (65_530..=65_535, 2),
        ] {
            let mut seen = HashSet::new();
            for slot in 0..nodes {
                let share = NodeShare { slot, nodes };
                let ports = NodePorts::new(&range, share);
                for n in 0..ports.count {
                    let port = u16::try_from(ports.first + n * ports.step).unwrap();
                    assert!(range.contains(&port) && share.has_port(port) && seen.insert(port));
                }
            }
            assert_eq!(seen.len(), range.len());
        }
        let none = NodePorts::new(&(5..=5), NodeShare { slot: 0, nodes: 2 });
        assert_eq!((none.first, none.count, none.step), (0, 0, 2));
        assert_eq!(NodePorts::new(&(5..=9), NodeShare::ALL).count, 5);
    }
}
