//! Addresses in the form of packets and of BPF maps.

use std::net::IpAddr;

/// Address as 16 bytes, IPv4 in its IPv4-mapped form.
#[must_use]
pub fn ipv4_mapped(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}
