//! Interfaces, routes and neighbours, as the kernel knows them (rtnetlink(7)).

mod link_watch;
mod local_routes;
mod ways_out;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::link::{InfoData, InfoVlan, LinkAttribute, LinkInfo, LinkLayerType, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

pub use link_watch::LinkWatch;
pub use ways_out::WaysOut;

/// An interface of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    pub name: String,
    pub is_ethernet: bool,
    pub is_loopback: bool,
    pub mac: [u8; 6],
    pub mtu: u32,
    /// Interface that it belongs to: a VRF, a bridge, or a bond.
    pub master: Option<u32>,
    /// Interface below and VLAN tag, where the interface is one of a VLAN.
    pub vlan: Option<(u32, u16)>,
}

/// Next hop to an address: the answer of a route lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHop {
    pub ifindex: u32,
    /// Address to resolve on the link: a router's, or the destination itself.
    pub address: IpAddr,
    /// Source address that the kernel prefers for our packets.
    pub source: Option<IpAddr>,
    /// MTU of the route, if it has one.
    pub mtu: Option<u32>,
    /// True if the destination is an address of this machine.
    pub is_local: bool,
}

/// Ethernet addresses by interface and address, and whether each has been confirmed recently.
pub type Neighbours = HashMap<(u32, IpAddr), ([u8; 6], bool)>;

/// A netlink socket for requests to the kernel.
pub struct Netlink(Socket);

