//! Reports about hosts from workers and the flow GC, for the decision on ejection.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use signalbox_tls::host_fault::HostTlsFault;
use tokio::sync::mpsc;

use crate::state::{ClusterState, HostState, RouteState};

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

/// How a host has not accepted a connection of the kernel peek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedConnect {
    Refused,
    Silent,
}

/// Counts and reports a connection of the kernel peek that a host has not accepted, as a worker does its own.
pub fn note_failed_connect(
    reports: &Reports,
    (host, cluster): (&Arc<HostState>, &ClusterState),
    route: Option<&RouteState>,
    how: FailedConnect,
) {
    host.refused.inc();
    if let Some(route) = route {
        route.stats.for_cluster(&cluster.name).quality.connect_failed();
    }
    let report = match how {
        FailedConnect::Refused => {
            cluster.connect_failures.inc("refused");
            host.failing.store(true, Relaxed);
            let error = io::Error::from(io::ErrorKind::ConnectionRefused);
            Report::ConnectFailed(Arc::clone(host), error.to_string())
        }
        // A host that ignores SYNs may be alive: userspace's connects wait for `timeouts.connect`. A check helps.
        FailedConnect::Silent => {
            cluster.connect_failures.inc("timeout");
            Report::Silent(Arc::clone(host))
        }
    };
    let _ = reports.send(report);
}
