//! Connects of workers to hosts that do not answer soon: another host of the cluster is asked, as the kernel peek does for
//! its connections ([`crate::reconcile::kernel_peek`], `syn_timer`).

use std::io;
use std::pin::pin;
use std::time::Duration;

use signalbox_core::limits::connect_retry::{ConnectTimes, MAX_RETRY_TIMEOUT};
use tokio::time::timeout;

use super::choose::Lease;
use crate::kernel::cut::table::tick;
use crate::state::{HostState, Shared};

/// A host was given up, because it did not answer soon and another one is to be asked.
#[derive(Debug, thiserror::Error)]
#[error("the host did not answer in time, and another host is asked")]
struct SilentHost;

/// Whether a connect was given up by [`accepted`].
pub(super) fn is_silent(error: &io::Error) -> bool {
    error
        .get_ref()
        .is_some_and(|inner| inner.downcast_ref::<SilentHost>().is_some())
}

/// Waits until a host has accepted a connection, or has been silent for so long that another host is to be asked.
pub(super) async fn accepted<T>(
    shared: &Shared,
    lease: &Lease,
    connecting: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    if !lease.has_others {
        return connecting.await;
    }
    let mut connecting = pin!(connecting);
    match timeout(patience(&lease.host), &mut connecting).await {
        Ok(outcome) => outcome,
        Err(_) if may_leave(shared, lease) => Err(io::Error::new(io::ErrorKind::TimedOut, SilentHost)),
        Err(_) => connecting.await,
    }
}

/// Time for which a host may be silent: as long as the kernel peek waits until it has asked it twice.
fn patience(host: &HostState) -> Duration {
    let checked = || host.handshake.round_trip().map(ConnectTimes::first_retry_after);
    let retry_after = host.connect_times.retry_after().or_else(checked);
    2 * retry_after.unwrap_or(MAX_RETRY_TIMEOUT)
}

/// Whether a connection may leave its host: one in twenty may, and none where most hosts are silent, so that the cause is
/// not one of them.
fn may_leave(shared: &Shared, lease: &Lease) -> bool {
    let (snapshot, now) = (shared.snapshot.load(), tick());
    let Some(at) = snapshot
        .clusters
        .iter()
        .position(|known| known.name == lease.cluster.name)
    else {
        return false;
    };
    let (usable, hosts) = (snapshot.view.usable(at, lease.protocol), &snapshot.hosts[at]);
    let is_silent = |(host, _): &&(u16, u32)| {
        let host = hosts.get(usize::from(*host));
        host.is_some_and(|host| host.name == lease.host.name || host.is_away(now))
    };
    2 * usable.iter().filter(is_silent).count() <= usable.len() && lease.cluster.may_redispatch()
}
