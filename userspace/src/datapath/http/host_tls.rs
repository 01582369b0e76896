//! TLS to a host: its handshake, and which connections may be shared by requests.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use signalbox_core::hostname::Hostname;
use tokio::io::AsyncWriteExt as _;
use tokio_rustls::TlsConnector;

use super::leg::Leg;
use crate::datapath::choose::Lease;
use crate::datapath::dial::connect_uncut;
use crate::state::Snapshot;
use crate::state::tls::HostTls;

/// TLS of a connection to a host. Only requests with an equal one share a connection.
#[derive(Clone)]
pub(super) struct HostSession {
    pub(super) tls: Arc<HostTls>,
    /// Name that the host is asked for, and that its certificate must have.
    pub(super) name: ServerName<'static>,
}

impl HostSession {
    /// TLS for requests for `name` to the host of a lease. `None`: there is none for its cluster.
    pub(super) fn new(snapshot: &Snapshot, lease: &Lease, name: Option<&Hostname>) -> Option<Self> {
        let tls = snapshot.tls.hosts(&lease.cluster.name)?;
        let asked = tls.name.as_ref().or(name);
        let name = asked.and_then(|name| ServerName::try_from(name.as_str().to_owned()).ok());
        Some(Self {
            tls: Arc::clone(tls),
            name: name.unwrap_or_else(|| ServerName::from(lease.backend.ip())),
        })
    }

    /// Connects to a host. `before`: bytes that go before the handshake, a PROXY header.
    pub(super) async fn connect(self, backend: SocketAddr, before: Vec<u8>) -> io::Result<Leg> {
        let mut stream = connect_uncut(backend).await?;
        stream.write_all(&before).await?;
        let connector = TlsConnector::from(Arc::clone(&self.tls.config));
        let stream = Box::pin(connector.connect(self.name, stream)).await?;
        Ok(Leg::Host(Box::new(stream)))
    }
}
