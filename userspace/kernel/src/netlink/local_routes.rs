//! Local routes that signalbox adds: addresses whose packets this machine takes though no interface has them.

use std::io;
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::Netlink;

/// Mark of our routes (`proto 91` in `ip route`): those of a process that was killed are found by it.
const OUR_PROTOCOL: RouteProtocol = RouteProtocol::Other(91);
/// Priority after the kernel's own route of an address that an interface has: ours counts as soon as that is gone, so
/// that packets always find a route.
const PRIORITY: u32 = 91;
/// Index of the loopback interface. Not the address' former one: there the kernel would name the address as its own in
/// ARP requests.
const LOOPBACK: u32 = 1;

impl Netlink {
    /// Takes packets to an address until [`Self::remove_local_route`]. An existing route stays.
    pub fn add_local_route(&self, address: IpAddr) -> io::Result<()> {
        let request = RouteNetlinkMessage::NewRoute(route(address));
        self.request(request, NLM_F_CREATE | NLM_F_REPLACE | NLM_F_ACK, |_| {})
    }

    /// Stops taking packets to an address. A missing route is no error.
    pub fn remove_local_route(&self, address: IpAddr) -> io::Result<()> {
        let removed = self.request(RouteNetlinkMessage::DelRoute(route(address)), NLM_F_ACK, |_| {});
        match removed {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            other => other,
        }
    }

    /// Returns the addresses of all our local routes.
    pub fn local_routes(&self) -> io::Result<Vec<IpAddr>> {
        let mut found = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut request = RouteMessage::default();
            request.header.address_family = family;
            self.request(RouteNetlinkMessage::GetRoute(request), NLM_F_DUMP, |answer| {
                if let RouteNetlinkMessage::NewRoute(route) = answer
                    && route.header.kind == RouteType::Local
                    && route.header.protocol == OUR_PROTOCOL
                {
                    found.extend(route.attributes.iter().find_map(destination));
                }
            })?;
        }
        Ok(found)
    }
}

fn route(address: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    (message.header.address_family, message.header.destination_prefix_length) = match address {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    message.header.table = libc::RT_TABLE_LOCAL;
    message.header.protocol = OUR_PROTOCOL;
    message.header.scope = if address.is_ipv4() {
        RouteScope::Host
    } else {
        RouteScope::Universe
    };
    message.header.kind = RouteType::Local;
    message.attributes = vec![
        RouteAttribute::Destination(address.into()),
        RouteAttribute::Oif(LOOPBACK),
        RouteAttribute::Priority(PRIORITY),
    ];
    message
}

fn destination(attribute: &RouteAttribute) -> Option<IpAddr> {
    match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(v4)) => Some((*v4).into()),
        RouteAttribute::Destination(RouteAddress::Inet6(v6)) => Some((*v6).into()),
        _ => None,
    }
}
