//! Waits for a host with room when hosts have connection limits: first come, first served.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::timeout;

use super::choose::{Chooser, Lease};
use crate::state::ClusterState;

/// Interval of checks that need no signal. The first in the queue looks for a host that has recovered. A client whose
/// cookie names a host looks for that host. Every waiting connection checks that its client is still there.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Place in a cluster's queue.
struct QueuePlace {
    cluster: Arc<ClusterState>,
    signal: Arc<Notify>,
}

impl QueuePlace {
    fn new(cluster: Arc<ClusterState>) -> Self {
        let signal = cluster.queue.enter();
        Self { cluster, signal }
    }

    fn is_first(&self) -> bool {
        self.cluster.queue.is_first(&self.signal)
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.cluster.queue.leave(&self.signal);
    }
}

/// Reason why a client gets no host.
pub(super) enum NoHost {
    /// No host can be used, or none had room in time.
    Unavailable,
    /// The client left while it waited.
    ClientGone,
}

/// Chooses a host. If all are at their connection limit, waits until one has room, within the time limit, and only
/// while the client is there.
pub(super) async fn next_host(
    chooser: &mut Chooser<'_>,
    patience: Duration,
    is_gone: impl FnMut() -> bool,
) -> Result<Lease, NoHost> {
    let lease = chooser.next_host();
    if lease.is_some() || chooser.queue().is_none() {
        return lease.ok_or(NoHost::Unavailable);
    }
    Box::pin(wait(chooser, patience, is_gone)).await
}

async fn wait(
    chooser: &mut Chooser<'_>,
    patience: Duration,
    mut is_gone: impl FnMut() -> bool,
) -> Result<Lease, NoHost> {
    let until = Instant::now() + patience;
    let (cluster, takes_any) = chooser.queue().ok_or(NoHost::Unavailable)?;
    // A place in the queue keeps others from hosts with room, so waiting for a certain host takes none.
    let place = takes_any.then(|| QueuePlace::new(Arc::clone(&cluster)));
    chooser.queue_up();
    loop {
        // Checked before each choice: no host should work for a client that does not read the answer.
        if is_gone() {
            cluster.queue.abandoned.inc();
            return Err(NoHost::ClientGone);
        }
        if place.as_ref().is_none_or(QueuePlace::is_first) {
            let lease = chooser.next_host();
            if lease.is_some() || chooser.queue().is_none() {
                return lease.ok_or(NoHost::Unavailable);
            }
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            cluster.queue.timeouts.inc();
            return Err(NoHost::Unavailable);
        }
        let signalled = async {
            match &place {
                Some(place) => place.signal.notified().await,
                None => std::future::pending().await,
            }
        };
        // A signal is kept even if no task waits for it.
        let _ = timeout(LOOK_INTERVAL.min(left), signalled).await;
    }
}
