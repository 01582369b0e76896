//! Interfaces for the packets of shadows, until the programs look their next hops up.
//!
//! A program's own lookup (`bpf_fib_lookup`) is refused on a machine that does not forward, so the interface must be
//! known before.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use crate::kernel::netlink::Netlink;

/// Lifetime of an answer: routes change.
const ROUTE_TTL: Duration = Duration::from_secs(5);
/// Maximum number of cached answers.
const MAX_ROUTES: usize = 16_384;

/// Interfaces by destination.
#[derive(Default)]
pub(super) struct ShadowInterfaces {
    /// Interface of virtual addresses, if configured.
    vip_interface: Option<String>,
    routes: HashMap<IpAddr, (u32, Instant)>,
}

impl ShadowInterfaces {
    pub(super) fn new(vip_interface: Option<String>) -> Self {
        Self {
            vip_interface,
            ..Self::default()
        }
    }

    /// Returns the index of the interface to a host; 0 if the kernel has no route.
    pub(super) fn interface_to_host(&mut self, host: IpAddr) -> u32 {
        self.interface_to(host, || route(host))
    }

    /// Returns the index of the interface to clients of an address family: that of virtual addresses, or by default
    /// that of the default route.
    pub(super) fn interface_to_clients(&mut self, is_ipv4: bool) -> u32 {
        let anywhere: IpAddr = if is_ipv4 {
            Ipv4Addr::UNSPECIFIED.into()
        } else {
            Ipv6Addr::UNSPECIFIED.into()
        };
        let name = self.vip_interface.clone();
        self.interface_to(anywhere, || match name {
            Some(name) => nix::net::if_::if_nametoindex(name.as_str()).ok(),
            // An unused address of the Internet (RFC 5737, RFC 3849).
            None if is_ipv4 => route(Ipv4Addr::new(192, 0, 2, 1).into()),
            None => route(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()),
        })
    }

    fn interface_to(&mut self, address: IpAddr, ask: impl FnOnce() -> Option<u32>) -> u32 {
        let now = Instant::now();
        if let Some((index, until)) = self.routes.get(&address)
            && now < *until
        {
            return *index;
        }
        if self.routes.len() >= MAX_ROUTES {
            self.routes.clear();
        }
        let index = ask().unwrap_or_default();
        self.routes.insert(address, (index, now + ROUTE_TTL));
        index
    }
}

fn route(to: IpAddr) -> Option<u32> {
    Some(Netlink::open().ok()?.route_get(to).ok()??.ifindex)
}
