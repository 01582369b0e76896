//! Late cut of a WebSocket. Its legs are paired when the host is connected for the request. Userspace passes on the
//! request and the 101. Once no bytes are under way, the kernel takes over: the tunnel no longer goes through a socket
//! or a process.

use std::cell::Cell;
use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use signalbox_core::model::Tier;
use tokio::time::{sleep, sleep_until};

use super::attempt::HostLink;
use super::connection::HttpConnection;
use crate::datapath::choose::Lease;
use crate::datapath::connection::run_relay;
use crate::datapath::cut::{CarriedFlow, HeldFlow, LateCutError};
use crate::datapath::relay::{Relay, RelayOutcome, TierPolicy};
use crate::state::outcome::FlowEnd;

/// Interval between the first and the second check of a tunnel. Each later one is twice as long, up to the maximum.
const FIRST_LOOK_INTERVAL: Duration = Duration::from_millis(1);
const MAX_LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// A tunnel that may be cut late, and its counts.
pub(super) struct HeldTunnel<'a> {
    pub(super) held: HeldFlow,
    pub(super) link: &'a HostLink,
    pub(super) lease: &'a Lease,
    /// Marks of its flow that say which counts it holds.
    pub(super) marks: u8,
    /// Whether the result of the late cut has been counted.
    pub(super) is_counted: &'a Cell<bool>,
}

/// Reason why the sockets stop carrying a tunnel.
pub(super) enum TunnelEnd {
    Ended(FlowEnd),
    /// The tunnel was cut and lives on.
    Cut,
}

impl From<FlowEnd> for TunnelEnd {
    fn from(end: FlowEnd) -> Self {
        Self::Ended(end)
    }
}

impl HttpConnection<'_> {
    /// Carries a tunnel over its sockets until it is cut or ends.
    pub(super) async fn carry_held(
        &self,
        mut relay: Relay,
        mut tunnel: HeldTunnel<'_>,
        policy: TierPolicy,
    ) -> TunnelEnd {
        let flow = &tunnel.link.listed.flow;
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
                    relay.reset_unless_finished(end);
                    return end.into();
                }
                // Only a flow that may join the socket map is reported as quiet.
                Some(RelayOutcome::Quiet) => break "failed",
                None if self.worker.shared.life.stopping.load(Relaxed) => break "stopping",
                None if tunnel.held.is_overdue() => break "never_quiet",
                None => {}
            }
            interval = (interval * 2).min(MAX_LOOK_INTERVAL);
            if !relay.is_empty() {
                continue;
            }
            match self.try_cut(&mut tunnel, &relay, policy.idle) {
                Ok(()) => {
                    let Relay { client, host, .. } = relay;
                    tunnel.held.close(client, host);
                    self.count_late_cut(&tunnel, "cut");
                    return TunnelEnd::Cut;
                }
                Err(LateCutError::Busy) => {}
                Err(LateCutError::Failed(error)) => {
                    tracing::debug!(%error, "A tunnel is not cut.");
                    break "failed";
                }
            }
        };
        self.count_late_cut(&tunnel, why);
        flow.tier_reason.set(why);
        // Gives back the entry and the port.
        drop(tunnel.held);
        run_relay(self.worker, flow, relay, policy).await.into()
    }

    fn try_cut(&self, tunnel: &mut HeldTunnel<'_>, relay: &Relay, idle: Duration) -> Result<(), LateCutError> {
        let (link, cluster) = (tunnel.link, &tunnel.lease.cluster);
        let flow = &link.listed.flow;
        let carried = CarriedFlow {
            bytes: [flow.bytes_in.get(), flow.bytes_out.get()],
            idle,
            marks: tunnel.marks,
            is_last_request: false,
        };
        let leave = |key| {
            cluster.opened[Tier::Cut as usize].inc();
            cluster.active[Tier::Cut as usize].enter();
            if let Some(log) = &link.log {
                log.keep_details(&self.worker.shared, flow.context.client, key);
            }
        };
        tunnel.held.try_cut((&relay.client, &relay.host), carried, leave)
    }

    fn count_late_cut(&self, tunnel: &HeldTunnel<'_>, result: &'static str) {
        tunnel.is_counted.set(true);
        self.listener.late_cut.inc(result);
    }
}
