//! Numbers of the IP headers: protocols and lengths.

/// `IPPROTO_ICMP`.
pub const ICMP: u32 = 1;
/// `IPPROTO_TCP`.
pub const TCP: u32 = 6;
/// `IPPROTO_UDP`.
pub const UDP: u32 = 17;
/// `IPPROTO_ICMPV6`.
pub const ICMPV6: u32 = 58;

/// Length of an IPv4 header without options.
pub const V4_HEADER: u32 = 20;
/// Length of an IPv6 header without extension headers.
pub const V6_HEADER: u32 = 40;
/// Length of a UDP header.
pub const UDP_HEADER: u32 = 8;
