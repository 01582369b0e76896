//! Addresses that the owner of a group has, with their interfaces.

use std::net::IpAddr;

use crate::model::HighAvailability;
use crate::model::ha::VipGroup;

/// Address of an owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnedAddress {
    /// Address itself.
    pub address: IpAddr,
    /// Length of its network's prefix.
    pub prefix: u8,
    /// Interface that has it.
    pub interface: String,
}

/// Addresses of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupAddresses {
    /// Virtual addresses of IPv4.
    pub vips_v4: Vec<OwnedAddress>,
    /// Virtual addresses of IPv6.
    pub vips_v6: Vec<OwnedAddress>,
    /// Addresses that connections to hosts come from.
    pub sources: Vec<OwnedAddress>,
}

impl GroupAddresses {
    /// All addresses of the group.
    pub fn all(&self) -> impl Iterator<Item = &OwnedAddress> {
        self.vips_v4.iter().chain(&self.vips_v6).chain(&self.sources)
    }
}

/// Addresses of a group whose virtual addresses are on `interface`.
#[must_use]
pub fn of_group(group: &VipGroup, interface: &str) -> GroupAddresses {
    let vip = |address: &IpAddr| OwnedAddress {
        address: *address,
        prefix: if address.is_ipv4() { 32 } else { 128 },
        interface: interface.to_owned(),
    };
    let (vips_v4, vips_v6) = group.vips.iter().map(vip).partition(|vip| vip.address.is_ipv4());
    let sources = group.sources.iter().map(|source| OwnedAddress {
        address: source.address,
        prefix: source.prefix,
        interface: source.interface.clone().unwrap_or_else(|| interface.to_owned()),
    });
    GroupAddresses {
        vips_v4,
        vips_v6,
        sources: sources.collect(),
    }
}

/// Addresses of all groups.
#[must_use]
pub fn of_all(ha: &HighAvailability, interface: &str) -> Vec<OwnedAddress> {
    let groups = ha.groups.iter().map(|group| of_group(group, interface));
    groups
        .flat_map(|group| group.all().cloned().collect::<Vec<_>>())
        .collect()
}
