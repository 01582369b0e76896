//! Routes an identified client and dials a host of its route.

use std::os::fd::AsRawFd as _;
use std::sync::Arc;

use signalbox_common::peek::name::MAX_NAME_BYTES;
use signalbox_core::limits::request_limit::RequestLimitExceeded;
use signalbox_core::model::claimed::ConnectionLimits;
use signalbox_core::model::http::RequestLimits;
use signalbox_core::model::{Protocol, Route};
use signalbox_core::routing::obstacle::PeekObstacle;
use signalbox_core::routing::view::Destination;
use signalbox_core::wire::hostname::Hostname;
use signalbox_core::wire::peek::ClientRequest;
use signalbox_core::wire::peek::h2::GreetedClient;

use super::arrival::{Arrival, IdentifiedClient};
use super::choose::{Chooser, Lease};
use super::conn_guard::ConnGuard;
use super::cut::eligibility::CutFacts;
use super::cut::{CutAttempt, CutKind};
use super::dial::{DialRequest, HostConnection, connect};
use super::flow::FlowContext;
use super::log_context::LogContext;
use super::refuse::{RefuseReason, refuse};
use super::relay::TierPolicy;
use super::socket::Socket;
use crate::kernel::address::arriving;
use crate::kernel::peek::ChosenHost;
use crate::state::outcome::Ineligible;
use crate::state::route_stats::RouteRefusal;
use crate::state::{ListenerState, Shared, Snapshot};

/// A connected host for a client.
pub(super) struct ConnectedHost {
    pub(super) host: Socket,
    pub(super) lease: Lease,
    pub(super) context: FlowContext,
    pub(super) policy: TierPolicy,
    /// Number of bytes taken off the client's stream.
    pub(super) consumed: u64,
    pub(super) attempt: Result<CutAttempt, Ineligible>,
    /// Bytes to send to the host before those in the client's socket; not sent yet.
    pub(super) preamble: Vec<u8>,
    /// Number of bytes of `preamble` that came from the client itself (the rest is a PROXY header).
    pub(super) preamble_from_client: u64,
    /// Record for the access log; `None` where connections are not logged.
    pub(super) log: Option<Box<LogContext>>,
}

