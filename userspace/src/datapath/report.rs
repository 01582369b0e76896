//! Reports about hosts from workers and the flow GC, for the decision on ejection.

use std::sync::Arc;

use signalbox_tls::host_fault::HostTlsFault;
use tokio::sync::mpsc;

use crate::state::HostState;

/// Observation of a host.
pub enum Report {
    /// A connect succeeded to a host that had been failing.
    Connected(Arc<HostState>),
    /// A connect failed, with the error.
    ConnectFailed(Arc<HostState>, String),
    /// A TLS handshake failed, with the reason. The failed connect is reported too.
    TlsFailed(Arc<HostState>, HostTlsFault),
    /// SYNs of the kernel peek got no answer: a health check will tell more.
    Silent(Arc<HostState>),
    /// Flows of an earlier process are on a host that is no longer configured.
    HostAdopted(Arc<HostState>),
}

/// Channel for reports.
pub type Reports = mpsc::UnboundedSender<Report>;
