//! Reports of workers and of the flow GC on hosts, for whoever decides on ejection.

use std::sync::Arc;

use signalbox_tls::host_fault::HostTlsFault;
use tokio::sync::mpsc;

use crate::state::HostState;

/// Observation of a host.
pub enum Report {
    /// A connect succeeded on a host that had been failing.
    Connected(Arc<HostState>),
    /// A connect failed, with the error.
    ConnectFailed(Arc<HostState>, String),
    /// A TLS handshake failed, with the reason; the failed connect is reported, too.
    TlsFailed(Arc<HostState>, HostTlsFault),
    /// SYNs of the kernel peek had no answer: a health check is to say more.
    Silent(Arc<HostState>),
    /// Flows of an earlier process are on a host that is no longer configured.
    HostAdopted(Arc<HostState>),
}

/// Channel for reports.
pub type Reports = mpsc::UnboundedSender<Report>;
