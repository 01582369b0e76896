//! Classes of packets of a listener's connections, and the values that their fields have.

use std::net::{IpAddr, SocketAddr};

use super::facts::{HostWay, ListenerFacts};
use super::field::PacketField;
use super::form::{IpFamily, PacketHook};
use super::pattern::{NumberRanges, number_of_address};
use super::values::FieldValues;

/// Packets that rules treat alike, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PacketClass {
    /// As in a sentence.
    pub(crate) name: &'static str,
    pub(crate) family: IpFamily,
    kind: PacketKind,
    source: FieldValues,
    source_port: FieldValues,
    destination: FieldValues,
    destination_port: FieldValues,
    /// Interface by which the packets arrive or leave.
    interface: FieldValues,
    /// Whether types of addresses may be those of a VRF.
    has_masters: bool,
    /// Whether masquerading would change no address.
    pub(crate) has_sole_address: bool,
}

/// Place of packets in a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketKind {
    ClientSyn,
    FromClient,
    ToClient,
    HostSyn,
    ToHost,
    FromHost,
}

/// Place of a base chain, on which the values of some fields depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PacketPlace {
    pub(crate) hook: PacketHook,
    /// Whether connection tracking has seen the packets; `None` if that is not known.
    pub(crate) is_tracked: Option<bool>,
}

impl PacketPlace {
    /// Whether the chain is one of devices, below IP.
    const fn is_of_device(self) -> bool {
        matches!(self.hook, PacketHook::Ingress | PacketHook::Egress)
    }
}

/// Packets between clients and this machine. Those of connections that are passed up count as the others do: connection
/// tracking gets an entry of an established connection for each.
const OF_CLIENTS: [PacketKind; 3] = [PacketKind::ClientSyn, PacketKind::FromClient, PacketKind::ToClient];

/// Names of the classes, by [`PacketKind`].
const NAMES: [&str; 6] = [
    "SYNs from clients",
    "later packets from clients",
    "packets to clients",
    "SYNs to hosts",
    "later packets to hosts",
    "packets from hosts",
];

/// Flags of later packets: ACK alone, and with PSH, FIN or URG; RST with and without ACK. Combinations that no TCP sends
/// are not considered.
const LATER_FLAGS: [u128; 10] = [0x10, 0x18, 0x11, 0x19, 0x30, 0x38, 0x31, 0x39, 0x04, 0x14];
/// Bits of connection tracking's status that may be set: `seen-reply`, `assured`, `confirmed`, and those from
/// `IPS_SRC_NAT_DONE` on. The connection is not expected, and no address is translated.
const POSSIBLE_STATUS: u128 = 0xffff_ff8e;
/// Flags of a SYN.
const SYN_FLAGS: [u128; 1] = [0x02];
/// Flags of a SYN-ACK.
const SYN_ACK_FLAGS: [u128; 1] = [0x12];
/// Flags of explicit congestion notification, which any packet may have beside these.
const ECN_FLAGS: [u128; 4] = [0, 0x40, 0x80, 0xc0];

impl PacketClass {
    /// Returns the classes of packets between clients with some addresses and this machine's addresses, all of one family.
    #[must_use]
    pub(crate) fn of_clients(clients: &NumberRanges, binds: &[SocketAddr], facts: &ListenerFacts) -> Vec<Self> {
        let Some(family) = binds.first().map(|bind| family_of(bind.ip())) else {
            return Vec::new();
        };
        let own = addresses(binds.iter().map(SocketAddr::ip));
        let ports = ports(binds.iter().map(SocketAddr::port));
        let interface = any_of(&facts.interfaces);
        let of = |kind| {
            let clients = (
                FieldValues::Numbers(clients.clone()),
                FieldValues::Numbers([(0, 0xffff)].into_iter().collect()),
            );
            Self::of_kind(kind, family, (clients, (own.clone(), ports.clone())), interface.clone())
        };
        OF_CLIENTS
            .map(|kind| Self {
                has_masters: facts.has_masters,
                ..of(kind)
            })
            .into()
    }

