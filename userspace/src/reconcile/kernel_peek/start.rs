//! From a process that serves by sockets to one whose program routes connections. The kernel checks the program for 0.3 s,
//! on slow machines for many seconds: workers route connections until then.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use signalbox_core::routing::obstacle::PeekObstacle;

use super::{FOLLOW_TIMEOUT, KernelPeek, PASS_INTERVAL, START_TIMEOUT, filter, paths, syn_timer};
use crate::kernel::error::KernelError;
use crate::kernel::interfaces::Interface;
use crate::reconcile::wakeups::CloseOnDrop;
use crate::sys::{error_chain, set_nice};

/// Whether the kernel has accepted the program. Unset: it is checking the program.
#[derive(Default)]
pub(super) struct Verdict(OnceLock<bool>);

impl Verdict {
    /// Why the program routes nothing; `None` if it may.
    pub(super) fn obstacle(&self) -> Option<PeekObstacle> {
        match self.0.get() {
            None => Some(PeekObstacle::Loading),
            Some(false) => Some(PeekObstacle::NotAvailable),
            Some(true) => None,
        }
    }
}

/// Leaves all connections to workers when dropped, unless the program was accepted.
struct WithoutVerdict<'a>(&'a KernelPeek);

impl Drop for WithoutVerdict<'_> {
    fn drop(&mut self) {
        if self.0.verdict.0.set(false).is_ok() {
            paths::show_without_program(&self.0.shared, PeekObstacle::NotAvailable);
        }
    }
}

impl KernelPeek {
    /// Has changes of the configuration wait for the tables, once the program is in the kernel.
    pub(super) fn follow_snapshots(self: &Arc<Self>) {
        let this = Arc::downgrade(self);
        let follow = move || {
            let Some(this) = this.upgrade() else { return };
            match this.verdict.obstacle() {
                None => {
                    this.wakeups.wake_and_wait(FOLLOW_TIMEOUT);
                }
                Some(PeekObstacle::Loading) => {}
                Some(why) => paths::show_without_program(&this.shared, why),
            }
        };
        // Set once, because a process has only one.
        let _ = self.shared.snapshot_follower.set(Box::new(follow));
    }

    /// Has the kernel check the program, and starts the thread that attaches it and keeps the tables. Waits until the
    /// thread has done so once. A refused program leaves all connections to workers.
    pub fn start(self: &Arc<Self>) -> io::Result<()> {
        let without_verdict = WithoutVerdict(self);
        let cut = Arc::clone(&self.cut);
        let name = |interface: Interface| interface.name;
        filter::start(&self.shared, move || {
            cut.attached_interfaces().into_iter().map(name).collect()
        })?;
        if let Err(error) = self.peek.load_program() {
            note_refusal(&error);
            return Ok(());
        }
        let this = Arc::clone(self);
        std::thread::Builder::new().name("kernel-peek".into()).spawn(move || {
            // Configuration changes wait for this thread.
            let _closed = CloseOnDrop(&this.wakeups);
            let _ = this.verdict.0.set(true);
            this.keep_tables();
        })?;
        // The thread sets the verdict.
        std::mem::forget(without_verdict);
        syn_timer::start(self, self.reports.clone())?;
        let begun = Instant::now();
        while self.state.lock().made.is_none() && begun.elapsed() < START_TIMEOUT {
            std::thread::sleep(PASS_INTERVAL / 20);
        }
        Ok(())
    }

    /// Starts in a thread of its own. Without the program, the process serves by sockets.
    pub fn start_later(self: &Arc<Self>) -> io::Result<()> {
        let this = Arc::clone(self);
        let start = move || {
            // Its threads inherit that: neither the verifier nor the tables must delay a worker's connections.
            set_nice(5);
            if let Err(error) = this.start() {
                tracing::error!(%error, "The kernel peek could not be started: workers route all connections.");
            }
        };
        std::thread::Builder::new()
            .name("peek-loader".into())
            .spawn(start)
            .map(drop)
    }

    /// Whether the program routes connections, or may.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.verdict.obstacle().is_none()
    }
}

/// Logs why the program is not used.
pub fn note_refusal(error: &KernelError) {
    const NOT_ROUTED_IN_KERNEL: &str = "Connections are not routed in the kernel before they have a socket.";
    let why = error_chain(error);
    if error.is_unexpected_refusal() {
        tracing::warn!(why, "{NOT_ROUTED_IN_KERNEL}");
    } else {
        tracing::info!(why, "{NOT_ROUTED_IN_KERNEL}");
    }
}
