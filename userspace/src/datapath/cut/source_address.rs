//! Source address of leg B: the one that the kernel's routing would choose.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;

/// Lifetime of a cached choice: routes and addresses change.
const SOURCE_TTL: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct SourceAddresses(RefCell<HashMap<IpAddr, (IpAddr, Instant), FixedState>>);

impl SourceAddresses {
    /// Returns the source address for connections to `host`.
    pub(super) fn for_host(&self, host: IpAddr) -> Option<IpAddr> {
        let now = Instant::now();
        if let Some((source, until)) = self.0.borrow().get(&host)
            && now < *until
        {
            return Some(*source);
        }
        let source = kernel_choice(host).ok()?;
        self.0.borrow_mut().insert(host, (source, now + SOURCE_TTL));
        Some(source)
    }
}

/// Asks the kernel's routing for the source address: a connected datagram socket shows it, and sends nothing.
fn kernel_choice(host: IpAddr) -> std::io::Result<IpAddr> {
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
        assert_eq!(
            SourceAddresses::default().for_host(Ipv4Addr::LOCALHOST.into()),
            Some(Ipv4Addr::LOCALHOST.into())
        );
    }
}
