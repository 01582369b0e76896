//! High availability: virtual addresses that move between several nodes.

use serde::Serialize;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Most nodes that share virtual addresses.
pub const MAX_HA_NODES: usize = 8;

/// Name of the configuration where the file says nothing.
pub const DEFAULT_HA_NAME: &str = "ha-config-1";

/// Virtual addresses, the nodes that share them, and the settings that decide where each of them is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HighAvailability {
    /// Name of the configuration, the same on all nodes.
    pub name: String,
    /// Program that gives addresses to a node.
    pub mode: HaMode,
    /// Name of this node; `None`: the host name.
    pub node: Option<String>,
    /// Nodes in the same order on all of them; empty where they find each other by multicast.
    pub nodes: Vec<HaNode>,
    /// Interface of virtual addresses and VRRP; `None`: that of the default route.
    pub interface: Option<String>,
    /// Groups of virtual addresses, each of which moves as a whole; at least one.
    pub groups: Vec<VipGroup>,
    /// Conditions under which a node may have virtual addresses.
    pub watch: HaWatch,
    /// Moment at which a node with a higher priority takes a group over.
    pub preemption: Preemption,
    /// Settings of the protocol between the nodes.
    pub vrrp: Vrrp,
    /// Program that is called with each change of a group's state.
    pub notify: Option<PathBuf>,
    /// Whether VRRP is let in through the firewall.
    pub firewall: bool,
    /// Mail about changes of state.
    pub email: Option<HaEmail>,
    /// Replication of flows to the other nodes; `None`: there is none.
    pub sync: Option<HaSync>,
}

impl HighAvailability {
    /// Name of this node on a machine with this host name.
    #[must_use]
    pub fn own_name<'a>(&'a self, host_name: &'a str) -> &'a str {
        self.node.as_deref().unwrap_or(host_name)
    }

    /// Whether adverts are sent to nodes by IPv6 (`true`) or IPv4; `None`: they are sent by multicast.
    #[must_use]
    pub fn unicast_family(&self) -> Option<bool> {
        let first = self.nodes.first().filter(|_| self.nodes.len() > 1)?;
        self.vrrp.unicast.then(|| first.address.is_ipv6())
    }

    /// Place of this node among the nodes.
    #[must_use]
    pub fn own_slot(&self, host_name: &str) -> Option<usize> {
        let own = self.own_name(host_name);
        self.nodes.iter().position(|node| node.name == own)
    }
}

/// Program that gives virtual addresses to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HaMode {
    /// keepalived: the nodes agree by VRRP.
    #[default]
    Keepalived,
    /// None: every ready node has all of the addresses on its loopback interface, and a routing daemon announces them.
    Address,
    /// A program of the operator's, which reports ownership by the API.
    External,
}

impl HaMode {
    /// Name of the mode in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Keepalived => "keepalived",
            Self::Address => "address",
            Self::External => "external",
        }
    }
}

/// Node that shares virtual addresses with others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HaNode {
    /// Name of the node.
    pub name: String,
    /// The node's own address, which does not move.
    pub address: IpAddr,
}

/// Virtual addresses that move together, and the source addresses that move along.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VipGroup {
    /// Name of the group.
    pub name: String,
    /// Virtual router id; `None`: by the name.
    pub id: Option<u8>,
    /// Virtual addresses, which clients connect to.
    pub vips: Vec<IpAddr>,
    /// Addresses from which the group's owner connects to hosts.
    pub sources: Vec<FloatingSource>,
    /// Node that has the group while it can; `None`: chosen by hashing.
    pub prefer: Option<String>,
}

impl VipGroup {
    /// Name, and the id that the configuration gives.
    #[must_use]
    pub fn named(&self) -> (&str, Option<u8>) {
        (&self.name, self.id)
    }

    /// Whether an address moves with the group.
    #[must_use]
    pub fn has(&self, address: IpAddr) -> bool {
        self.vips.contains(&address) || self.sources.iter().any(|source| source.address == address)
    }
}

/// Address that connections to hosts come from, and that moves with its group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FloatingSource {
    /// Address of the source.
    pub address: IpAddr,
    /// Length of its network's prefix.
    pub prefix: u8,
    /// Interface that gets it; `None`: that of the virtual addresses.
    pub interface: Option<String>,
}

/// Conditions under which a node may have virtual addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HaWatch {
    /// Port of the node's own address that must accept connections; 0: none.
    pub port: u16,
    /// Time between two checks of the port or by the script.
    pub interval: Duration,
    /// Program whose exit status says whether the node is well, in place of the port.
    pub script: Option<PathBuf>,
    /// Whether signalbox itself must be ready.
    pub ready: bool,
}

impl Default for HaWatch {
    fn default() -> Self {
        Self {
            port: 0,
            interval: Duration::from_secs(2),
            script: None,
            ready: true,
        }
    }
}

/// Moment at which a node with a higher priority takes a group over from one that has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preemption {
    /// As soon as it knows the flows of its peers.
    #[default]
    WhenSynced,
    /// After it has been well for a time.
    Delay(Duration),
    /// Not at all: it waits until the other fails.
    Never,
}

/// Settings of VRRP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Vrrp {
    /// Version of the protocol for IPv4; IPv6 has version 3 only.
    pub version: VrrpVersion,
    /// Time between two adverts of an owner.
    pub advert: Duration,
    /// Whether adverts are sent to each node rather than to the multicast group.
    pub unicast: bool,
    /// Number before the first group's virtual router id.
    pub id_offset: u8,
    /// Virtual router ids that others in the network have.
    pub exclude_ids: BTreeSet<u8>,
    /// File with the password of version 2; `None`: the beginning of the configuration's name.
    pub password_file: Option<PathBuf>,
}

impl Default for Vrrp {
    fn default() -> Self {
        Self {
            version: VrrpVersion::V3,
            advert: VrrpVersion::V3.default_advert(),
            unicast: false,
            id_offset: 0,
            exclude_ids: BTreeSet::new(),
            password_file: None,
        }
    }
}

/// Version of VRRP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum VrrpVersion {
    /// RFC 3768: IPv4, adverts in whole seconds, a password.
    V2,
    /// RFC 9568: IPv4 and IPv6, adverts in hundredths of a second.
    V3,
}

impl VrrpVersion {
    /// Time between two adverts where the configuration says nothing.
    #[must_use]
    pub const fn default_advert(self) -> Duration {
        match self {
            Self::V2 => Duration::from_secs(1),
            Self::V3 => Duration::from_millis(100),
        }
    }
}

/// Mail about changes of state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HaEmail {
    /// Addresses of the recipients; at least one.
    pub to: Vec<String>,
    /// Address of the sender.
    pub from: String,
    /// Server that takes the mail by SMTP.
    pub smtp: SocketAddr,
}

/// Replication of flows to the other nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HaSync {
    /// Address where the other nodes connect to this one.
    pub listen: SocketAddr,
    /// PEM file with this node's certificate, for its name among the nodes.
    pub cert: PathBuf,
    /// PEM file with the key of the certificate.
    pub key: PathBuf,
    /// PEM file with the authorities that have signed the nodes' certificates.
    pub ca: PathBuf,
    /// Most flows of other nodes that are held for them.
    pub flows: u32,
    /// Flows of layer-4 services that are replicated.
    pub services: HaSyncServices,
}

/// Flows of layer-4 services that are replicated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HaSyncServices {
    /// Established connections of TCP.
    #[default]
    Tcp,
    /// None.
    Off,
}
