//! The network of a run, in namespaces of its own:
//!
//! ```text
//! client 10.71.1.2 … .9 ──veth── 10.71.1.1 balancer 10.72.1.1 ──veth── 10.72.1.2 host 1
//!                                                   10.72.2.1 ──veth── 10.72.2.2 host 2
//! ```
//!
//! The balancer's namespace forwards packets, too: plain forwarding is the limit to which the balancers are compared.

pub(crate) mod clean;
mod namespace;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::Result;

pub(crate) use namespace::Ns;

/// Address of the balancer, as the client sees it.
pub(crate) const VIP: Ipv4Addr = Ipv4Addr::new(10, 71, 1, 1);
/// Addresses of the router hosts.
pub(crate) const HOSTS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 72, 1, 2), Ipv4Addr::new(10, 72, 2, 2)];
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

/// Settings of every namespace, whatever the machine is tuned to. TIME_WAIT buckets are so few that they neither block
/// ports nor cost memory; backlogs are longer than any burst here; nothing is remembered of earlier connections.
const SYSCTLS: [&str; 7] = [
    "net.ipv4.tcp_max_tw_buckets=64",
    "net.ipv4.ip_local_port_range=1024 65535",
    "net.core.somaxconn=16384",
    "net.ipv4.tcp_max_syn_backlog=16384",
    "net.ipv4.tcp_no_metrics_save=1",
    "net.ipv4.tcp_rmem=4096 131072 6291456",
    "net.ipv4.tcp_wmem=4096 16384 4194304",
];

/// Namespaces of a run, and a directory for configurations and logs. All are removed on drop.
pub(crate) struct Lab {
    /// Namespace of the client.
    pub(crate) client: Ns,
    /// Namespace of the balancer.
    pub(crate) lb: Ns,
    /// Namespaces of the router hosts.
    pub(crate) hosts: [Ns; 2],
    dir: Cleanup,
}

/// Removes everything named after this run; made before the first namespace, so that a failure half-way is cleaned up,
/// too.
struct Cleanup {
    prefix: String,
    dir: PathBuf,
}

impl Lab {
    /// Removes leftovers of killed runs, and builds the network.
    pub(crate) fn new() -> Result<Self> {
        clean::remove_stale();
        let prefix = clean::prefix(std::process::id());
        let dir = std::env::temp_dir().join(prefix.trim_end_matches('-'));
        let dir = Cleanup { prefix, dir };
        std::fs::create_dir_all(&dir.dir)?;
        let create = |role: &str| Ns::create(&format!("{}{role}", dir.prefix));
        let lab = Self {
            client: create("client")?,
            lb: create("lb")?,
            hosts: [create("host1")?, create("host2")?],
            dir,
        };
        lab.wire()?;
        Ok(lab)
    }

    /// Directory of the run.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir.dir
    }

    fn wire(&self) -> Result<()> {
        for ns in self.hosts.iter().chain([&self.client, &self.lb]) {
            ns.ip("link set lo up")?;
            ns.sysctl(&SYSCTLS)?;
        }
        self.lb.sysctl(&["net.ipv4.ip_forward=1"])?;
        self.lb.join(&self.client, "client", VIP, &CLIENTS)?;
        for (number, (ns, address)) in self.hosts.iter().zip(HOSTS).enumerate() {
            let [a, b, c, _] = address.octets();
            self.lb.join(
                ns,
                &format!("host{}", number + 1),
                Ipv4Addr::new(a, b, c, 1),
                &[address],
            )?;
        }
        Ok(())
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        clean::remove_all(&self.prefix);
    }
}
