//! One request: routed, sent to a host, and answered.

mod admission;
pub(super) mod after;
pub(super) mod attempt;
pub(super) mod connection;
mod counted;
mod finish;
mod identity;
mod last_request;
mod late_cut;
mod leg_a;
mod long_answer;
mod pass;
mod plan;
mod reached;
pub(super) mod refusal;
mod request_path;
mod request_plan;
mod request_route;
mod tls_policy;
mod tls_tunnel;
mod tunnel;

pub use request_path::AMBIGUOUS_PATH;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use signalbox_common::peek::proxy::ConnectionId;
use signalbox_core::model::http::{AmbiguousPaths, HttpPolicy};
use signalbox_core::model::tls::HttpVersion;
use signalbox_core::model::{HttpTimeouts, Listener, Protocol};
use signalbox_core::routing::view::Destination;
use signalbox_core::wire::http1::turn::{NextStep, Turn, TurnEvent};

use super::host::upstream::{HostStream, LeasedHost, ProxiedClient, ReachedHost, Upstream};
use super::leg::Leg;
use super::leg::linger::reset;
use super::message::answer::{Asked, HostSide};
use super::message::body::Body;
use super::message::carry::Carry;
use super::message::request::ClientSide;
use super::pages;
use crate::datapath::choose::{Chooser, Lease};
use crate::datapath::flow::{FlowContext, FlowGuard};
use crate::datapath::log_context::LogContext;
use crate::datapath::queue::{self, NoHost};
use crate::datapath::refuse::RefuseReason;
use crate::datapath::route::count_refused;
use crate::state::Snapshot;
use crate::state::outcome::{FlowEnd, Ineligible};
use after::AfterRequest;
use attempt::{Attempt, HostLink, Request};
use connection::HttpConnection;
use counted::CountedGuards;
use last_request::CutExchange;
use plan::PlannedExchange;
use reached::{LongAnswer, Reached};
use refusal::Refusal;
use request_plan::RequestPlan;
use request_route::RequestRoute;
use tls_policy::host_protocol;

/// A request that may go to a host.
struct AdmittedRequest<'r> {
    plan: RequestPlan<'r>,
    to: Destination,
    route: RequestRoute<'r>,
    protocol: Protocol,
    /// Counted until the answer or its tunnel has ended.
    counted: CountedGuards,
}

/// A request that is refused before a host is chosen, and the name of its route.
struct RefusedRequest {
    refusal: Refusal,
    route: Option<String>,
}

impl RefusedRequest {
    fn new(refusal: Refusal, route: Option<String>) -> Box<Self> {
        Box::new(Self { refusal, route })
    }
}

/// Route of a request that goes to one of these hosts.
fn route_of<'u>(request: &Request, upstream: &Upstream<'u>) -> RequestRoute<'u> {
    RequestRoute::find(
        upstream.snapshot,
        upstream.destination,
        request.head.path(&request.bytes),
    )
}

/// Refusal of a request for which there is no host.
fn no_host(plan: &RequestPlan<'_>, to: Destination, chooser: &Chooser<'_>) -> Refusal {
    let why = match to {
        Destination::NoRoute if plan.name.is_none() => RefuseReason::NoName,
        Destination::NoRoute => RefuseReason::NoRoute,
        _ if chooser.queue().is_some() => RefuseReason::HostsFull,
        _ => RefuseReason::NoHost,
    };
    let (status, text) = why.http().unwrap_or((503, pages::text(503)));
    Refusal::new(status, why.label(), text)
}

