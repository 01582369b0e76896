//! TLS to a host: its handshake, and which connections requests may share.

use std::io;
use std::sync::Arc;

use signalbox_core::wire::hostname::Hostname;
use signalbox_tls::client::{HostIdentity, connect};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::datapath::choose::Lease;
use crate::datapath::http::leg::Leg;
use crate::state::Snapshot;
use crate::state::tls::HostTls;

/// TLS of a connection to a host. Requests share a connection only if this is equal.
#[derive(Clone)]
pub(in crate::datapath::http) struct HostSession {
    pub(super) tls: Arc<HostTls>,
    /// Name to ask the host for. Its certificate must have this name.
    pub(super) host: HostIdentity,
}

impl HostSession {
    /// TLS for requests for `name` to the host of a lease. `None`: its cluster has no TLS.
    pub(super) fn new(snapshot: &Snapshot, lease: &Lease, name: Option<&Hostname>) -> Option<Self> {
        let tls = snapshot.tls.hosts(&lease.cluster.name)?;
        Some(Self {
            host: HostIdentity::new(tls.name.as_ref().or(name), lease.backend.ip()),
            tls: Arc::clone(tls),
        })
    }

    /// Does the TLS handshake with a connected host. `before`: bytes to send before it, a PROXY header.
    pub(super) async fn begin(self, mut stream: TcpStream, before: Vec<u8>, may_be_http2: bool) -> io::Result<Leg> {
        stream.write_all(&before).await?;
        let stream = Box::pin(connect(&self.tls.config, self.host, stream, may_be_http2)).await?;
        Ok(Leg::Tls(Box::new(stream)))
    }
}
