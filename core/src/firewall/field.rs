//! Fields of packets that rules read, and the words that rules use for their values.

use super::form::IpFamily;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketField {
    Source(IpFamily),
    Destination(IpFamily),
    SourcePort,
    DestinationPort,
    TcpFlags,
    /// Protocol above IP. With a family, it is that of its header.
    Protocol(Option<IpFamily>),
    Family,
    EtherType,
    InInterface,
    OutInterface,
    Mark,
    ConnectionMark,
    ConnectionState,
    ConnectionStatus,
    ConnectionDirection,
    SourceType,
    DestinationType,
    PacketType,
    /// Fragment offset and flags of IPv4.
    FragmentBits,
    /// Another field of the header of this family.
    Other(IpFamily),
    /// Field of a protocol that is not ours.
    Foreign,
    Unknown,
}

impl PacketField {
    /// Number of a word that rules use for this field.
    #[must_use]
    pub(crate) fn number_of(self, word: &str) -> Option<u128> {
        /// Number of a word that means another value than those of our packets.
        const ANOTHER: u128 = 0xffff_ffff;
        let known = |words: &[(&str, u128)]| {
            let found = words.iter().find(|(name, _)| name.eq_ignore_ascii_case(word));
            found.map(|(_, number)| *number)
        };
        match self {
            Self::Protocol(_) if OTHER_PROTOCOLS.contains(&word) => Some(ANOTHER),
            Self::Protocol(_) => known(&[("tcp", 6)]),
            Self::Family => known(&[("ipv4", 2), ("ipv6", 10)]),
            Self::EtherType => known(&[("ip", 0x800), ("ip6", 0x86dd), ("arp", 0x806)]),
            Self::TcpFlags => known(&TCP_FLAGS),
            Self::ConnectionState => known(&CONNECTION_STATES),
            Self::ConnectionStatus => known(&CONNECTION_STATUS),
            Self::ConnectionDirection => known(&[("original", 0), ("reply", 1)]),
            Self::SourceType | Self::DestinationType => known(&ADDRESS_TYPES),
            Self::PacketType => known(&[
                ("host", 0),
                ("unicast", 0),
                ("broadcast", 1),
                ("multicast", 2),
                ("other", 3),
            ]),
            _ => None,
        }
    }
}

/// Protocols that are not TCP. The machine's `/etc/protocols` has the names, so others may mean TCP.
const OTHER_PROTOCOLS: [&str; 22] = [
    "ah",
    "comp",
    "dccp",
    "esp",
    "gre",
    "icmp",
    "icmpv6",
    "igmp",
    "ipcomp",
    "ipencap",
    "ipip",
    "ipv6",
    "ipv6-icmp",
    "ipv6-nonxt",
    "mobility-header",
    "ospf",
    "pim",
    "sctp",
    "udp",
    "udplite",
    "vrrp",
    "l2tp",
];

const TCP_FLAGS: [(&str, u128); 9] = [
    ("fin", 0x01),
    ("syn", 0x02),
    ("rst", 0x04),
    ("psh", 0x08),
    ("ack", 0x10),
    ("urg", 0x20),
    ("ecn", 0x40),
    ("cwr", 0x80),
    ("none", 0),
];

/// Bits of connection tracking's state. The last two are iptables' own; they never hold for our packets.
const CONNECTION_STATES: [(&str, u128); 7] = [
    ("invalid", 1),
    ("established", 2),
    ("related", 4),
    ("new", 8),
    ("untracked", 64),
    ("snat", 128),
    ("dnat", 256),
];

const CONNECTION_STATUS: [(&str, u128); 7] = [
    ("expected", 1),
    ("seen-reply", 2),
    ("assured", 4),
    ("confirmed", 8),
    ("snat", 16),
    ("dnat", 32),
    ("dying", 512),
];

/// Types of routes (`RTN_UNICAST` and others).
const ADDRESS_TYPES: [(&str, u128); 9] = [
    ("unspec", 0),
    ("unicast", 1),
    ("local", 2),
    ("broadcast", 3),
    ("anycast", 4),
    ("multicast", 5),
    ("blackhole", 6),
    ("unreachable", 7),
    ("prohibit", 8),
];
