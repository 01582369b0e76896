//! Ways to other networks, through a router.

use std::collections::BTreeSet;
use std::io;

use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::{Netlink, is_of_every_link, outgoing_links};

/// Interfaces by which packets of one address family leave for other networks, in all routing tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaysOut {
    /// Interfaces with a default route.
    default: BTreeSet<u32>,
    /// Interfaces with any route through a router.
    all: BTreeSet<u32>,
}

impl WaysOut {
    /// Whether an answer that leaves by the interface of the request reaches its sender, wherever that is: the
    /// interface has a default route, or no other one has a way to other networks.
    #[must_use]
    pub fn leads_back(&self, ifindex: u32) -> bool {
        self.default.contains(&ifindex) || self.all.iter().all(|other| *other == ifindex)
    }
}

impl Netlink {
    /// Returns the ways out of IPv4, or else of IPv6.
    pub fn ways_out(&self, is_v4: bool) -> io::Result<WaysOut> {
        let family = if is_v4 {
            AddressFamily::Inet
        } else {
            AddressFamily::Inet6
        };
        let mut request = RouteMessage::default();
        request.header.address_family = family;
        let mut found = WaysOut::default();
        self.request(RouteNetlinkMessage::GetRoute(request), NLM_F_DUMP, |answer| {
            if let RouteNetlinkMessage::NewRoute(route) = answer
                && route.header.address_family == family
                && route.header.kind == RouteType::Unicast
                && !is_of_every_link(&route)
            {
                found.add(&route);
            }
        })?;
        Ok(found)
    }
}

impl WaysOut {
    fn add(&mut self, route: &RouteMessage) {
        let is_default = route.header.destination_prefix_length == 0;
        let has_router = |attribute: &RouteAttribute| match attribute {
            RouteAttribute::Gateway(_) | RouteAttribute::Via(_) => true,
            RouteAttribute::MultiPath(hops) => !hops.is_empty(),
            _ => false,
        };
        if is_default || route.attributes.iter().any(has_router) {
            let links: Vec<_> = route.attributes.iter().flat_map(outgoing_links).collect();
            self.all.extend(&links);
            if is_default {
                self.default.extend(links);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use netlink_packet_route::route::RouteAddress;

    use super::*;

    fn ways(routes: &[(u8, u32, bool)]) -> WaysOut {
        let mut ways = WaysOut::default();
        for (prefix, ifindex, has_router) in routes {
            let mut route = RouteMessage::default();
            route.header.destination_prefix_length = *prefix;
            route.attributes.push(RouteAttribute::Oif(*ifindex));
            if *has_router {
                let router = RouteAddress::Inet(Ipv4Addr::new(10, 0, 0, 1));
                route.attributes.push(RouteAttribute::Gateway(router));
            }
            ways.add(&route);
        }
        ways
    }

    #[test]
    fn links_lead_back_by_default_route_or_if_no_other_has_a_router() {
        let (front, back) = (2, 3);
        for (routes, expected) in [
            (&[(24, front, false), (24, back, false)][..], [true, true]),
            (
                &[(0, front, true), (24, front, false), (24, back, false)],
                [true, false],
            ),
            (&[(0, front, true), (0, back, true)], [true, true]),
            (&[(16, back, true), (24, front, false)], [false, true]),
            (&[(0, front, false), (16, back, true)], [true, false]),
        ] {
            let ways = ways(routes);
            assert_eq!([front, back].map(|link| ways.leads_back(link)), expected, "{routes:?}");
        }
    }
}