impl Netlink {
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self(socket))
    }

    /// Returns all interfaces, by index.
    pub fn links(&self) -> io::Result<HashMap<u32, Link>> {
        let mut links = HashMap::new();
        let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
        self.request(request, NLM_F_DUMP, |answer| {
            let RouteNetlinkMessage::NewLink(message) = answer else {
                return;
            };
            let (mut link, mut below, mut tag) = (Link::default(), None, None);
            link.is_ethernet = message.header.link_layer_type == LinkLayerType::Ether;
            link.is_loopback = message.header.link_layer_type == LinkLayerType::Loopback;
            for attribute in message.attributes {
                match attribute {
                    LinkAttribute::IfName(name) => link.name = name,
                    LinkAttribute::Address(mac) => link.mac = mac.try_into().unwrap_or_default(),
                    LinkAttribute::Mtu(mtu) => link.mtu = mtu,
                    LinkAttribute::Controller(index) => link.master = Some(index).filter(|index| *index != 0),
                    LinkAttribute::Link(index) => below = Some(index),
                    LinkAttribute::LinkInfo(infos) => {
                        for info in infos {
                            if let LinkInfo::Data(InfoData::Vlan(vlan)) = info {
                                tag = vlan.into_iter().find_map(|one| match one {
                                    InfoVlan::Id(id) => Some(id),
                                    _ => None,
                                });
                            }
                        }
                    }
                    _ => {}
                }
            }
            link.vlan = below.zip(tag);
            links.insert(message.header.index, link);
        })?;
        Ok(links)
    }

    /// Returns the known Ethernet addresses of neighbours, by interface and address.
    pub fn neighbours(&self) -> io::Result<Neighbours> {
        let mut neighbours = HashMap::new();
        let request = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
        self.request(request, NLM_F_DUMP, |answer| {
            let RouteNetlinkMessage::NewNeighbour(message) = answer else {
                return;
            };
            let fresh = match message.header.state {
                NeighbourState::Reachable | NeighbourState::Permanent | NeighbourState::Noarp => true,
                NeighbourState::Stale | NeighbourState::Delay | NeighbourState::Probe => false,
                _ => return,
            };
            let (mut address, mut mac) = (None, None);
            for attribute in message.attributes {
                match attribute {
                    NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => address = Some(IpAddr::V4(v4)),
                    NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => address = Some(IpAddr::V6(v6)),
                    NeighbourAttribute::LinkLayerAddress(bytes) => mac = bytes.try_into().ok(),
                    _ => {}
                }
            }
            if let (Some(address), Some(mac)) = (address, mac) {
                neighbours.insert((message.header.ifindex, address), (mac, fresh));
            }
        })?;
        Ok(neighbours)
    }

    /// Returns the indices of the interfaces that routes use. Routes that every interface has do not count: those of
    /// the local table, and link-local and multicast ones of IPv6.
    pub fn routed_links(&self) -> io::Result<BTreeSet<u32>> {
        let mut used = BTreeSet::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut request = RouteMessage::default();
            request.header.address_family = family;
            self.request(RouteNetlinkMessage::GetRoute(request), NLM_F_DUMP, |answer| {
                if let RouteNetlinkMessage::NewRoute(route) = answer
                    && route.header.address_family == family
                    && route.header.kind == RouteType::Unicast
                    && !is_of_every_link(&route)
                {
                    used.extend(route.attributes.iter().flat_map(outgoing_links));
                }
            })?;
        }
        Ok(used)
    }

    /// Looks up the route to an address; `None` where there is none.
    pub fn route_get(&self, to: IpAddr) -> io::Result<Option<NextHop>> {
        let mut request = RouteMessage::default();
        (request.header.address_family, request.header.destination_prefix_length) = match to {
            IpAddr::V4(_) => (AddressFamily::Inet, 32),
            IpAddr::V6(_) => (AddressFamily::Inet6, 128),
        };
        request.attributes.push(RouteAttribute::Destination(to.into()));
        let mut found = None;
        let asked = self.request(RouteNetlinkMessage::GetRoute(request), 0, |answer| {
            let RouteNetlinkMessage::NewRoute(message) = answer else {
                return;
            };
            let mut way = NextHop {
                ifindex: 0,
                address: to,
                source: None,
                mtu: None,
                is_local: message.header.kind == RouteType::Local,
            };
            for attribute in message.attributes {
                match attribute {
                    RouteAttribute::Oif(index) => way.ifindex = index,
                    RouteAttribute::Gateway(RouteAddress::Inet(v4)) => way.address = v4.into(),
                    RouteAttribute::Gateway(RouteAddress::Inet6(v6)) => way.address = v6.into(),
                    RouteAttribute::PrefSource(RouteAddress::Inet(v4)) => way.source = Some(v4.into()),
                    RouteAttribute::PrefSource(RouteAddress::Inet6(v6)) => way.source = Some(v6.into()),
                    RouteAttribute::Metrics(metrics) => {
                        way.mtu = metrics.iter().find_map(|metric| match metric {
                            RouteMetric::Mtu(mtu) => Some(*mtu),
                            _ => None,
                        });
                    }
                    _ => {}
                }
            }
            found = (way.ifindex != 0).then_some(way);
        });
        match asked {
            Ok(()) => Ok(found),
            // ENETUNREACH and EHOSTUNREACH say that there is no route, which is no error here.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENETUNREACH | libc::EHOSTUNREACH)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes the kernel resolve, or verify, a neighbour's Ethernet address (`NTF_USE`).
    pub fn resolve(&self, ifindex: u32, address: IpAddr) -> io::Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.ifindex = ifindex;
        message.header.flags = NeighbourFlags::Use;
        message.header.state = NeighbourState::None;
        let destination = match address {
            IpAddr::V4(v4) => {
                message.header.family = AddressFamily::Inet;
                NeighbourAddress::Inet(v4)
            }
            IpAddr::V6(v6) => {
                message.header.family = AddressFamily::Inet6;
                NeighbourAddress::Inet6(v6)
            }
        };
        message.attributes.push(NeighbourAttribute::Destination(destination));
        let flags = NLM_F_CREATE | NLM_F_REPLACE | NLM_F_ACK;
        self.request(RouteNetlinkMessage::NewNeighbour(message), flags, |_| {})
    }

    /// Sends a request and hands out the answers to it.
    pub(crate) fn request(
        &self,
        message: RouteNetlinkMessage,
        flags: u16,
        mut each: impl FnMut(RouteNetlinkMessage),
    ) -> io::Result<()> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        let several = flags & NLM_F_DUMP == NLM_F_DUMP;
        let mut request = NetlinkMessage::new(header, NetlinkPayload::from(message));
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.0.send(&bytes, 0)?;
        loop {
            let (answer, _) = self.0.recv_from_full()?;
            let mut rest = answer.as_slice();
            while !rest.is_empty() {
                let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(io::Error::other)?;
                let length = (message.header.length as usize).next_multiple_of(4);
                match message.payload {
                    NetlinkPayload::Done(_) => return Ok(()),
                    NetlinkPayload::Error(error) => {
                        return error.code.map_or(Ok(()), |_| Err(error.to_io()));
                    }
                    NetlinkPayload::InnerMessage(inner) => each(inner),
                    _ => {}
                }
                rest = rest.get(length..).unwrap_or_default();
                if !several && flags & NLM_F_ACK == 0 {
                    return Ok(());
                }
            }
        }
    }
}

/// Whether a route is one of IPv6 that every interface has.
fn is_of_every_link(route: &RouteMessage) -> bool {
    route.attributes.iter().any(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet6(to)) => to.is_unicast_link_local() || to.is_multicast(),
        _ => false,
    })
}

/// Interfaces that an attribute of a route names; several where the route has several next hops.
fn outgoing_links(attribute: &RouteAttribute) -> Vec<u32> {
    match attribute {
        RouteAttribute::Oif(index) => vec![*index],
        RouteAttribute::MultiPath(hops) => hops.iter().map(|hop| hop.interface_index).collect(),
        _ => Vec::new(),
    }
}