impl Arrival<'_> {
    /// Admits and identifies the client, routes it and dials a host. Refuses the client if any of these fails.
    pub(super) async fn connect(mut self, guard: &mut ConnGuard) -> Option<(Socket, ConnectedHost)> {
        self.admit(guard)?;
        let identity = self.identify(guard).await?;
        self.route(identity, guard).await
    }

    /// Chooses a host and connects to it. A client is refused if there is none.
    pub(super) async fn route(
        mut self,
        identity: IdentifiedClient,
        guard: &mut ConnGuard,
    ) -> Option<(Socket, ConnectedHost)> {
        let IdentifiedClient { request, greeted } = identity;
        let refusal = match request {
            Err(error) => {
                self.listener().peek.inc(error.label());
                self.log().log_refused(None, None, error.label());
                RefuseReason::Peek(error)
            }
            Ok(request) => match self.dial(request, greeted.as_ref(), guard).await {
                Ok(host) => return Some((self.client, host)),
                Err(refusal) => refusal,
            },
        };
        let (listener, protocol) = (Arc::clone(self.listener()), self.configured().protocol);
        count_and_refuse(&self.worker.shared, &listener, self.client, protocol, refusal, greeted).await;
        None
    }

    /// Connects to a host of the client's route, or to another if it does not answer.
    async fn dial(
        &mut self,
        request: ClientRequest,
        greeted: Option<&GreetedClient>,
        guard: &mut ConnGuard,
    ) -> Result<ConnectedHost, RefuseReason> {
        let (worker, listener, protocol) = (self.worker, Arc::clone(self.listener()), self.configured().protocol);
        let shared = &worker.shared;
        count_name(&listener, protocol, request.hostname.as_ref());
        // The snapshot may have changed while the client was peeked at, so the current one is used.
        let snapshot = shared.snapshot.load_full();
        let fallback = snapshot
            .binds
            .find(self.local)
            .and_then(|at| snapshot.model.listeners[at].fallback());
        let to = snapshot.view.destination(request.hostname.as_ref(), fallback);
        let is_long = |name: &Hostname| name.as_str().len() > MAX_NAME_BYTES;
        guard.count_path(match to {
            Destination::Closed => Some(PeekObstacle::OutOfRotation),
            Destination::Route(_) if request.hostname.as_ref().is_some_and(is_long) => Some(PeekObstacle::LongName),
            Destination::Route(at) => snapshot.routes.get(at).and_then(|route| route.obstacle(protocol)),
            _ if request.hostname.is_some() => Some(PeekObstacle::NoRoute),
            _ => None,
        });
        if let Some(route) = snapshot
            .route(request.hostname.as_ref())
            .filter(|_| protocol != Protocol::Tcp)
            && let Err(why) = self.admit_to_route(route, guard)
        {
            let name = request.hostname.as_ref();
            self.log()
                .log_refused(name, Some(&route.hostname.to_string()), why.label());
            return Err(why);
        }
        let true_client = self.true_client.ip();
        let configured = match to {
            Destination::Route(route) => snapshot.model.routes.get(route),
            _ => None,
        };
        let allow = configured.map_or(&[][..], Route::cluster_allow);
        let mut chooser = Chooser::new(shared, &snapshot, to, protocol, true_client)
            .keeping(self.chosen_in_kernel(protocol))
            .serving_only(allow, true_client)
            .limited(configured.and_then(Route::max_host_connections));
        let route = match to {
            Destination::Route(route) => snapshot.routes.get(route),
            _ => None,
        };
        let (preamble, received, sent) = greeted.map_or((&[][..], 0, 0), GreetedClient::handoff);
        self.consumed += received;
        let dial = DialRequest {
            client: self.peer,
            vip: self.local,
            true_client: self.true_client,
            destination: self.destination,
            consumed: self.consumed as u32,
            consumed_payload: preamble,
            greeted: greeted.is_some(),
            client_fd: self.client.as_raw_fd(),
            name: request.hostname.as_ref().map(Hostname::as_str),
            route,
            listener: &listener,
            cut: self.may_cut(sent, guard),
            kind: CutKind::Connection,
        };
        let connected = match connect(worker, &snapshot, &mut chooser, &dial).await {
            Ok(connected) => connected,
            Err(error) => {
                let refusal = match (&error, to) {
                    (None, Destination::NoRoute) if request.hostname.is_none() => RefuseReason::NoName,
                    (None, Destination::NoRoute) => RefuseReason::NoRoute,
                    (None, _) if chooser.queue().is_some() => RefuseReason::HostsFull,
                    (None, _) => RefuseReason::NoHost,
                    (Some(_), _) => RefuseReason::ConnectFailed,
                };
                let route = count_refused(&snapshot, to, request.hostname.as_ref(), error.is_some());
                self.log()
                    .log_refused(request.hostname.as_ref(), route, refusal.label());
                return Err(refusal);
            }
        };
        let HostConnection {
            host,
            mut lease,
            attempt,
            preamble: sends_first,
            connect_time,
        } = connected;
        if let Some(route) = route {
            lease.count_for_route(route);
            if let Some(share) = &lease.stats {
                share.quality.connected(connect_time);
            }
        }
        let connection_id = lease.connection_id;
        Ok(ConnectedHost {
            host,
            context: FlowContext {
                client: self.true_client,
                local: self.local,
                backend: lease.backend,
                listener,
                route: route.map(|route| route.hostname.as_str().into()),
                cluster: Arc::clone(&lease.cluster),
                host: Arc::clone(&lease.host),
                stats: lease.stats.clone(),
            },
            lease,
            policy: TierPolicy {
                forced: self.configured().datapath.tier,
                sockmap_available: worker.sockmap.is_some(),
                idle: configured.map_or(snapshot.model.timeouts.idle, |route| {
                    route.idle_timeout(snapshot.model.timeouts.idle)
                }),
            },
            consumed: self.consumed,
            attempt,
            preamble: sends_first,
            preamble_from_client: preamble.len() as u64,
            log: shared.log.is_on().then(|| {
                Box::new(LogContext {
                    accepted: self.accepted,
                    protocol,
                    name: request.hostname,
                    connect: connect_time,
                    connection_id,
                    request: None,
                })
            }),
        })
    }

    /// The host that the kernel peek has chosen before it has passed the connection up.
    fn chosen_in_kernel(&self, protocol: Protocol) -> Option<ChosenHost> {
        let chosen = self.worker.shared.kernel.chosen_hosts.get()?;
        let is_named = protocol != Protocol::Tcp;
        is_named
            .then(|| chosen.take(&arriving(self.peer, self.local)))
            .flatten()
    }

    /// Checks the client's address for a route, and counts the connection for the limits of the route.
    fn admit_to_route(&self, route: &Route, guard: &mut ConnGuard) -> Result<(), RefuseReason> {
        let client = self.true_client.ip();
        if !route.allows(client) || !route.has_cluster_for(route.cluster_allow(), client) {
            return Err(RefuseReason::NotAllowed);
        }
        let limits = route.connection_limits();
        if limits == ConnectionLimits::default() {
            return Ok(());
        }
        let shared = &self.worker.shared;
        let source = shared.route_source(&route.hostname, client);
        let limits = RequestLimits {
            requests: limits.rate,
            concurrent: limits.concurrent,
        };
        let admitted = shared.limits.requests.admit(source, &limits, crate::sys::monotonic());
        admitted.map_err(|exceeded| match exceeded {
            RequestLimitExceeded::Rate(_) => RefuseReason::ConnectionRate,
            RequestLimitExceeded::Concurrent => RefuseReason::Connections,
        })?;
        if limits.concurrent > 0 {
            guard.enter_route_source(source);
        }
        Ok(())
    }

    /// Returns whether the flow may be cut. `sent`: number of bytes that the balancer has sent to the client.
    fn may_cut(&self, sent: u32, guard: &ConnGuard) -> Result<(), Ineligible> {
        let facts = CutFacts {
            datapath: self.configured().datapath,
            is_counted: self.limits_connections() || guard.has_route_source(),
            is_named_by_proxy: self.true_client != self.peer,
            is_available: self.worker.cut.is_some(),
            // The host is not chosen yet.
            ends: None,
        };
        if let Some(why) = facts.obstacle() {
            return Err(why);
        }
        match &self.worker.cut {
            Some((cutter, _)) if sent > 0 => cutter.record_greeting(self.peer, self.local, sent),
            _ => Ok(()),
        }
    }
}