    /// Returns the classes of packets between this machine and hosts, which are of one family.
    #[must_use]
    pub(crate) fn of_hosts(hosts: &[&HostWay], facts: &ListenerFacts) -> Vec<Self> {
        let Some(family) = hosts.first().map(|host| family_of(host.address.ip())) else {
            return Vec::new();
        };
        let sources = addresses(hosts.iter().flat_map(|host| host.sources.iter().copied()));
        let theirs = addresses(hosts.iter().map(|host| host.address.ip()));
        let ports = ports(hosts.iter().map(|host| host.address.port()));
        let interface = interfaces_of(hosts, &[]);
        // Answers may arrive by another interface: by one of those on the way to hosts, or of clients.
        let of_answers = if facts.interfaces.is_empty() {
            FieldValues::NotLoopback
        } else {
            interfaces_of(hosts, &facts.interfaces)
        };
        let (first, last) = facts.own_ports;
        let own_ports: NumberRanges = [(first.into(), last.into())].into_iter().collect();
        let of = |kind| {
            let own = (sources.clone(), FieldValues::Numbers(own_ports.clone()));
            let ends = (own, (theirs.clone(), ports.clone()));
            let interface = match kind {
                PacketKind::FromHost => of_answers.clone(),
                _ => interface.clone(),
            };
            let mut class = Self::of_kind(kind, family, ends, interface);
            class.has_sole_address = hosts.iter().all(|host| host.has_sole_address);
            class.has_masters = facts.has_masters;
            class
        };
        [PacketKind::HostSyn, PacketKind::ToHost, PacketKind::FromHost]
            .map(of)
            .into()
    }

    /// Returns a class. `ends`: addresses and ports of the end that opens the connection, and of the other.
    fn of_kind(
        kind: PacketKind,
        family: IpFamily,
        ends: ((FieldValues, FieldValues), (FieldValues, FieldValues)),
        interface: FieldValues,
    ) -> Self {
        let is_reply = matches!(kind, PacketKind::ToClient | PacketKind::FromHost);
        let (from, to) = if is_reply { (ends.1, ends.0) } else { ends };
        Self {
            name: NAMES[kind as usize],
            family,
            kind,
            source: from.0,
            source_port: from.1,
            destination: to.0,
            destination_port: to.1,
            interface,
            has_masters: false,
            has_sole_address: false,
        }
    }

    const fn arrives(&self) -> bool {
        matches!(
            self.kind,
            PacketKind::ClientSyn | PacketKind::FromClient | PacketKind::FromHost
        )
    }

    /// Returns the field that has the client's address.
    #[must_use]
    pub(crate) const fn client_field(&self) -> Option<PacketField> {
        match self.kind {
            PacketKind::ClientSyn | PacketKind::FromClient => Some(PacketField::Source(self.family)),
            PacketKind::ToClient => Some(PacketField::Destination(self.family)),
            PacketKind::HostSyn | PacketKind::ToHost | PacketKind::FromHost => None,
        }
    }

    const fn is_reply(&self) -> bool {
        matches!(self.kind, PacketKind::ToClient | PacketKind::FromHost)
    }

    /// Whether the packets are the first of their connections.
    #[must_use]
    pub(crate) const fn is_first(&self) -> bool {
        matches!(self.kind, PacketKind::ClientSyn | PacketKind::HostSyn)
    }

    /// Whether the packets would pass a hook.
    #[must_use]
    pub(crate) const fn passes(&self, hook: PacketHook) -> bool {
        match hook {
            PacketHook::Ingress | PacketHook::Prerouting | PacketHook::Input => self.arrives(),
            PacketHook::Output | PacketHook::Postrouting | PacketHook::Egress => !self.arrives(),
            PacketHook::Forward => false,
        }
    }

    /// Returns the values that a field has at a place.
    #[must_use]
    pub(crate) fn values(&self, field: PacketField, at: PacketPlace) -> FieldValues {
        let of_family = |family: IpFamily, values: FieldValues| {
            if family == self.family {
                values
            } else {
                FieldValues::Absent
            }
        };
        let (number, ether_type) = match self.family {
            IpFamily::V4 => (2, 0x800),
            IpFamily::V6 => (10, 0x86dd),
        };
        let of_interface = |is_ours: bool| {
            if is_ours {
                self.interface.clone()
            } else {
                FieldValues::Nameless
            }
        };
        match field {
            // Devices below the interface have chains too, and chains of devices have a family of their own.
            PacketField::Family | PacketField::InInterface | PacketField::OutInterface if at.is_of_device() => {
                FieldValues::Any
            }
            PacketField::Source(family) => of_family(family, self.source.clone()),
            PacketField::Destination(family) => of_family(family, self.destination.clone()),
            PacketField::SourcePort => self.source_port.clone(),
            PacketField::DestinationPort => self.destination_port.clone(),
            PacketField::TcpFlags => FieldValues::numbers(self.flags()),
            PacketField::Protocol(family) => of_family(family.unwrap_or(self.family), FieldValues::numbers([6])),
            PacketField::Family => FieldValues::numbers([number]),
            PacketField::EtherType => FieldValues::numbers([ether_type]),
            PacketField::InInterface => of_interface(self.arrives()),
            PacketField::OutInterface => of_interface(!self.arrives()),
            PacketField::Mark => FieldValues::numbers([0]),
            // Fragments, and packets with extension headers, are left to the kernel. The other bits may be set.
            PacketField::FragmentBits => of_family(IpFamily::V4, FieldValues::numbers([0, 0x4000, 0x8000, 0xc000])),
            PacketField::Other(family) => of_family(family, FieldValues::Any),
            PacketField::Foreign => FieldValues::Absent,
            PacketField::PacketType if self.arrives() => FieldValues::numbers([0]),
            // `local`, or `unicast`: hosts and clients on this machine are not routed in the kernel.
            PacketField::SourceType | PacketField::DestinationType if self.has_masters => FieldValues::Any,
            PacketField::DestinationType => FieldValues::numbers([if self.arrives() { 2 } else { 1 }]),
            PacketField::SourceType if !self.arrives() => FieldValues::numbers([2]),
            PacketField::ConnectionState
            | PacketField::ConnectionMark
            | PacketField::ConnectionStatus
            | PacketField::ConnectionDirection => self.of_tracking(field, at.is_tracked),
            PacketField::PacketType | PacketField::SourceType | PacketField::Unknown => FieldValues::Any,
        }
    }

