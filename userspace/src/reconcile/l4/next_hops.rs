//! Finds the way of packets to hosts: interface, Ethernet addresses and source address.
//!
//! The programs look nothing up. The kernel's own lookup (`bpf_fib_lookup`) needs forwarding to be switched on, and
//! knows neighbours only while other traffic uses them. So this thread tracks routes and neighbours, and requests
//! missing ones.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use signalbox_common::l4::abi::MAX_NAT_SOURCES;
use signalbox_common::l4::{Host, L4Config};
use signalbox_core::availability::ha::floating::{FloatingSources, NodeShare};
use signalbox_core::availability::ha::nat_sources::{NatSources, NodePorts};
use signalbox_core::model::Layer4;

use super::apply::{Tables, floating_nat_ports, nat_ports};
use super::services_error::ServicesError;
use super::sweep::ticks;
use crate::kernel::address::to_words;
use crate::kernel::l4::L4Kernel as Kernel;
use crate::kernel::netlink::{Netlink, NextHop};

/// Interval at which a route is looked up again.
const ROUTE_INTERVAL: Duration = Duration::from_secs(5);
/// Minimum interval of requests for a neighbour.
const NEIGHBOUR_INTERVAL: Duration = Duration::from_secs(1);
/// Time that a flow keeps its source port while only one side has sent. This is longer than any handshake, but short,
/// because each forged packet takes a port.
const HALF_OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings that determine source addresses.
#[derive(Clone, Copy)]
pub(super) struct SourceSettings<'a> {
    pub(super) layer4: &'a Layer4,
    pub(super) floating: &'a FloatingSources,
    /// Share of this node in the ports of addresses that move between nodes.
    pub(super) node: NodeShare,
}

/// Known routes, neighbours and source addresses.
#[derive(Default)]
pub(super) struct NextHops {
    netlink: Option<Netlink>,
    routes: HashMap<IpAddr, (Instant, Option<NextHop>)>,
    last_resolve: HashMap<IpAddr, Instant>,
    sources: Vec<[u32; 4]>,
    /// Addresses that move between nodes, as used for the hosts' current source addresses.
    floating: FloatingSources,
    config: Option<L4Config>,
    errors: HashMap<IpAddr, String>,
}

impl NextHops {
    /// Reads the source addresses of an earlier process, so that hosts keep pointing at them.
    pub(super) fn of(kernel: &Kernel) -> Self {
        let left = (0..MAX_NAT_SOURCES).map_while(|index| kernel.source(index).ok().flatten());
        Self {
            sources: left.take_while(|source| *source != [0; 4]).collect(),
            ..Self::default()
        }
    }

    /// Returns the hosts that cannot be reached, with the reason.
    pub(super) fn errors(&self) -> Vec<String> {
        let mut all: Vec<_> = self.errors.values().cloned().collect();
        all.sort();
        all
    }

