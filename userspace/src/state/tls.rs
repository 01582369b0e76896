//! Active TLS: configurations of handshakes with clients and with hosts. Immutable; replaced as a whole.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use signalbox_core::limits::stats::{Counter, Gauge, Histogram, LabelledCounters};
use signalbox_core::model::tls::BackendTls;
use signalbox_core::routing::tls::offer::Http2Offer;
use signalbox_core::wire::hostname::Hostname;
use signalbox_tls::client::HostConfig;
use signalbox_tls::resolver::CertificateResolver;
use signalbox_tls::server::ServerConfigs;

/// Rules of `https` listeners for HTTP/2, by name.
pub type Http2Offers = HashMap<String, Http2Offer, FixedState>;

/// TLS of listeners and clusters, by name.
#[derive(Debug, Default)]
pub struct TlsState {
    pub listeners: HashMap<String, ListenerTlsState, FixedState>,
    pub clusters: HashMap<String, Arc<HostTls>, FixedState>,
    /// TLS to hosts of clusters that are not in the configuration.
    pub other_clusters: Option<Arc<HostTls>>,
}

impl TlsState {
    /// Returns TLS to the hosts of a cluster. `None`: no traffic is re-encrypted, or the system has no authorities.
    #[must_use]
    pub fn hosts(&self, cluster: &str) -> Option<&Arc<HostTls>> {
        self.clusters.get(cluster).or(self.other_clusters.as_ref())
    }

    /// Returns whether any cluster's hosts use TLS.
    #[must_use]
    pub fn reencrypts(&self) -> bool {
        !self.clusters.is_empty() || self.other_clusters.is_some()
    }

    /// Returns whether this TLS is active for some cluster.
    #[must_use]
    pub fn is_current(&self, hosts: &Arc<HostTls>) -> bool {
        let mut all = self.clusters.values().chain(&self.other_clusters);
        all.any(|known| Arc::ptr_eq(known, hosts))
    }
}

/// TLS of a listener with `protocol: https`.
#[derive(Debug)]
pub struct ListenerTlsState {
    pub configs: ServerConfigs,
    pub resolver: Arc<CertificateResolver>,
}

/// TLS to the hosts of a cluster.
#[derive(Debug)]
pub struct HostTls {
    pub config: HostConfig,
    /// Name to ask hosts for; `None`: the name that the client asks for.
    pub name: Option<Hostname>,
}

impl HostTls {
    #[must_use]
    pub fn new(config: HostConfig, settings: &BackendTls) -> Arc<Self> {
        Arc::new(Self {
            config,
            name: settings.name.clone(),
        })
    }
}

/// Counts of a listener's TLS handshakes.
#[derive(Debug, Default)]
pub struct HandshakeStats {
    /// Handshakes that succeeded: with TLS 1.2 and 1.3, each full and resumed.
    pub done: [[Counter; 2]; 2],
    /// Handshakes that failed, by reason.
    pub failed: LabelledCounters,
    pub seconds: Histogram,
    /// Handshakes that wait for their turn.
    pub waiting: Gauge,
    pub in_progress: Gauge,
}

/// Labels of [`HandshakeStats::done`].
pub const TLS_VERSIONS: [&str; 2] = ["1.2", "1.3"];
