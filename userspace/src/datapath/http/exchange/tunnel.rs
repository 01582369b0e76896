//! A tunnel after a 101. The relay of other listeners carries it, with splice when it is bulk, until it is cut.

use std::cell::Cell;
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use signalbox_core::model::Tier;

use super::attempt::{Attempt, HostLink};
use super::connection::HttpConnection;
use super::counted::CountedGuards;
use super::late_cut::{HeldTunnel, TunnelEnd};
use super::tls_tunnel::TlsTunnel;
use crate::datapath::choose::Lease;
use crate::datapath::conn_guard::ConnGuard;
use crate::datapath::connection::{run_relay, until_closed};
use crate::datapath::http::leg::Leg;
use crate::datapath::http::message::request::ClientSide;
use crate::datapath::relay::{Relay, TierPolicy};
use crate::state::Snapshot;
use crate::state::outcome::{Direction, FlowEnd};

/// A tunnel to carry. Holds no snapshot, since it may live for days.
pub(in crate::datapath::http) struct Tunnel {
    client: Leg,
    host: Leg,
    /// Bytes of client and host that were read but not passed on yet.
    read: (Vec<u8>, Vec<u8>),
    link: HostLink,
    /// Counts the tunnel against its host.
    lease: Lease,
    policy: TierPolicy,
    /// Counts the tunnel for its route's limits.
    counted: CountedGuards,
}

impl Tunnel {
    /// Keeps counting the request that started the tunnel.
    pub(super) fn keep_counted(&mut self, guards: CountedGuards) {
        self.counted = guards;
    }

    pub(super) fn new(client: ClientSide, attempt: Attempt, lease: Lease, policy: TierPolicy) -> Self {
        let (client, mut to_client, from_client) = client.leg.into_parts();
        let (host, _, from_host) = attempt.host.leg.into_parts();
        to_client.push(&from_host);
        Self {
            client,
            host,
            read: (from_client, to_client.take()),
            link: attempt.link,
            lease,
            policy,
            counted: [None, None],
        }
    }
}

impl HttpConnection<'_> {
    pub(super) fn tunnel_policy(&self, snapshot: &Snapshot, idle: Duration) -> TierPolicy {
        let listener = snapshot.binds.find(self.local).map(|at| &snapshot.model.listeners[at]);
        TierPolicy {
            // The socket map counts from the first byte of a connection. Bytes of heads have passed already.
            forced: listener
                .and_then(|listener| listener.datapath.tier)
                .filter(|tier| *tier != Tier::Sockmap),
            sockmap_available: false,
            idle,
        }
    }

    /// Carries the tunnel of a client's stream until it ends. Its host connection is not kept afterwards.
    pub(in crate::datapath::http) async fn stream_tunnel(&self, mut tunnel: Tunnel) {
        let _counted = std::mem::take(&mut tunnel.counted);
        self.listener.requests.count(&tunnel.lease.cluster.name, 101);
        let flow = Rc::clone(&tunnel.link.listed.flow);
        self.listener.late_cut.inc(flow.not_cut.get());
        // A host that is asked for another protocol is never a stream.
        let Some(host) = tunnel.host.tcp().map(AsRawFd::as_raw_fd) else {
            return self.end_flow(&tunnel.link, FlowEnd::Failed);
        };
        tunnel.link.set_status(101);
        let legs = (tunnel.client, tunnel.host);
        let carried = pin!(TlsTunnel::new(legs, tunnel.read, &flow).run(tunnel.policy.idle));
        // The stream is reset when its leg is dropped.
        let end = until_closed(&flow, [host, host], carried).await;
        self.end_flow(&tunnel.link, end);
    }

    /// Carries a tunnel until it ends. Its connections are not kept afterwards.
    pub(in crate::datapath::http) async fn tunnel(&self, mut tunnel: Tunnel, guard: &mut ConnGuard) {
        let _counted = std::mem::take(&mut tunnel.counted);
        self.listener.requests.count(&tunnel.lease.cluster.name, 101);
        let flow = Rc::clone(&tunnel.link.listed.flow);
        // Streams have no socket: see `stream_tunnel`.
        let (Some(client), Some(host)) = (tunnel.client.tcp(), tunnel.host.tcp()) else {
            return self.end_flow(&tunnel.link, FlowEnd::Failed);
        };
        let descriptors = [client.as_raw_fd(), host.as_raw_fd()];
        tunnel.link.set_status(101);
        let held = tunnel.link.held.take();
        if held.is_none() {
            self.listener.late_cut.inc(flow.not_cut.get());
        }
        let end = match (tunnel.client, tunnel.host) {
            (Leg::Plain(client), Leg::Plain(host)) => {
                // The relay does not count bytes that were read before it started.
                flow.add_bytes(Direction::In, tunnel.read.0.len() as u64);
                flow.add_bytes(Direction::Out, tunnel.read.1.len() as u64);
                let relay = Relay::new(client, host, Rc::clone(&flow), tunnel.policy, 0)
                    .with_preamble(tunnel.read.0)
                    .with_answer(tunnel.read.1);
                if let Some(held) = held {
                    let is_counted = Cell::new(false);
                    let work = HeldTunnel {
                        held,
                        link: &tunnel.link,
                        lease: &tunnel.lease,
                        marks: guard.marks(),
                        is_counted: &is_counted,
                    };
                    let carried = pin!(self.carry_held(relay, work, tunnel.policy));
                    let end = until_closed(&flow, descriptors, carried).await;
                    if !is_counted.get() {
                        self.listener.late_cut.inc("ended");
                    }
                    end
                } else {
                    let carried = pin!(run_relay(self.worker, &flow, relay, tunnel.policy));
                    until_closed(&flow, descriptors, carried).await.into()
                }
            }
            legs => {
                let carried = pin!(TlsTunnel::new(legs, tunnel.read, &flow).run(tunnel.policy.idle));
                until_closed(&flow, descriptors, carried).await.into()
            }
        };
        match end {
            TunnelEnd::Ended(end) => self.end_flow(&tunnel.link, end),
            // The flow GC gives the counts back when the flow ends.
            TunnelEnd::Cut => {
                tunnel.lease.detach();
                drop(guard.detach());
            }
        }
    }
}
