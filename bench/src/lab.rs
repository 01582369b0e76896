//! The network of a run, in separate namespaces:
//!
//! ```text
//! client 10.71.1.2 … .9 ──veth── 10.71.1.1 balancer 10.72.1.1 ──veth── 10.72.1.2 host 1
//!                                                   10.72.2.1 ──veth── 10.72.2.2 host 2
//!                                                   10.73.1.1 ──veth── 10.73.1.2 standby
//! ```
//!
//! Each host has four more addresses, up to .6, for scenarios with ten hosts.
//!
//! The standby is a second balancer, for those that have one; its other links are bridges without ports.
//!
//! The balancer's namespace forwards packets, too: plain forwarding is the limit to which the balancers are compared.

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::Result;
use signalbox_lab::{Kind, Ns, Sandbox};

use crate::load::flood::SENDERS;

/// Address of the balancer, as the client sees it.
pub(crate) const VIP: Ipv4Addr = Ipv4Addr::new(10, 71, 1, 1);
/// Addresses of the router hosts.
pub(crate) const HOSTS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 72, 1, 2), Ipv4Addr::new(10, 72, 2, 2)];
/// Addresses of ten hosts, of which each namespace has five; the first two are [`HOSTS`].
pub(crate) const TEN_HOSTS: [Ipv4Addr; 10] = {
    let mut all = [Ipv4Addr::UNSPECIFIED; 10];
    let mut i = 0;
    while i < all.len() {
        let [a, b, c, d] = HOSTS[i % 2].octets();
        all[i] = Ipv4Addr::new(a, b, c, d + i as u8 / 2);
        i += 1;
    }
    all
};
/// Addresses of the balancer and the standby in their own network.
pub(crate) const STANDBY: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 73, 1, 1), Ipv4Addr::new(10, 73, 1, 2)];
/// Addresses of the client: eight times as many connections before a pair of ports comes back.
pub(crate) const CLIENTS: [Ipv4Addr; 8] = {
    let mut all = [Ipv4Addr::UNSPECIFIED; 8];
    let mut i = 0;
    while i < all.len() {
        all[i] = Ipv4Addr::new(10, 71, 1, 2 + i as u8);
        i += 1;
    }
    all
};

/// Settings of every namespace, independent of the machine's tuning. TIME_WAIT buckets are so few that they neither
/// block ports nor cost memory; backlogs are longer than any burst here; nothing is remembered of earlier connections.
const SYSCTLS: [&str; 7] = [
    "net.ipv4.tcp_max_tw_buckets=64",
    "net.ipv4.ip_local_port_range=1024 65535",
    "net.core.somaxconn=16384",
    "net.ipv4.tcp_max_syn_backlog=16384",
    "net.ipv4.tcp_no_metrics_save=1",
    "net.ipv4.tcp_rmem=4096 131072 6291456",
    "net.ipv4.tcp_wmem=4096 16384 4194304",
];

/// Congestion control of all connections: the kernel's own default.
const CONGESTION: &str = "cubic";

/// Kind of the runs. Contenders remove their pins themselves.
const KIND: Kind = Kind {
    prefix: "sbb",
    program: "signalbox-bench",
    detach: |_| {},
};

/// Namespaces of a run, and a directory for configurations and logs. All are removed on drop.
pub(crate) struct Lab {
    /// Namespace of the client.
    pub(crate) client: Ns,
    /// Namespace of the balancer.
    pub(crate) lb: Ns,
    /// Namespace of a second balancer.
    pub(crate) standby: Ns,
    /// Namespaces of the router hosts.
    pub(crate) hosts: [Ns; 2],
    sandbox: Sandbox,
}

impl Lab {
    /// Removes leftovers of killed runs, and builds the network.
    pub(crate) fn new() -> Result<Self> {
        let sandbox = Sandbox::new(&KIND)?;
        let lab = Self {
            client: sandbox.namespace("client")?,
            lb: sandbox.namespace("lb")?,
            standby: sandbox.namespace("standby")?,
            hosts: [sandbox.namespace("host1")?, sandbox.namespace("host2")?],
            sandbox,
        };
        lab.wire()?;
        Ok(lab)
    }

    /// Directory of the run.
    pub(crate) fn dir(&self) -> &Path {
        self.sandbox.dir()
    }

    fn wire(&self) -> Result<()> {
        for ns in self.hosts.iter().chain([&self.client, &self.lb, &self.standby]) {
            ns.sysctl(&SYSCTLS)?;
        }
        self.lb.sysctl(&["net.ipv4.ip_forward=1"])?;
        join(&self.lb, "client", VIP, &self.client, &CLIENTS)?;
        let client = CLIENTS[0];
        self.lb
            .ip(&format!("route add {SENDERS} via {client} congctl {CONGESTION}"))?;
        for (link, ns, address) in [("host1", &self.hosts[0], HOSTS[0]), ("host2", &self.hosts[1], HOSTS[1])] {
            let own: Vec<_> = TEN_HOSTS
                .into_iter()
                .filter(|host| gateway(*host) == gateway(address))
                .collect();
            join(&self.lb, link, gateway(address), ns, &own)?;
        }
        join(&self.lb, "standby", STANDBY[0], &self.standby, &STANDBY[1..])?;
        for link in ["client", "host1", "host2"] {
            self.standby
                .ip(&format!("link add {link} type bridge\nlink set {link} up"))?;
        }
        Ok(())
    }
}

/// Address of the balancer in the network of a host.
pub(crate) const fn gateway(host: Ipv4Addr) -> Ipv4Addr {
    let [a, b, c, _] = host.octets();
    Ipv4Addr::new(a, b, c, 1)
}

/// Connects the balancer's namespace by a veth pair to `ns`, which sends everything through it.
///
/// Routes set the congestion control: a namespace may not choose one by sysctl that the machine does not allow to all
/// users, and would otherwise inherit the machine's. With BBR, pacing would dominate the results.
pub(crate) fn join(lb: &Ns, link: &str, gateway: Ipv4Addr, ns: &Ns, addresses: &[Ipv4Addr]) -> Result<()> {
    let [a, b, c, _] = gateway.octets();
    let net = |device, from| format!("route replace {a}.{b}.{c}.0/24 dev {device} src {from} congctl {CONGESTION}");
    let theirs: Vec<_> = addresses.iter().map(|address| format!("{address}/24")).collect();
    lb.cable(link, &[format!("{gateway}/24")], ns, &theirs)?;
    lb.ip(&net(link, gateway))?;
    let default = format!("route add default via {gateway} congctl {CONGESTION}");
    ns.ip(&format!("{}\n{default}", net("eth0", addresses[0])))
}