    /// Finds the next hop of each host, or without `look` only of new hosts, and writes it for the programs.
    pub(super) fn refresh(
        &mut self,
        kernel: &Kernel,
        tables: &mut Tables,
        wanted: SourceSettings<'_>,
        look: bool,
    ) -> Result<(), ServicesError> {
        // Services of other groups refer to other positions of the source addresses.
        let look = look || self.floating != *wanted.floating;
        let asking = |what| move |source| ServicesError::Netlink { what, source };
        let writing = |what| move |source| ServicesError::Map { what, source };
        let hosts: Vec<(IpAddr, u32)> = tables
            .numbers()
            .filter(|(_, number)| look || !tables.hosts.contains_key(number))
            .map(|(place, number)| (place.address(), number))
            .collect();
        if hosts.is_empty() {
            return Ok(());
        }
        let netlink = match self.netlink.take() {
            Some(open) => open,
            None => Netlink::open().map_err(asking("routes"))?,
        };
        let links = netlink.links().map_err(asking("interfaces"))?;
        let neighbours = netlink.neighbours().map_err(asking("neighbours"))?;
        let mut troubles = HashMap::new();
        for &(address, number) in &hosts {
            let known = self
                .routes
                .get(&address)
                .filter(|(at, way)| way.is_some() && at.elapsed() < ROUTE_INTERVAL);
            let way = match known {
                Some((_, way)) => way.clone(),
                None => {
                    let way = match netlink.route_get(address) {
                        Ok(way) => way,
                        Err(error) => {
                            troubles.insert(address, format!("the route to host {address} is refused: {error}"));
                            None
                        }
                    };
                    self.routes.insert(address, (Instant::now(), way.clone()));
                    way
                }
            };
            let mut host = Host {
                address: to_words(address),
                mtu: 1500,
                ..Host::default()
            };
            match way {
                None => {
                    let none = || format!("there is no route to host {address}");
                    troubles.entry(address).or_insert_with(none);
                }
                Some(way) if way.is_local => {
                    troubles.insert(
                        address,
                        format!("host {address} is this machine itself: services send to other machines only"),
                    );
                }
                Some(way) => {
                    (host.first_source, host.source_count) = self.sources(kernel, wanted, &way, address)?;
                    let neighbour = neighbours.get(&(way.ifindex, way.address));
                    if !neighbour.is_some_and(|(_, fresh)| *fresh) && self.may_resolve(way.address) {
                        // The request makes the kernel look for the neighbour, as one of our packets would.
                        let _ = netlink.resolve(way.ifindex, way.address);
                    }
                    if let (Some((mac, _)), Some(link)) = (neighbour, links.get(&way.ifindex)) {
                        let [d0, d1, d2, d3, d4, d5] = *mac;
                        let [s0, s1, s2, s3, s4, s5] = link.mac;
                        host.macs = [
                            u32::from_be_bytes([d0, d1, d2, d3]),
                            u32::from_be_bytes([d4, d5, s0, s1]),
                            u32::from_be_bytes([s2, s3, s4, s5]),
                        ];
                        host.ifindex = way.ifindex;
                        (host.xdp_ifindex, host.vlan) = link.vlan.unwrap_or((way.ifindex, 0));
                        let mtu = way.mtu.unwrap_or(link.mtu).min(link.mtu);
                        host.mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
                    } else {
                        troubles.insert(
                            address,
                            format!(
                                "the Ethernet address of {} (for host {address}) is not known",
                                way.address
                            ),
                        );
                    }
                }
            }
            if tables.hosts.get(&number) != Some(&host) {
                kernel.set_host(number, &host).map_err(writing("a host"))?;
                tables.hosts.insert(number, host);
            }
        }
        if look {
            let fixed = |source: &&IpAddr| !wanted.floating.moves(**source);
            for source in wanted.layer4.nat_sources.iter().filter(fixed) {
                if !netlink
                    .route_get(*source)
                    .is_ok_and(|way| way.is_some_and(|way| way.is_local))
                {
                    let message =
                        format!("{source} of layer4.nat.sources is no address of this machine: no answer comes back");
                    troubles.insert(*source, message);
                }
            }
            let live: HashSet<IpAddr> = hosts.iter().map(|(address, _)| *address).collect();
            self.routes.retain(|address, _| live.contains(address));
            self.last_resolve.retain(|_, at| at.elapsed() < NEIGHBOUR_INTERVAL);
        }
        if self.floating != *wanted.floating {
            self.floating = wanted.floating.clone();
        }
        self.errors = troubles;
        self.netlink = Some(netlink);
        Ok(())
    }

    fn may_resolve(&mut self, address: IpAddr) -> bool {
        let now = Instant::now();
        let at = self.last_resolve.entry(address).or_insert(now - NEIGHBOUR_INTERVAL);
        let may = now.duration_since(*at) >= NEIGHBOUR_INTERVAL;
        if may {
            *at = now;
        }
        may
    }

    /// Returns position and number of the source addresses for packets to a host: see [`Host::source_count`].
    fn sources(
        &mut self,
        kernel: &Kernel,
        wanted: SourceSettings<'_>,
        way: &NextHop,
        host: IpAddr,
    ) -> Result<(u32, u32), ServicesError> {
        let chosen = NatSources::new(wanted.floating, &wanted.layer4.nat_sources, host, way.source);
        let all: Vec<[u32; 4]> = chosen.addresses.into_iter().map(to_words).collect();
        if all.is_empty() {
            return Ok((0, 0));
        }
        let found = self.sources.windows(all.len()).position(|some| some == all);
        let first = found.unwrap_or_else(|| {
            self.sources.extend(&all);
            self.sources.len() - all.len()
        });
        if found.is_none() {
            if self.sources.len() > MAX_NAT_SOURCES as usize {
                self.sources.truncate(first);
                return Ok((0, 0));
            }
            for (index, source) in (first as u32..).zip(&all) {
                let writing = |source| ServicesError::Map {
                    what: "a source address",
                    source,
                };
                kernel.set_source(index, source).map_err(writing)?;
            }
        }
        Ok((first as u32, chosen.block as u32))
    }

    /// Writes the settings that all services share, for the programs.
    pub(super) fn write_config(&mut self, kernel: &Kernel, wanted: SourceSettings<'_>) -> Result<(), ServicesError> {
        let (layer4, ports) = (wanted.layer4, nat_ports(wanted.layer4));
        let floating = NodePorts::new(&floating_nat_ports(layer4), wanted.node);
        let octets = layer4.tunnel_v6.network().octets();
        let word = |at: usize| u32::from_be_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]]);
        let config = L4Config {
            first_port: u32::from(*ports.start()),
            port_count: ports.len() as u32,
            floating_first_port: floating.first,
            floating_port_count: floating.count,
            floating_port_step: floating.step,
            half_open_ticks: ticks(HALF_OPEN_TIMEOUT),
            outer_v4: layer4.tunnel_v4.network().to_bits(),
            outer_v4_flow_mask: layer4.tunnel_v4.hostmask().to_bits(),
            outer_v6: [word(0), word(4), word(8)],
        };
        if self.config != Some(config) {
            let writing = |source| ServicesError::Map {
                what: "the configuration",
                source,
            };
            kernel.set_config(&config).map_err(writing)?;
            self.config = Some(config);
        }
        Ok(())
    }
}
