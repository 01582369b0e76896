//! Signal that a worker's listeners are stopped, for connections that wait.

use std::cell::Cell;

use tokio::sync::Notify;

/// Tells connections that wait for a request that the worker's listeners are stopped.
#[derive(Default)]
pub(in crate::datapath) struct DrainSignal {
    is_draining: Cell<bool>,
    notify: Notify,
    changes: Notify,
}

impl DrainSignal {
    pub(in crate::datapath) fn set(&self) {
        self.is_draining.set(true);
        self.notify.notify_waiters();
    }

    /// Tells long-lived connections that a new snapshot is active.
    pub(in crate::datapath) fn snapshot_changed(&self) {
        self.changes.notify_waiters();
    }

    /// Waits until the signal is set or a new snapshot is active.
    pub(super) async fn wait_change(&self) {
        tokio::select! {
            () = self.notify.notified() => {}
            () = self.changes.notified() => {}
        }
    }

    pub(super) fn is_set(&self) -> bool {
        self.is_draining.get()
    }

    pub(super) async fn wait(&self) {
        if !self.is_set() {
            self.notify.notified().await;
        }
    }
}