impl HttpConnection<'_> {
    /// Serves a request. `ahead` has the bytes that were read after its head.
    pub(super) async fn exchange(&mut self, mut client: Leg, mut request: Request, ahead: Vec<u8>) -> AfterRequest {
        // Each request uses the current snapshot, not the one from when the client connected.
        let snapshot = self.worker.shared.snapshot.load_full();
        let bound = snapshot.binds.find(self.local);
        let listener = bound.map(|at| &snapshot.model.listeners[at]);
        let drains = self.worker.shared.life.stopping.load(Relaxed)
            || !self.is_served_by(listener, snapshot.route(request.name()));
        let default_policy = HttpPolicy::default();
        let http = listener.map_or(&default_policy, |listener| &listener.http);
        if http.ambiguous_paths == AmbiguousPaths::Normalize {
            request.normalize_path(&self.limits);
        }
        self.client = self.client_of(&request, http);
        request.id = self.id_of(&request, http);
        let admitted = match self.admit_request(&request, &snapshot, listener, drains) {
            Ok(admitted) => admitted,
            Err(refused) => {
                let RefusedRequest { refusal, route } = *refused;
                return self.refuse(client, &request, refusal, route.as_deref(), ahead).await;
            }
        };
        let AdmittedRequest {
            plan,
            to,
            route,
            protocol,
            counted,
        } = admitted;
        let mut chooser = self.chooser(&request, &snapshot, to, route, protocol);
        let patience = snapshot.model.timeouts.queue;
        let lease = match queue::next_host(&mut chooser, patience, || client.is_gone()).await {
            Ok(lease) => lease,
            Err(NoHost::ClientGone) => return self.client_gone(client, &request, snapshot.route(plan.name)),
            Err(NoHost::Unavailable) => {
                let (refusal, route) = (plan.refusal(no_host(&plan, to, &chooser)), plan.name);
                let route = count_refused(&snapshot, to, route, false);
                return self.refuse(client, &request, refusal, route, ahead).await;
            }
        };
        let state = Arc::clone(&self.listener);
        let exchange = PlannedExchange {
            request: &request,
            plan: &plan,
            route,
            listener,
            state: &state,
            lease,
            protocol,
            ahead: &ahead,
            is_counted: counted.iter().any(Option::is_some),
        };
        let (turn, upstream) = self.plan_upstream(exchange, to, chooser, &snapshot, &client, drains);
        let client = ClientSide::new(client, Body::new(plan.length, &self.limits), ahead);
        let reached = self.reach(&request, &plan, client, upstream, turn).await;
        let asked = plan.asked;
        // The rest of the answer may take hours: an old configuration is not kept for that time.
        drop(snapshot);
        let mut after = match reached {
            Ok(reached) => self.after_head(request, asked, reached).await,
            Err(after) => after,
        };
        if let AfterRequest::Tunnel(tunnel) = &mut after {
            tunnel.keep_counted(counted);
        }
        after
    }

    /// Finds a request's route, and counts it against the limits.
    fn admit_request<'r>(
        &self,
        request: &'r Request,
        snapshot: &'r Snapshot,
        listener: Option<&Listener>,
        drains: bool,
    ) -> Result<AdmittedRequest<'r>, Box<RefusedRequest>> {
        let (plan, to) = self
            .plan(request, snapshot, listener, drains)
            .map_err(|refusal| RefusedRequest::new(refusal, None))?;
        let configured = snapshot.route(plan.name);
        let is_right = request.check_path(listener, snapshot);
        let protocol =
            is_right.and_then(|()| host_protocol(request, self.is_tls, listener, configured, &snapshot.model));
        let protocol = protocol.map_err(|refusal| RefusedRequest::new(plan.refusal(refusal), None))?;
        let route = RequestRoute::find(snapshot, to, request.head.path(&request.bytes));
        let counted = self.admit(configured, route).map_err(|refusal| {
            let route = configured.map(|route| route.hostname.to_string());
            RefusedRequest::new(plan.refusal(refusal), route)
        })?;
        Ok(AdmittedRequest {
            plan,
            to,
            route,
            protocol,
            counted,
        })
    }

    fn chooser<'s>(
        &self,
        request: &Request,
        snapshot: &'s Snapshot,
        to: Destination,
        route: RequestRoute<'s>,
        protocol: Protocol,
    ) -> Chooser<'s>
    where
        Self: 's,
    {
        let stays_at = route.stickiness(request, snapshot, protocol);
        let client = self.client.ip();
        Chooser::sticky(&self.worker.shared, snapshot, to, protocol, client, stays_at)
            .serving_only(route.allow, client)
            .limited(route.policy.passive.max_host_connections)
    }

    /// Passes the rest of an answer on, or leaves it to be cut.
    async fn after_head(&mut self, request: Request, asked: Asked, reached: Reached) -> AfterRequest {
        if reached.is_to_be_cut() {
            return AfterRequest::LongAnswer(Box::new(LongAnswer {
                request,
                asked,
                reached,
            }));
        }
        if let Some(why) = reached.long_but_not_cut() {
            self.listener.late_cut.inc(why.label());
        }
        self.pass(&request, &asked, reached).await
    }

    /// Performs the steps that the turn asks for, until the answer has begun or the request is given up.
    async fn reach(
        &mut self,
        request: &Request,
        plan: &RequestPlan<'_>,
        mut client: ClientSide,
        mut upstream: Upstream<'_>,
        mut turn: Turn,
    ) -> Result<Reached, AfterRequest> {
        let mut attempt: Option<Attempt> = None;
        let timeouts = route_of(request, &upstream)
            .policy
            .timeouts(upstream.snapshot.model.timeouts.http);
        let awaits_continue = request.head.expects_continue(&request.bytes);
        while !turn.has_answered() {
            match (turn.next(), &mut attempt) {
                (NextStep::Connect { may_reuse }, lost) => {
                    if let Some(lost) = lost.take() {
                        self.end_flow(&lost.link, FlowEnd::HostReset);
                        upstream.retry(lost.host.has_refused_stream);
                    }
                    let proxied = ProxiedClient {
                        client: self.client,
                        destination: self.destination,
                        name: plan.name,
                        alpn: self.alpn_of(&client.leg.stream),
                    };
                    match upstream.connect(may_reuse, proxied, &mut client.leg.stream).await {
                        Some(ReachedHost::Cut(host)) => {
                            self.decide_cut(None);
                            return Err(AfterRequest::Cut(Box::new(CutExchange {
                                client: client.leg.stream,
                                host,
                                lease: upstream.leased.lease,
                            })));
                        }
                        Some(ReachedHost::Stream(host)) => {
                            attempt = Some(self.begin(request, plan, &mut client, &upstream, &mut turn, host));
                        }
                        None if client.leg.stream.is_gone() => {
                            turn.on(TurnEvent::ClientFailed);
                        }
                        None => {
                            count_refused(upstream.snapshot, upstream.destination, plan.name, true);
                            turn.on(TurnEvent::ConnectFailed);
                        }
                    }
                }
                (NextStep::Exchange { .. }, Some(attempt)) => {
                    let waits = (timeouts, awaits_continue);
                    if !self
                        .carry_head(&mut client, attempt, &mut turn, &plan.asked, waits)
                        .await
                    {
                        self.end_flow(&attempt.link, FlowEnd::Drained);
                        let lease = &upstream.leased.lease;
                        return Err(self.abort(client, lease, "drained", attempt.host.status));
                    }
                }
                (NextStep::Exchange { .. } | NextStep::Tunnel | NextStep::Finished(_), _) => break,
            }
        }
        if turn.has_answered()
            && let (Some(share), Some(_)) = (&upstream.leased.lease.stats, &attempt)
        {
            share.quality.answer_began(request.began.elapsed());
        }
        Ok(Reached {
            client,
            attempt,
            turn,
            leased: upstream.leased,
            timeouts,
        })
    }

    /// Carries request and answer until the answer's head has been passed on, or the turn asks for another step. Returns
    /// false if the flow is closed from outside. `waits`: time limits, and whether the client waits for a 100.
    async fn carry_head(
        &mut self,
        client: &mut ClientSide,
        attempt: &mut Attempt,
        turn: &mut Turn,
        asked: &Asked,
        (timeouts, awaits_continue): (HttpTimeouts, bool),
    ) -> bool {
        let carry = Carry {
            awaits_continue,
            written: (0, client.leg.outbox.written()),
            client,
            host: &mut attempt.host,
            turn,
            asked,
            flow: &attempt.link.listed.flow,
            timeouts,
            until_answer: true,
            stopping: &self.worker.shared.life.stopping,
        };
        tokio::select! {
            biased;
            _ = carry.run(self.timer.as_mut()) => true,
            () = attempt.link.listed.flow.close.notified() => false,
        }
    }

    /// Begins the exchange over a connection to the host.
    fn begin(
        &mut self,
        request: &Request,
        plan: &RequestPlan<'_>,
        client: &mut ClientSide,
        upstream: &Upstream<'_>,
        turn: &mut Turn,
        host: HostStream,
    ) -> Attempt {
        let not_cut = host.held.as_ref().err().copied();
        if let (Some(why), true) = (not_cut, upstream.cut.is_last_request()) {
            self.decide_cut(Some(why));
        }
        turn.on(TurnEvent::HostConnected);
        if host.stream.is_stream() {
            turn.on(TurnEvent::HostMayRefuse);
        }
        let lease = &upstream.leased.lease;
        let mut fields = plan.asked.fields.clone();
        fields.extend(route_of(request, upstream).cookie_edits(request, lease, self.is_tls));
        let mut begun = Attempt {
            host: HostSide::new(host.stream, fields),
            link: HostLink {
                listed: self.open_flow(&upstream.leased, not_cut),
                log: self.log_context(request, host.connect, lease.connection_id),
                _active: host.active,
                has_cut_port: host.held.is_ok(),
                held: host.held.ok(),
            },
        };
        begun.host.repairs = lease.repairs_answers.then(|| Arc::clone(&lease.cluster));
        if upstream.may_be_long {
            begun.host.long_cut = Some(not_cut.map_or(Ok(()), Err));
            self.cuts_no_answer |= not_cut.is_some_and(Ineligible::is_of_client);
        }
        let mut head = host.preamble;
        plan.write_head(request, turn, &mut head);
        client.begin(&head, &mut begun.host.leg, turn);
        begun
    }

    /// Lists the flow of a request. `not_cut` says why it will not be cut.
    fn open_flow(&self, leased: &LeasedHost, not_cut: Option<Ineligible>) -> FlowGuard {
        let (worker, lease) = (self.worker, &leased.lease);
        let listed = worker.flows.open(
            worker.index,
            FlowContext {
                client: self.client,
                local: self.local,
                backend: lease.backend,
                listener: Arc::clone(&self.listener),
                route: leased.route.as_ref().map(|route| route.hostname.as_str().into()),
                cluster: Arc::clone(&lease.cluster),
                host: Arc::clone(&lease.host),
                stats: lease.stats.clone(),
            },
        );
        listed.flow.not_cut.set(not_cut.map_or("", Ineligible::label));
        listed.flow.tier_reason.set("one request");
        listed
    }

    fn log_context(
        &self,
        request: &Request,
        connect: Duration,
        connection_id: Option<ConnectionId>,
    ) -> Option<LogContext> {
        self.worker.shared.log.is_on().then(|| LogContext {
            request: Some(request.log_line(self.is_tls)),
            accepted: request.began,
            protocol: Protocol::Http,
            name: request.name().cloned(),
            connect,
            connection_id,
        })
    }

    /// Protocol that the client's TLS has agreed upon. Streams are of one connection in HTTP/2.
    fn alpn_of(&self, client: &Leg) -> Option<&'static str> {
        let of_streams = (self.is_http2 && self.is_tls).then_some(HttpVersion::Http2);
        of_streams.or_else(|| client.alpn()).map(HttpVersion::as_str)
    }

    /// Resets a client whose exchange is aborted from outside.
    pub(super) fn abort(
        &self,
        client: ClientSide,
        lease: &Lease,
        reason: &'static str,
        status: Option<u16>,
    ) -> AfterRequest {
        self.listener.request_refused.inc(reason);
        self.listener.requests.count(&lease.cluster.name, status.unwrap_or(503));
        reset(client.leg.stream);
        AfterRequest::Closed
    }
}
