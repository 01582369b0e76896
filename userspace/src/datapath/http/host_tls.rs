//! TLS to a host: its handshake, and which connections may be shared by requests.

use std::io;
use std::sync::Arc;

use signalbox_core::hostname::Hostname;
use signalbox_tls::client::{HostIdentity, connect};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::leg::Leg;
use crate::datapath::choose::Lease;
use crate::state::Snapshot;
use crate::state::tls::HostTls;

/// TLS of a connection to a host. Only requests with an equal one share a connection.
#[derive(Clone)]
pub(super) struct HostSession {
    pub(super) tls: Arc<HostTls>,
    /// Name that the host is asked for, and that its certificate must have.
    pub(super) host: HostIdentity,
}

impl HostSession {
    /// TLS for requests for `name` to the host of a lease. `None`: there is none for its cluster.
    pub(super) fn new(snapshot: &Snapshot, lease: &Lease, name: Option<&Hostname>) -> Option<Self> {
        let tls = snapshot.tls.hosts(&lease.cluster.name)?;
        Some(Self {
            host: HostIdentity::new(tls.name.as_ref().or(name), lease.backend.ip()),
            tls: Arc::clone(tls),
        })
    }

    /// Shakes hands with a host that is connected. `before`: bytes that go before the handshake, a PROXY header.
    pub(super) async fn begin(self, mut stream: TcpStream, before: Vec<u8>, may_be_http2: bool) -> io::Result<Leg> {
        stream.write_all(&before).await?;
        let stream = Box::pin(connect(&self.tls.config, self.host, stream, may_be_http2)).await?;
        Ok(Leg::Tls(Box::new(stream)))
    }
}
