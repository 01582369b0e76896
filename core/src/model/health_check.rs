//! Health checks of hosts, and the ejection of hosts that refuse real connections.

use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// Health check of a cluster's hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HealthCheck {
    /// Request that a check makes.
    pub probe: Probe,
    /// Time within which a check begins and ends: [`HealthCheck::until_next`].
    pub interval: Duration,
    /// Interval between beginnings of checks while `rise` or `fall` is being counted; `None`: `interval` at all times.
    pub fast_interval: Option<Duration>,
    /// Time limit of one check; at most `interval`.
    pub timeout: Duration,
    /// Successes in a row that make a host healthy.
    pub rise: u32,
    /// Failures in a row that make a host unhealthy.
    pub fall: u32,
    /// Connections of checks that begin with a PROXY v2 header.
    pub proxy_header: CheckProxyHeader,
    /// True if the hosts' ports for plain HTTP are asked in HTTP/2 with prior knowledge: [`Cluster::h2c`].
    ///
    /// [`Cluster::h2c`]: super::Cluster::h2c
    #[serde(skip)]
    pub h2c: bool,
}

/// Choice of the checks that begin with a PROXY v2 header; by its LOCAL command HAProxy recognises a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckProxyHeader {
    /// No check.
    Never,
    /// Checks of the host's `http`, `https` and `tcp` ports, which expect the header of clients' connections too.
    HostPorts,
    /// Every check.
    Always,
}

impl HealthCheck {
    /// Check of a cluster without its own settings.
    pub const DEFAULT: Self = Self {
        probe: Probe::Router,
        interval: Duration::from_secs(5),
        fast_interval: None,
        timeout: Duration::from_secs(2),
        rise: 2,
        fall: 1,
        proxy_header: CheckProxyHeader::Never,
        h2c: false,
    };
}

/// Request that a check makes of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Probe {
    /// TCP connection: the host must accept it.
    Tcp {
        /// Port to connect to; `None`: the first of the host's https, http and tcp ports.
        port: Option<u16>,
    },
    /// HTTP GET: the host must answer with 200 to 399.
    Http(HttpProbe),
    /// UDP datagram: the host must answer as expected.
    Udp(UdpProbe),
    /// Check by kind of host: a host with an `http` or `https` port is asked for [`ROUTER_HEALTH_PATH`] at
    /// [`ROUTER_HEALTH_PORT`] where something answers HTTP there, and every other host is checked as by [`Probe::Tcp`].
    Router,
    /// Check of an application's endpoint: one with an `http` port and a [`HealthPage`] is asked for that and is well
    /// with every answer below 500, and every other is checked as by [`Probe::Tcp`].
    Endpoint,
}

/// UDP check by a datagram.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UdpProbe {
    /// Port to ask; `None`: the first of the host's ports of services.
    pub port: Option<u16>,
    /// Datagram that is sent, and its answer.
    pub question: UdpQuestion,
}

/// Datagram of a UDP check, and the answer that a healthy host gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UdpQuestion {
    /// Bytes to send, and bytes that the answer has somewhere; none: any answer will do.
    Payload {
        /// Bytes to send.
        #[serde(serialize_with = "as_text")]
        send: Vec<u8>,
        /// Bytes that the answer has somewhere.
        #[serde(serialize_with = "as_text")]
        expect: Vec<u8>,
    },
    /// DNS question for the IPv4 addresses of a name: the answer has no error.
    Dns {
        /// Name to ask for.
        name: String,
    },
    /// QUIC version negotiation: the server names its versions.
    Quic,
}

fn as_text<S: serde::Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&bytes.escape_ascii())
}

/// Port at which OpenShift's routers report their health.
pub const ROUTER_HEALTH_PORT: u16 = 1936;
/// Path at which OpenShift's routers report their health.
pub const ROUTER_HEALTH_PATH: &str = "/healthz";

/// HTTP check by GET.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HttpProbe {
    /// Port to ask; `None`: the host's http (or https) port.
    pub port: Option<u16>,
    /// Path to ask for.
    pub path: String,
    /// Host header; `None`: the host's address.
    pub host_header: Option<String>,
    /// TLS of the check; `None`: plain HTTP.
    pub tls: Option<TlsProbe>,
}

/// TLS of a check: the name that it sends and the certificate that it demands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TlsProbe {
    /// Name in the ClientHello (SNI); `None`: the Host header, or no name where that is an address.
    pub sni: Option<String>,
    /// PEM file with the authorities that must have signed the certificate; `None`: any certificate will do.
    pub ca: Option<PathBuf>,
}

/// Passive ejection: when failures of real connects eject a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Ejection {
    /// Failures in a row that eject a host; 0 for never.
    pub failures: u32,
    /// Duration of the first ejection; each repetition lasts longer.
    pub time: Duration,
    /// Most of a cluster's hosts that may be ejected at once, in percent.
    pub max_percent: u8,
}

impl Ejection {
    /// Ejection of a cluster without its own settings.
    pub const DEFAULT: Self = Self {
        failures: 3,
        time: Duration::from_secs(10),
        max_percent: 50,
    };
}
