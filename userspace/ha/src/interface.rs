//! Interfaces of this machine: that of the default route, and their addresses.

use std::net::IpAddr;

use anyhow::bail;
use nix::ifaddrs::getifaddrs;

/// Interface of the default route, of IPv4 if there is one.
pub fn of_default_route() -> anyhow::Result<String> {
    let v4 = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
    let v6 = std::fs::read_to_string("/proc/net/ipv6_route").unwrap_or_default();
    match default_v4(&v4).or_else(|| default_v6(&v6)) {
        Some(interface) => Ok(interface.to_owned()),
        None => bail!("this machine has no default route whose interface could have the addresses: set `ha.interface`"),
    }
}

/// Interface of the default route with the lowest metric in the text of `/proc/net/route`.
fn default_v4(text: &str) -> Option<&str> {
    let parse = |line| {
        let fields: Vec<&str> = str::split_whitespace(line).collect();
        let [interface, destination, _, _, _, _, metric, mask, ..] = fields[..] else {
            return None;
        };
        let is_default = destination == "00000000" && mask == "00000000";
        is_default.then(|| (metric.parse::<u32>().unwrap_or(u32::MAX), interface))
    };
    text.lines().filter_map(parse).min().map(|(_, interface)| interface)
}

/// Interface of the default route with the lowest metric in the text of `/proc/net/ipv6_route`.
fn default_v6(text: &str) -> Option<&str> {
    let parse = |line| {
        let fields: Vec<&str> = str::split_whitespace(line).collect();
        let [destination, length, _, _, _, metric, _, _, _, interface] = fields[..] else {
            return None;
        };
        let is_default = destination.bytes().all(|digit| digit == b'0') && length == "00" && interface != "lo";
        is_default.then(|| (u32::from_str_radix(metric, 16).unwrap_or(u32::MAX), interface))
    };
    text.lines().filter_map(parse).min().map(|(_, interface)| interface)
}

/// Address of an interface that does not move, of IPv4 if there is one.
pub fn own_address(interface: &str, moves: impl Fn(&IpAddr) -> bool) -> Option<IpAddr> {
    let addresses = getifaddrs().ok()?.filter(|entry| entry.interface_name == interface);
    let addresses = addresses.filter_map(|entry| {
        let address = entry.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    });
    let is_link_local = |address: &IpAddr| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    addresses
        .filter(|address| !moves(address) && !is_link_local(address))
        .min_by_key(IpAddr::is_ipv6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_route_with_the_lowest_metric_counts() {
        let text = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
                    eth1\t00000000\t010111AC\t0003\t0\t0\t200\t00000000\t0\t0\t0\n\
                    eth0\t00000000\t010011AC\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
                    eth2\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n";
        assert_eq!(default_v4(text), Some("eth0"));
        assert_eq!(default_v4("Iface\tDestination\n"), None);
        let zero = "0".repeat(32);
        let text = format!(
            "{zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200       lo\n\
             {zero} 00 {zero} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth3\n"
        );
        assert_eq!(default_v6(&text), Some("eth3"));
    }
}
