//! The shield: drops packets of unwanted sources at the network card.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Settings of the shield that all listeners and services have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shield {
    /// Prefixes that hold for all listeners and services.
    pub lists: Arc<PrefixLists>,
    /// Most sources whose rates are known at once.
    pub sources: u32,
    /// Whether this balancer is ready only while the shield is active.
    pub required: bool,
}

impl Default for Shield {
    fn default() -> Self {
        Self {
            lists: Arc::default(),
            sources: signalbox_common::shield::abi::DEFAULT_SOURCES,
            required: true,
        }
    }
}

/// Lists of denied prefixes, and of allowed ones that lie within shorter denied ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct PrefixLists {
    /// Denied prefixes.
    pub deny: Vec<IpNet>,
    /// Allowed prefixes.
    pub allow: Vec<IpNet>,
    /// Files with more denied prefixes, one on a line.
    pub deny_files: Vec<PathBuf>,
    /// Files with more allowed prefixes, one on a line.
    pub allow_files: Vec<PathBuf>,
}

impl PrefixLists {
    /// Whether the lists have neither prefixes nor files.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.deny.is_empty() && self.allow.is_empty() && self.deny_files.is_empty() && self.allow_files.is_empty()
    }
}

/// Prefixes that have been set by the API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Prefixes {
    /// Denied prefixes.
    #[serde(default, deserialize_with = "nets")]
    #[cfg_attr(feature = "schema", schemars(with = "Vec<String>"))]
    pub deny: Vec<IpNet>,
    /// Allowed prefixes.
    #[serde(default, deserialize_with = "nets")]
    #[cfg_attr(feature = "schema", schemars(with = "Vec<String>"))]
    pub allow: Vec<IpNet>,
}

/// Parses a prefix, or an address as the prefix of only itself.
#[must_use]
pub fn parse_net(text: &str) -> Option<IpNet> {
    let address = || text.parse::<std::net::IpAddr>().map(IpNet::from);
    text.parse().or_else(|_| address()).ok()
}

/// Change of prefixes by API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PrefixEdit {
    /// Prefixes to deny.
    #[serde(default, deserialize_with = "nets")]
    #[cfg_attr(feature = "schema", schemars(with = "Vec<String>"))]
    pub deny: Vec<IpNet>,
    /// Prefixes to allow.
    #[serde(default, deserialize_with = "nets")]
    #[cfg_attr(feature = "schema", schemars(with = "Vec<String>"))]
    pub allow: Vec<IpNet>,
    /// Prefixes to remove: they are neither denied nor allowed any more.
    #[serde(default, deserialize_with = "nets", skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(with = "Vec<String>"))]
    pub forget: Vec<IpNet>,
    /// Denies the prefixes even if most clients are in them.
    #[serde(default)]
    pub force: bool,
}

/// Deserializes prefixes, and addresses as prefixes of only themselves.
pub fn nets<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<IpNet>, D::Error> {
    let texts = Vec::<std::borrow::Cow<'de, str>>::deserialize(from)?;
    let exact = |text: &str| exact_net(text).map_err(serde::de::Error::custom);
    texts.iter().map(|text| exact(text)).collect()
}

/// Parses an address, or a prefix without bits after its length, so that a typing error does not deny other clients.
///
/// # Errors
/// The text is none, or has such bits.
pub fn exact_net(text: &str) -> Result<IpNet, String> {
    let Some(net) = parse_net(text) else {
        return Err(format!(
            "{text:?} is neither an address nor a prefix, such as 192.0.2.7 or 2001:db8::/32"
        ));
    };
    if net.trunc() == net {
        return Ok(net);
    }
    Err(format!(
        "{text:?} has bits after its length: write {} for the network, or {} for the address",
        net.trunc(),
        net.addr()
    ))
}

impl Prefixes {
    /// Whether there are no prefixes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.deny.is_empty() && self.allow.is_empty()
    }
}

/// Prefixes set by the API, by the name of a listener or service; an empty name means all of them.
pub type ApiPrefixes = BTreeMap<String, Arc<Prefixes>>;

/// Shield policy of a listener or a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShieldPolicy {
    /// Prefixes of the listener or service, in addition to those that hold for all.
    pub lists: Arc<PrefixLists>,
    /// Whether packets that are not possible are dropped.
    pub malformed: bool,
    /// Whether SYNs are answered with cookies while the backlog is full.
    pub syn_cookies: bool,
    /// Limits of each source.
    pub limits: SourceLimits,
}

impl Default for ShieldPolicy {
    fn default() -> Self {
        Self {
            lists: Arc::default(),
            malformed: true,
            syn_cookies: true,
            limits: SourceLimits::default(),
        }
    }
}

/// Rate limit of a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RateLimit {
    /// Tokens in a second.
    pub rate: u64,
    /// Most tokens at once.
    pub burst: u64,
}

/// Limits of a source at a listener or a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SourceLimits {
    /// New connections, and new flows of UDP.
    pub connections: Option<RateLimit>,
    /// Packets of a source.
    pub packets: Option<RateLimit>,
    /// Bytes of a source's IP packets.
    pub bytes: Option<RateLimit>,
    /// Most connections at once; 0 for no limit.
    pub concurrent: u32,
    /// Leading bits of an IPv4 address that make a source.
    pub ipv4_prefix: u32,
    /// Leading bits of an IPv6 address that make a source.
    pub ipv6_prefix: u32,
}

impl Default for SourceLimits {
    fn default() -> Self {
        Self {
            connections: None,
            packets: None,
            bytes: None,
            concurrent: 0,
            ipv4_prefix: 32,
            ipv6_prefix: 64,
        }
    }
}
