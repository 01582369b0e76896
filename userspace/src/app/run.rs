//! The time between start and end: signals, systemd's watchdog, and the drain before the process ends.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use super::RunningBalancer;
use super::addresses;
use super::restart;
use super::successor::Successor;
use crate::control::Control;
use crate::control::event::StoreEvent;
use crate::datapath::accept::StopMode;
use crate::sync;

/// Time that the end of the process waits for the access log to be written.
const LOG_TIMEOUT: Duration = Duration::from_secs(2);

/// Time after a restart's last answer to a SYN in which clients send their first data.
const COOKIE_GRACE_INTERVAL: Duration = Duration::from_secs(1);

/// Signals that control the process.
pub(super) struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
    user2: Signal,
}

impl Signals {
    pub(super) fn listen() -> std::io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            user2: signal(SignalKind::user_defined2())?,
        })
    }
}

impl RunningBalancer {
    /// Serves until told to stop, then ends gracefully.
    pub async fn run(mut self) -> anyhow::Result<()> {
        let Signals {
            mut hangup,
            mut terminate,
            mut interrupt,
            mut user2,
        } = self.signals;
        let mut successor = Successor::new(self.successor);
        let watchdog = sd_notify::watchdog_enabled().map(|period| period / 2);
        let notify = |state: &[sd_notify::NotifyState<'_>]| {
            // Errors are ignored: systemd is missing, or has ended.
            let _ = sd_notify::notify(state);
        };
        notify(&[sd_notify::NotifyState::Ready]);
        tracing::info!(
            steering = self.control.facts.steering,
            workers = self.control.facts.workers,
            max_connections = self.control.facts.max_connections,
            "Serving."
        );
        let mut relieved = false;
        // Begins at once, and no other event delays it: a successor has only the rest of its predecessor's time.
        let mut heartbeat = tokio::time::interval(watchdog.unwrap_or(Duration::from_secs(3600)));
        loop {
            tokio::select! {
                _ = hangup.recv() => {
                    notify(&[sd_notify::NotifyState::Reloading, sd_notify::NotifyState::monotonic_usec_now()?]);
                    // A refusal is logged and counted where it occurs.
                    let _ = self.control.reload("SIGHUP").await;
                    self.control.shared.log.reopen();
                    notify(&[sd_notify::NotifyState::Ready]);
                }
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = user2.recv() => successor.start(),
                () = successor.ended() => {
                    tracing::error!("The successor ended before it was serving: this process continues.");
                }
                Some(pid) = self.taken_over.recv() => {
                    tracing::info!(pid, "A new process has taken over the listening sockets: draining.");
                    // Sent before the successor's own messages count: it is the main process from now on.
                    notify(&[sd_notify::NotifyState::MainPid(pid)]);
                    // The flow table belongs to the successor.
                    self.flow_gc = None;
                    self.admin.retire(pid).await;
                    self.control.shared.ha.leave_to_successor();
                    relieved = true;
                    break;
                }
                _ = heartbeat.tick() => {
                    if watchdog.is_some() {
                        notify(&[sd_notify::NotifyState::Watchdog]);
                    }
                }
            }
        }
        if !relieved {
            notify(&[sd_notify::NotifyState::Stopping]);
        }
        let shared = Arc::clone(&self.control.shared);
        let period = shared.snapshot.load().model.timeouts.shutdown;
        if !relieved {
            addresses::hand_over(&shared, period).await;
        }
        let are_kept = !relieved && restart::leave_sockets(&self.control).await;
        shared.life.stopping.store(true, Relaxed);
        let mut is_hurried = false;
        if !relieved {
            tokio::select! {
                () = addresses::have_left(&shared, period) => {}
                _ = terminate.recv() => is_hurried = true,
                _ = interrupt.recv() => is_hurried = true,
            }
        }
        if let Some(kernel_peek) = &self.control.kernel.kernel_peek {
            kernel_peek.stop(relieved);
        }
        let deadline = Instant::now() + period;
        tracing::info!(
            connections = shared.totals.with_sockets.get(),
            "Stopping: no new connections."
        );
        let drained = async {
            let _ = tokio::time::timeout_at(deadline.into(), stop_listening(&self.control, are_kept)).await;
            while shared.totals.with_sockets.get() > 0 && Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if !is_hurried {
            tokio::select! {
                () = drained => {}
                _ = terminate.recv() => is_hurried = true,
                _ = interrupt.recv() => is_hurried = true,
            }
        }
        if is_hurried {
            tracing::warn!("A second signal: ending without waiting for open connections.");
        }
        let left = shared.totals.with_sockets.get();
        if left > 0 {
            tracing::warn!(connections = left, "Stopping with open connections: they are reset.");
        }
        self.admin.close();
        if let (Some((cut, _)), false) = (&self.control.kernel.cut, relieved) {
            sync::hand_over::end_all(cut);
        }
        if let Some(flow_gc) = &self.flow_gc {
            flow_gc.stop();
        }
        if let Some(kernel_peek) = &self.control.kernel.kernel_peek {
            kernel_peek.leave();
        }
        if !relieved {
            self.control.kernel.services.stop(are_kept);
        }
        shared.log.flush(LOG_TIMEOUT);
        tracing::info!("Stopped.");
        Ok(())
    }
}

/// Stops listening. Queued connections are accepted, or left to the next process if systemd keeps the sockets.
async fn stop_listening(control: &Control, are_kept: bool) {
    let how = if are_kept { StopMode::Leave } else { StopMode::Drain };
    let (done, stopped) = oneshot::channel();
    let _ = control.events.send(StoreEvent::StopListening(how, done));
    let _ = stopped.await;
    // The kernel peek has answered SYNs of some clients. Their first data is passed up by it, and cannot be later.
    if are_kept
        && control
            .kernel
            .kernel_peek
            .as_ref()
            .is_some_and(|kernel_peek| kernel_peek.is_loaded())
    {
        tokio::time::sleep(COOKIE_GRACE_INTERVAL).await;
    }
}
