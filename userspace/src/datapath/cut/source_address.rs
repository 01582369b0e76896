//! Source addresses of leg B: those that move with the client's virtual address, or the kernel's routing choice.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;
use signalbox_core::availability::ha::floating::FloatingSources;

use crate::kernel::interfaces::name_of_address;

/// Lifetime of a cached choice: routes and addresses change.
const SOURCE_TTL: Duration = Duration::from_secs(1);

/// Source addresses for connections to a host.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SourceChoice {
    /// Addresses that move together with the client's virtual address, to be tried first.
    pub(super) floating: Vec<IpAddr>,
    /// Address that the kernel's routing would choose.
    pub(super) ordinary: IpAddr,
}

/// Cached choices. The key is the group of the client's virtual address, the virtual address itself if it may be the
/// source, and the host.
type Choices = HashMap<(Option<IpAddr>, IpAddr), (Rc<SourceChoice>, Instant), FixedState>;

#[derive(Default)]
pub(super) struct SourceAddresses(RefCell<Choices>);

impl SourceAddresses {
    /// Returns the source addresses for connections to `host` from clients of `vip`.
    pub(super) fn for_host(&self, floating: &FloatingSources, vip: IpAddr, host: IpAddr) -> Option<Rc<SourceChoice>> {
        let group = floating.group_of(vip);
        let key = (group.map(|_| vip), host);
        let now = Instant::now();
        if let Some((choice, until)) = self.0.borrow().get(&key)
            && now < *until
        {
            return Some(Rc::clone(choice));
        }
        let ordinary = kernel_choice(host).ok()?;
        let floating = match group {
            Some(group) => floating_choice(floating, group, vip, ordinary, name_of_address),
            None => Vec::new(),
        };
        let choice = Rc::new(SourceChoice { floating, ordinary });
        self.0.borrow_mut().insert(key, (Rc::clone(&choice), now + SOURCE_TTL));
        Some(choice)
    }
}

/// Returns the group's own source addresses in the host's network. Without any, returns the virtual address itself if
/// the interface that has it leads to the host, as `interface` tells.
pub(crate) fn floating_choice<I: PartialEq>(
    floating: &FloatingSources,
    group: usize,
    vip: IpAddr,
    ordinary: IpAddr,
    mut interface: impl FnMut(IpAddr) -> Option<I>,
) -> Vec<IpAddr> {
    let sources: Vec<_> = floating.sources_for(group, ordinary).collect();
    if !sources.is_empty() || vip.is_ipv4() != ordinary.is_ipv4() {
        return sources;
    }
    match (interface(vip), interface(ordinary)) {
        (Some(of_vip), Some(of_host)) if of_vip == of_host => vec![vip],
        _ => Vec::new(),
    }
}

/// Asks the kernel's routing for the source address: a connected datagram socket shows it without sending a packet.
pub(crate) fn kernel_choice(host: IpAddr) -> std::io::Result<IpAddr> {
    let any: IpAddr = match host {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(SocketAddr::new(host, 9))?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_reached_from_loopback() {
        let loopback = Ipv4Addr::LOCALHOST.into();
        let choice = SourceAddresses::default().for_host(&FloatingSources::default(), loopback, loopback);
        assert_eq!(
            choice.map(|choice| (choice.floating.clone(), choice.ordinary)),
            Some((Vec::new(), loopback))
        );
    }
}
