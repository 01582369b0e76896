//! TLS termination: the configuration for listeners, routes and clusters.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::model::tls_profile::{KeyExchangeGroup, Profile};
use crate::wire::hostname::Hostname;

/// When HTTP/2 is offered by ALPN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Http2 {
    /// Unless the certificate covers a name of a passthrough route.
    #[default]
    Auto,
    /// As [`Self::Auto`], and only with a certificate that serves a single route: the rule of OpenShift's router.
    Unique,
    /// Never.
    Off,
}

impl Http2 {
    /// All rules, with their names in the configuration.
    pub const ALL: [(&'static str, Self); 3] = [("auto", Self::Auto), ("unique", Self::Unique), ("off", Self::Off)];
}

/// Place where a client's TLS ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Termination {
    /// At the host: nothing is decrypted here.
    #[default]
    Passthrough,
    /// At the balancer; the host is spoken to in plain HTTP.
    Edge,
    /// At the balancer, which speaks TLS to the host, too.
    Reencrypt,
}

impl Termination {
    /// All places, as OpenShift's Routes name them.
    pub const ALL: [Self; 3] = [Self::Passthrough, Self::Edge, Self::Reencrypt];

    /// Name of the place in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Passthrough => "passthrough",
            Self::Edge => "edge",
            Self::Reencrypt => "reencrypt",
        }
    }
}

/// Treatment of plain HTTP for a name. The looser one is the lesser one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum InsecurePolicy {
    /// Requests are served as others are.
    #[default]
    Allow,
    /// The client is sent to the same URL with `https`.
    Redirect,
    /// The name has no route in plain HTTP.
    None,
}

impl InsecurePolicy {
    /// All policies, with their names in the configuration.
    pub const ALL: [(&'static str, Self); 3] = [
        ("allow", Self::Allow),
        ("redirect", Self::Redirect),
        ("none", Self::None),
    ];

    /// Whether requests in plain HTTP are served as others are.
    #[must_use]
    pub const fn is_allow(&self) -> bool {
        matches!(self, Self::Allow)
    }
}

/// TLS settings that all listeners share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TlsSettings {
    /// Versions and cipher suites.
    pub profile: Profile,
    /// Groups of the key exchange, best first.
    pub groups: Vec<KeyExchangeGroup>,
    /// How sessions are resumed.
    pub tickets: SessionTickets,
    /// When HTTP/2 is offered.
    pub http2: Http2,
    /// Places of certificates and their keys.
    pub certificates: Vec<CertificatePlace>,
}

impl Default for TlsSettings {
    fn default() -> Self {
        Self {
            profile: Profile::default(),
            groups: KeyExchangeGroup::ALL.to_vec(),
            tickets: SessionTickets::default(),
            http2: Http2::default(),
            certificates: Vec::new(),
        }
    }
}

/// Resumption of sessions by tickets (RFC 8446, section 4.6.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SessionTickets {
    /// Each handshake is a full one.
    Off,
    /// A balancer resumes the sessions that it has begun itself.
    Own,
    /// Balancers that share a table resume each other's.
    #[default]
    Shared,
}

impl SessionTickets {
    /// All kinds, with their names in the configuration.
    pub const ALL: [(&'static str, Self); 3] = [("true", Self::Shared), ("own", Self::Own), ("false", Self::Off)];
}

/// Place of certificates and their keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CertificatePlace {
    /// Single certificate.
    Files {
        /// PEM file of the certificate and its intermediates.
        cert: PathBuf,
        /// PEM file of the private key; may be the same.
        key: PathBuf,
        /// File with the pass phrase of the key.
        pass: Option<PathBuf>,
        /// Whether the certificate answers clients that name no host, or one that no certificate names.
        is_default: bool,
    },
    /// All certificates of a directory.
    Directory(PathBuf),
}

/// TLS of a listener with `protocol: https`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ListenerTls {
    /// Place where TLS ends for names whose route says nothing else.
    pub termination: Termination,
    /// Whether a client that names no host with a certificate is refused.
    #[serde(rename = "strict_sni")]
    pub has_strict_sni: bool,
    /// Client certificates; `None`: clients are not asked.
    #[serde(rename = "client_certificates")]
    pub clients: Option<ClientCertificates>,
}

/// Certificates that clients show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClientCertificates {
    /// PEM file with the authorities that sign them.
    pub ca: PathBuf,
    /// Whether a client without one is refused.
    #[serde(rename = "required")]
    pub is_required: bool,
    /// Fields that describe the certificate to hosts.
    pub fields: CertificateFields,
}

/// Fields of requests by which hosts learn of the certificate that a client has shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CertificateFields {
    /// `Client-Cert` (RFC 9440).
    #[default]
    ClientCert,
    /// `X-SSL-Client-*`, as OpenShift's router has them.
    XSsl,
    /// None.
    Off,
}

impl CertificateFields {
    /// All choices, with their names in the configuration.
    pub const ALL: [(&'static str, Self); 3] = [
        ("client-cert", Self::ClientCert),
        ("x-ssl", Self::XSsl),
        ("off", Self::Off),
    ];
}

/// TLS of a route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RouteTls {
    /// Place where TLS ends; `None`: where the listener says.
    pub termination: Option<Termination>,
    /// Treatment of plain HTTP; `None`: by the clusters' objects, else [`InsecurePolicy::Allow`].
    pub insecure: Option<InsecurePolicy>,
    /// Value of the Strict-Transport-Security field of answers over TLS (RFC 6797); `None`: as the host answers.
    pub hsts: Option<String>,
}

/// TLS to the hosts of a cluster, where it is [`Termination::Reencrypt`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BackendTls {
    /// PEM file with the authorities that sign the hosts' certificates; `None`: those of the system.
    pub ca: Option<PathBuf>,
    /// Name that hosts are asked for and that their certificates must have; `None`: the name that the client asks for.
    pub name: Option<Hostname>,
    /// Whether hosts' certificates are verified.
    #[serde(rename = "verify")]
    pub is_verified: bool,
    /// PEM files with signalbox's certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Versions of HTTP that hosts are offered, best first.
    pub alpn: Vec<HttpVersion>,
}

/// Version of HTTP, as ALPN offers it (RFC 7301).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HttpVersion {
    /// HTTP/1.1.
    Http11,
    /// HTTP/2.
    Http2,
}

impl HttpVersion {
    /// Versions by their names, which are those of ALPN.
    pub const ALL: [(&'static str, Self); 2] = [("h2", Self::Http2), ("http/1.1", Self::Http11)];

    /// Name of the version.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http11 => "http/1.1",
            Self::Http2 => "h2",
        }
    }
}

impl Default for BackendTls {
    fn default() -> Self {
        Self {
            ca: None,
            name: None,
            is_verified: true,
            identity: None,
            alpn: vec![HttpVersion::Http11],
        }
    }
}
