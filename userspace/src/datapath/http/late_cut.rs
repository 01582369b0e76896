//! Late cut of a WebSocket: its legs are paired when the host is connected for the request, userspace passes on the
//! request and the 101, and at a moment in which nothing is under way the kernel takes over: no socket and no process
//! is on the tunnel's path any more.

use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use signalbox_core::model::Tier;
use tokio::time::{sleep, sleep_until};

use super::attempt::HostLink;
use super::client::HttpConnection;
use crate::datapath::choose::Lease;
use crate::datapath::conn_guard::ConnGuard;
use crate::datapath::connection::run_relay;
use crate::datapath::cut::{CarriedFlow, HeldFlow, LateCutError};
use crate::datapath::flow::Flow;
use crate::datapath::relay::{Relay, RelayOutcome, TierPolicy};
use crate::state::connection_log::FlowKey;
use crate::state::outcome::FlowEnd;

/// Interval between the first look at a tunnel and the second; each is twice the one before, up to the maximum.
const FIRST_LOOK_INTERVAL: Duration = Duration::from_millis(1);
const MAX_LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// End of a tunnel, as far as its sockets are concerned.
pub(super) enum TunnelEnd {
    Ended(FlowEnd),
    /// The tunnel is cut and lives on.
    Cut(FlowKey),
}

impl From<FlowEnd> for TunnelEnd {
    fn from(end: FlowEnd) -> Self {
        Self::Ended(end)
    }
}

impl HttpConnection<'_> {
    /// Carries a tunnel by its sockets until it is cut or ends.
    pub(super) async fn carry_held(
        &self,
        mut relay: Relay,
        mut held: HeldFlow,
        flow: &Rc<Flow>,
        policy: TierPolicy,
        marks: u8,
    ) -> TunnelEnd {
        let mut timer = pin!(sleep_until((Instant::now() + policy.idle).into()));
        let mut interval = FIRST_LOOK_INTERVAL;
        let why = loop {
            let outcome = tokio::select! {
                biased;
                outcome = relay.run(timer.as_mut()) => Some(outcome),
                () = sleep(interval) => None,
            };
            match outcome {
                Some(RelayOutcome::Ended(end)) => {
                    self.listener.late_cut.inc("ended");
                    relay.reset_unless_finished(end);
                    return end.into();
                }
                // Only a flow that may join the socket map is reported to be quiet.
                Some(RelayOutcome::Quiet) => break "failed",
                None if self.worker.shared.stopping.load(Relaxed) => break "stopping",
                None if held.is_overdue() => break "never_quiet",
                None => {}
            }
            interval = (interval * 2).min(MAX_LOOK_INTERVAL);
            if !relay.is_empty() {
                continue;
            }
            let carried = CarriedFlow {
                bytes: [flow.bytes_in.get(), flow.bytes_out.get()],
                idle: policy.idle,
                marks,
            };
            match held.try_cut(&relay.client, &relay.host, carried) {
                Ok(()) => {
                    let Relay { client, host, .. } = relay;
                    held.close(client, host);
                    self.listener.late_cut.inc("cut");
                    return TunnelEnd::Cut(held.key());
                }
                Err(LateCutError::Busy) => {}
                Err(LateCutError::Failed(error)) => {
                    tracing::debug!(%error, "A tunnel is not cut.");
                    break "failed";
                }
            }
        };
        drop(held);
        self.listener.late_cut.inc(why);
        flow.tier_reason.set(why);
        run_relay(self.worker, flow, relay, policy).await.into()
    }

    /// Leaves the counts of a tunnel that is cut to its flow: the flow GC gives them back at its end.
    pub(super) fn leave_to_flow(&self, link: &HostLink, lease: Lease, key: FlowKey, guard: &mut ConnGuard) {
        let cluster = &lease.cluster;
        cluster.opened[Tier::Cut as usize].inc();
        cluster.active[Tier::Cut as usize].enter();
        if let Some(log) = &link.log {
            log.keep_details(&self.worker.shared, link.listed.flow.context.client, key);
        }
        lease.detach();
        drop(guard.detach());
    }
}
