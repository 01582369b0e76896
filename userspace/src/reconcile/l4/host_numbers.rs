//! Numbers of hosts in the kernel's maps. A number stays while flows of its host exist, even over a restart.
//!
//! A machine is one host for all services of the configuration. Each endpoint of an exposed application is a separate
//! host: several may share an address, and a service has one port on each host.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use signalbox_common::l4::abi::MAX_HOSTS;
use signalbox_core::model::services::Transport;
use signalbox_core::model::{Cluster, Host, Service};
use signalbox_core::wire::address::ipv4_mapped;

use super::services_error::ServicesError;
use crate::kernel::address::from_words;
use crate::kernel::l4::L4Kernel as Kernel;

/// Destination of a service's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum HostId {
    /// A machine.
    Machine(IpAddr),
    /// An endpoint of an exposed application.
    Endpoint(SocketAddr),
    /// Host of an earlier process that is no longer configured: its address and number.
    Orphaned(IpAddr, u32),
}

impl HostId {
    /// Returns the id of a cluster's host.
    pub(super) fn of(cluster: &Cluster, host: &Host) -> Self {
        match host.ports.get(&cluster.name) {
            Some(port) if is_exposed(&cluster.name) => Self::Endpoint(SocketAddr::new(host.address, *port)),
            _ => Self::Machine(host.address),
        }
    }

    pub(super) const fn address(&self) -> IpAddr {
        match self {
            Self::Machine(address) | Self::Orphaned(address, _) => *address,
            Self::Endpoint(at) => at.ip(),
        }
    }

    /// Returns the bytes that decide the host's slots in a table.
    pub(super) fn identity(&self) -> [u8; 16] {
        let mut identity = ipv4_mapped(self.address());
        if let Self::Endpoint(at) = self {
            let [high, low] = at.port().to_be_bytes();
            // The changed bits are constant in all host addresses, so no other address has this identity.
            identity[0] ^= high;
            identity[1] ^= low;
        }
        identity
    }
}

/// Returns whether a service, or its cluster, belongs to an application: only those names have a slash.
fn is_exposed(name: &str) -> bool {
    name.contains('/')
}

/// Configured name and protocol of a service. Its number belongs to both, so that flows of one protocol stay flows of
/// their service whatever the configuration says of the other.
pub(super) type ServiceId = (String, Transport);

/// Returns the id of a service.
pub(super) fn service_id(service: &Service) -> ServiceId {
    (service.configured_name().to_owned(), service.protocol)
}

/// Returns a service's name in the kernel's table of names, which has its protocol next to it. The name of an exposed
/// service is its address: names of applications come and go, and the kernel's table forgets no name.
pub(super) fn kernel_name(service: &Service) -> String {
    let first = service.listen.first().filter(|_| service.is_exposed());
    first.map_or_else(|| service.configured_name().to_owned(), ToString::to_string)
}

/// Numbers of hosts, by id.
#[derive(Default)]
pub(super) struct HostNumbers(HashMap<HostId, u32>);

impl HostNumbers {
    /// Reads the hosts that an earlier process has left.
    pub(super) fn of(kernel: &Kernel) -> Self {
        let is_seat = |service: u16| {
            let parts = kernel.names.parts(u32::from(service));
            parts.is_some_and(|parts| parts.get(1).is_some_and(|name| name.contains(':')))
        };
        let ports = kernel.own_ports().unwrap_or_default().into_iter();
        let ports: HashMap<u32, u16> = ports
            .filter(|((service, _), _)| is_seat(*service))
            .map(|((_, host), port)| (host, port))
            .collect();
        let mut places = Self::default();
        for (number, host) in (0..)
            .zip(kernel.found_hosts())
            .filter(|(_, host)| host.address != [0; 4])
        {
            let address = from_words(host.address);
            let place = match ports.get(&number) {
                Some(port) => HostId::Endpoint(SocketAddr::new(address, *port)),
                None => HostId::Machine(address),
            };
            let is_new = !places.0.contains_key(&place);
            let place = if is_new {
                place
            } else {
                HostId::Orphaned(address, number)
            };
            places.0.insert(place, number);
        }
        places
    }

    pub(super) fn get(&self, place: &HostId) -> Option<u32> {
        self.0.get(place).copied()
    }

    /// Returns the number of a host id; a new id gets a free number.
    pub(super) fn number(&mut self, place: HostId) -> Result<u32, ServicesError> {
        if let Some(number) = self.0.get(&place) {
            return Ok(*number);
        }
        let taken: HashSet<u32> = self.0.values().copied().collect();
        let number = (0..MAX_HOSTS)
            .find(|number| !taken.contains(number))
            .ok_or(ServicesError::TooManyHosts)?;
        self.0.insert(place, number);
        Ok(number)
    }

    /// Returns all host ids, with their numbers.
    pub(super) fn all(&self) -> impl Iterator<Item = (HostId, u32)> {
        self.0.iter().map(|(place, number)| (*place, *number))
    }

    pub(super) fn forget(&mut self, place: &HostId) {
        self.0.remove(place);
    }
}
