//! The shield: who gets no further than the network card.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// What all listeners and services have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shield {
    /// Prefixes that hold for all.
    pub lists: Arc<Lists>,
    /// Sources whose rates are known at once.
    pub sources: u32,
    /// Without it in force this balancer is not ready.
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

/// Who is denied, and who is not although a shorter prefix is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lists {
    /// Denied.
    pub deny: Vec<IpNet>,
    /// Not denied.
    pub allow: Vec<IpNet>,
    /// Files with more of the first, a prefix a line.
    pub deny_files: Vec<PathBuf>,
    /// Files with more of the second.
    pub allow_files: Vec<PathBuf>,
}

impl Lists {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.deny.is_empty() && self.allow.is_empty() && self.deny_files.is_empty() && self.allow_files.is_empty()
    }
}

/// Prefixes that have been set by the API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prefixes {
    /// Denied.
    #[serde(default, deserialize_with = "nets")]
    pub deny: Vec<IpNet>,
    /// Not denied.
    #[serde(default, deserialize_with = "nets")]
    pub allow: Vec<IpNet>,
}

/// A prefix, or an address as the prefix of only itself.
#[must_use]
pub fn net(text: &str) -> Option<IpNet> {
    let address = || text.parse::<std::net::IpAddr>().map(IpNet::from);
    text.parse().or_else(|_| address()).ok()
}

/// Prefixes, and addresses as prefixes of only themselves.
pub fn nets<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<IpNet>, D::Error> {
    let texts = Vec::<std::borrow::Cow<'de, str>>::deserialize(from)?;
    let net = |text: &str| {
        self::net(text).ok_or_else(|| {
            serde::de::Error::custom(format!(
                "{text:?} is neither an address nor a prefix, such as 192.0.2.7 or 2001:db8::/32"
            ))
        })
    };
    texts.iter().map(|text| net(text)).collect()
}

impl Prefixes {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.deny.is_empty() && self.allow.is_empty()
    }
}

/// What has been set by the API: by the name of a listener or service, or for all where that is empty.
pub type Told = BTreeMap<String, Arc<Prefixes>>;

/// What a listener or a service is guarded by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Prefixes of its own, which come on top of those that hold for all.
    pub lists: Arc<Lists>,
    /// Packets that are not possible are dropped.
    pub malformed: bool,
    /// SYNs are answered with cookies while the backlog is full.
    pub syn_cookies: bool,
    /// What each source may have.
    pub limits: SourceLimits,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            lists: Arc::default(),
            malformed: true,
            syn_cookies: true,
            limits: SourceLimits::default(),
        }
    }
}

/// So many in a second, and so many at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rate {
    /// In a second.
    pub rate: u64,
    /// At once.
    pub burst: u64,
}

/// Limits of a source at a listener or a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SourceLimits {
    /// Connections, and flows of UDP, that begin.
    pub connections: Option<Rate>,
    /// Packets.
    pub packets: Option<Rate>,
    /// Bytes of IP packets.
    pub bytes: Option<Rate>,
    /// Connections at once; 0 for no limit.
    pub concurrent: u32,
    /// Leading bits of an IPv4 address that make a source.
    pub ipv4_prefix: u32,
    /// Leading bits of an IPv6 address that make one.
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
