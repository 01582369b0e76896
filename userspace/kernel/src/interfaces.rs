//! Interfaces that carry legs of flows: those that routes use.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;

use crate::netlink::{Link, Netlink};

/// An interface that packets of flows may arrive at or leave by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interface {
    pub index: u32,
    pub name: String,
    pub mtu: u32,
}

impl Interface {
    /// Returns whether the interface still exists: up or down, and under any name.
    #[must_use]
    pub fn exists(&self) -> bool {
        exists(self.index)
    }
}

/// Returns whether there is an interface of this index. Asking takes a descriptor: where that fails, the interface
/// counts as existing.
pub(crate) fn exists(index: u32) -> bool {
    use nix::errno::Errno;
    !matches!(nix::net::if_::if_indextoname(index), Err(Errno::ENXIO | Errno::ENODEV))
}

/// Returns all addresses of this network namespace.
#[must_use]
pub fn addresses() -> Vec<IpAddr> {
    named_addresses().into_iter().map(|(_, address)| address).collect()
}

/// Returns all addresses of this network namespace, with the names of their interfaces.
#[must_use]
pub fn named_addresses() -> Vec<(String, IpAddr)> {
    let all = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let named = |found: nix::ifaddrs::InterfaceAddress| {
        let address = found.address.as_ref().and_then(ip_of)?;
        Some((found.interface_name, address))
    };
    all.filter_map(named).collect()
}

/// Returns the name of an interface.
#[must_use]
pub fn name_of_index(index: u32) -> Option<String> {
    nix::net::if_::if_indextoname(index).ok()?.into_string().ok()
}

/// Returns the names of the interfaces that others belong to, by those of the others.
pub fn masters() -> io::Result<HashMap<String, String>> {
    let links = Netlink::open()?.links()?;
    let of = |link: &Link| Some((link.name.clone(), links.get(&link.master?)?.name.clone()));
    Ok(links.values().filter_map(of).collect())
}

/// Returns the names of all interfaces by index; none where the kernel does not list them.
#[must_use]
pub fn names_by_index() -> BTreeMap<u32, String> {
    let all = nix::net::if_::if_nameindex();
    let all = all.iter().flat_map(|all| all.iter());
    all.map(|one| (one.index(), one.name().to_string_lossy().into_owned()))
        .collect()
}

fn ip_of(socket: &nix::sys::socket::SockaddrStorage) -> Option<IpAddr> {
    let v4 = socket.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| socket.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

/// Returns the name of the interface that has an address.
#[must_use]
pub fn name_of_address(address: IpAddr) -> Option<String> {
    let has = |found: &nix::ifaddrs::InterfaceAddress| found.address.as_ref().and_then(ip_of) == Some(address);
    nix::ifaddrs::getifaddrs()
        .ok()?
        .find(has)
        .map(|found| found.interface_name)
}

/// Returns all Ethernet interfaces of this network namespace; none where the kernel cannot be asked.
#[must_use]
pub fn all() -> Vec<Interface> {
    Netlink::open()
        .and_then(|netlink| having(&netlink, |_, link| link.is_ethernet))
        .unwrap_or_default()
}

/// Returns the Ethernet interfaces that a route of this network namespace uses.
pub fn routed() -> io::Result<Vec<Interface>> {
    let netlink = Netlink::open()?;
    let used = netlink.routed_links()?;
    having(&netlink, |index, link| link.is_ethernet && used.contains(&index))
}

/// Returns the interfaces without Ethernet that a route of this network namespace uses, such as WireGuard's and those of
/// tunnels; not loopback.
pub fn routed_without_ethernet() -> io::Result<Vec<Interface>> {
    let netlink = Netlink::open()?;
    let used = netlink.routed_links()?;
    having(&netlink, |index, link| {
        is_without_ethernet(link) && used.contains(&index)
    })
}

/// Returns all interfaces without Ethernet but loopback; none where the kernel cannot be asked.
#[must_use]
pub fn all_without_ethernet() -> Vec<Interface> {
    Netlink::open()
        .and_then(|netlink| having(&netlink, |_, link| is_without_ethernet(link)))
        .unwrap_or_default()
}

const fn is_without_ethernet(link: &Link) -> bool {
    !link.is_ethernet && !link.is_loopback
}

fn having(netlink: &Netlink, is_wanted: impl Fn(u32, &Link) -> bool) -> io::Result<Vec<Interface>> {
    let links = netlink.links()?.into_iter();
    let mut found: Vec<_> = links
        .filter(|(index, link)| is_wanted(*index, link))
        .map(|(index, link)| Interface {
            index,
            name: link.name,
            mtu: link.mtu,
        })
        .collect();
    found.sort();
    Ok(found)
}
