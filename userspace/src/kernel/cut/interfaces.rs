//! Interfaces that carry legs of flows: those that routes use.

use std::collections::BTreeSet;
use std::fs;

/// Hardware type of Ethernet (`ARPHRD_ETHER`, `include/uapi/linux/if_arp.h`): the programs write its header.
const ETHERNET: &str = "1";

/// An interface that packets of flows may arrive at or leave by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interface {
    pub index: u32,
    pub name: String,
    pub mtu: u32,
}

impl Interface {
    /// Returns whether the interface still exists: up or down, and under whatever name.
    #[must_use]
    pub fn exists(&self) -> bool {
        exists(self.index)
    }
}

/// Returns whether there is an interface of this index. Asking takes a descriptor: where that fails, the interface
/// counts as existing.
pub(in crate::kernel) fn exists(index: u32) -> bool {
    use nix::errno::Errno;
    !matches!(nix::net::if_::if_indextoname(index), Err(Errno::ENXIO | Errno::ENODEV))
}

/// Returns all Ethernet interfaces of this network namespace.
#[must_use]
pub fn all() -> Vec<Interface> {
    let found = nix::net::if_::if_nameindex();
    let names: Vec<String> = found
        .iter()
        .flatten()
        .map(|interface| interface.name().to_string_lossy().into_owned())
        .collect();
    names.iter().filter_map(|name| interface(name)).collect()
}

/// Returns the Ethernet interfaces that a route of this network namespace uses.
#[must_use]
pub fn routed() -> Vec<Interface> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut names = routed_v4(&read("/proc/thread-self/net/route"));
    names.extend(routed_v6(&read("/proc/thread-self/net/ipv6_route")));
    names.into_iter().filter_map(|name| interface(&name)).collect()
}

/// Extracts interfaces from /proc/net/route: the first column, below a heading.
fn routed_v4(table: &str) -> BTreeSet<String> {
    let lines = table.lines().skip(1);
    lines
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

/// Extracts interfaces from /proc/net/ipv6_route: the last column, of routes that are neither link-local nor multicast,
/// which every interface has.
fn routed_v6(table: &str) -> BTreeSet<String> {
    let lines = table
        .lines()
        .filter(|line| !line.starts_with("fe80") && !line.starts_with("ff"));
    lines
        .filter_map(|line| line.split_whitespace().last())
        .map(str::to_owned)
        .collect()
}

fn interface(name: &str) -> Option<Interface> {
    if name == "lo" {
        return None;
    }
    let index = nix::net::if_::if_nametoindex(name).ok()?;
    let socket = nix::sys::socket::socket(
        nix::sys::socket::AddressFamily::Inet,
        nix::sys::socket::SockType::Datagram,
        nix::sys::socket::SockFlag::SOCK_CLOEXEC,
        None,
    )
    .ok()?;
    let (kind, mtu) = crate::sys::interface_type_and_mtu(&socket, name).ok()?;
    (kind.to_string() == ETHERNET).then(|| Interface {
        index,
        name: name.to_owned(),
        mtu,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_routes_are_found() {
        let v4 = "Iface\tDestination\tGateway\neth0\t00000000\t0101A8C0\neth1\t0000000A\t00000000\neth0\t1\t2\n";
        assert_eq!(routed_v4(v4), ["eth0".to_owned(), "eth1".to_owned()].into());
        let v6 = "fd000001000000000000000000000000 40 00 00 0 00000100 1 0 1 back\n\
                  fe800000000000000000000000000000 40 00 00 0 00000100 1 0 1 tap0\n\
                  ff000000000000000000000000000000 08 00 00 0 00000100 1 0 1 tap0\n";
        assert_eq!(routed_v6(v6), ["back".to_owned()].into());
    }
}