    /// Values of connection tracking.
    fn of_tracking(&self, field: PacketField, is_tracked: Option<bool>) -> FieldValues {
        match (field, is_tracked) {
            // Without a connection the state is `invalid`, and rules about other values do not match.
            (PacketField::ConnectionState, Some(false)) => FieldValues::numbers([1]),
            (PacketField::ConnectionState, Some(true)) => FieldValues::numbers([if self.is_first() { 8 } else { 2 }]),
            (PacketField::ConnectionMark, Some(true)) => FieldValues::numbers([0]),
            (PacketField::ConnectionDirection, Some(true)) => FieldValues::numbers([u128::from(self.is_reply())]),
            (PacketField::ConnectionStatus, Some(true)) => FieldValues::Bits(POSSIBLE_STATUS),
            _ => FieldValues::Any,
        }
    }

    fn flags(&self) -> impl Iterator<Item = u128> {
        let (some, more): (&[u128], &[u128]) = match self.kind {
            PacketKind::ClientSyn | PacketKind::HostSyn => (&SYN_FLAGS, &[]),
            PacketKind::FromClient | PacketKind::ToHost => (&LATER_FLAGS, &[]),
            PacketKind::ToClient | PacketKind::FromHost => (&LATER_FLAGS, &SYN_ACK_FLAGS),
        };
        let all = some.iter().chain(more);
        all.flat_map(|flags| ECN_FLAGS.iter().map(move |ecn| flags | ecn))
    }
}

/// Interfaces on the way to hosts, and more; nothing is known if that is so of a host.
fn interfaces_of(hosts: &[&HostWay], more: &[String]) -> FieldValues {
    if hosts.iter().any(|host| host.interfaces.is_empty()) {
        return FieldValues::NotLoopback;
    }
    let mut names: Vec<_> = hosts
        .iter()
        .flat_map(|host| &host.interfaces)
        .chain(more)
        .cloned()
        .collect();
    names.sort_unstable();
    names.dedup();
    FieldValues::Names(names.into())
}

fn any_of(interfaces: &[String]) -> FieldValues {
    if interfaces.is_empty() {
        FieldValues::NotLoopback
    } else {
        FieldValues::Names(interfaces.into())
    }
}

#[must_use]
pub(crate) const fn family_of(address: IpAddr) -> IpFamily {
    match address {
        IpAddr::V4(_) => IpFamily::V4,
        IpAddr::V6(_) => IpFamily::V6,
    }
}

fn addresses(addresses: impl Iterator<Item = IpAddr>) -> FieldValues {
    FieldValues::numbers(addresses.map(number_of_address))
}

fn ports(ports: impl Iterator<Item = u16>) -> FieldValues {
    FieldValues::numbers(ports.map(u128::from))
}

/// Returns the addresses that clients may have. SYNs from the others are left to the kernel (`is_martian` of the program).
#[must_use]
pub(crate) fn any_unicast(family: IpFamily) -> NumberRanges {
    const V4_LOOPBACK: u128 = 0x7f00_0000;
    const V4_MULTICAST: u128 = 0xe000_0000;
    const V4_RESERVED: u128 = 0xf000_0000;
    const V6_MULTICAST: u128 = 0xff << 120;
    match family {
        IpFamily::V4 => [
            (1, V4_LOOPBACK - 1),
            (V4_LOOPBACK + 0x0100_0000, V4_MULTICAST - 1),
            (V4_RESERVED, 0xffff_fffe),
        ]
        .into_iter()
        .collect(),
        IpFamily::V6 => [(2, V6_MULTICAST - 1)].into_iter().collect(),
    }
}