/// Counts a refusal and answers the client with it.
pub(super) async fn count_and_refuse(
    shared: &Shared,
    listener: &ListenerState,
    client: Socket,
    protocol: Protocol,
    why: RefuseReason,
    greeted: Option<GreetedClient>,
) {
    shared.totals.refused.inc();
    listener.refused.inc(why.label());
    if let Ok(client) = client.into_registered() {
        refuse(shared, client, protocol, why, greeted).await;
    }
}

/// Counts a refusal for its route, and returns the route's name if there is a route.
pub(super) fn count_refused<'a>(
    snapshot: &'a Snapshot,
    to: Destination,
    name: Option<&Hostname>,
    was_tried: bool,
) -> Option<&'a str> {
    let (route, why) = match to {
        Destination::Route(route) | Destination::Path(route, _) if was_tried => {
            (Some(route), RouteRefusal::ConnectFailed)
        }
        Destination::Route(route) | Destination::Path(route, _) => (Some(route), RouteRefusal::NoHost),
        Destination::Closed => (
            name.and_then(|name| snapshot.view.table.find(name)),
            RouteRefusal::OutOfRotation,
        ),
        Destination::Cluster(_) | Destination::Any | Destination::NoRoute => return None,
    };
    let state = snapshot.routes.get(route?)?;
    state.stats.refuse(why);
    Some(&state.hostname)
}

pub(super) fn count_name(state: &ListenerState, protocol: Protocol, asked: Option<&Hostname>) {
    match (protocol, asked) {
        (Protocol::Tcp, _) => {}
        (_, Some(_)) => state.named.inc(),
        (Protocol::Tls, None) => state.peek.inc("no_sni"),
        (Protocol::Http, None) => state.peek.inc("no_host"),
    }
}
