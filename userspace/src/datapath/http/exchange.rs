//! One request: routed, sent to a host, and answered.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use signalbox_core::model::http::{AmbiguousPaths, HttpPolicy};
use signalbox_core::model::{Listener, Protocol, Route};
use signalbox_core::routing::last_request::LastRequestObstacle;
use signalbox_core::routing::view::Destination;
use signalbox_core::wire::hostname::Hostname;
use signalbox_core::wire::http1::edit::{self, FieldEdit, FieldName, RequestRewrite};
use signalbox_core::wire::http1::framing::{self, BodyLength};
use signalbox_core::wire::http1::grammar::elements;
use signalbox_core::wire::http1::head::Version;
use signalbox_core::wire::http1::method::Method;
use signalbox_core::wire::http1::turn::{NextStep, RequestFacts, Turn, TurnEvent, TurnPolicy};

use super::after::AfterRequest;
use super::answer::{Asked, HostSide, version_edits};
use super::attempt::{Attempt, HostLink, Request};
use super::body::Body;
use super::carry::Carry;
use super::client::HttpConnection;
use super::last_request::CutExchange;
use super::leg::Leg;
use super::outbox::Outbox;
use super::pages;
use super::reached::{LongAnswer, Reached};
use super::refusal::Refusal;
use super::request::ClientSide;
use super::request_route::RequestRoute;
use super::tls_policy::host_protocol;
use super::upstream::{LeasedHost, ProxiedClient, ReachedHost, Upstream, authenticates_connection};
use super::websocket::expected_accept;
use crate::datapath::choose::{Chooser, Lease};
use crate::datapath::cut::CutKind;
use crate::datapath::flow::{FlowContext, FlowGuard};
use crate::datapath::log_context::LogContext;
use crate::datapath::queue::{self, NoHost};
use crate::datapath::refuse::RefuseReason;
use crate::datapath::route::count_refused;
use crate::state::Snapshot;
use crate::state::outcome::{FlowEnd, Ineligible};

/// Field that tells a client to use only TLS (RFC 6797).
const STRICT_TRANSPORT_SECURITY: FieldName = FieldName::constant("Strict-Transport-Security");

/// Extra space for fields that are added to a head here, so that most buffers need not grow.
const ROOM_FOR_FIELDS: usize = 512;

/// Facts about a request from its head.
struct Plan<'a> {
    name: Option<&'a Hostname>,
    length: BodyLength,
    facts: RequestFacts,
    asked: Asked,
    /// Changes of the request's fields.
    fields: Vec<FieldEdit>,
    /// Target for the host; `None`: the client's target.
    target: Option<Vec<u8>>,
    /// Whether the connection may be kept after an answer by the balancer itself.
    keeps_client: bool,
    /// Whether the host's connection would belong to this client alone.
    is_personal: bool,
    /// Whether the client asks for another protocol, such as WebSocket, that its route allows.
    is_upgrade: bool,
    /// Whether the client sends no further request over its connection.
    is_last: bool,
}

impl Plan<'_> {
    /// Completes an answer by the balancer itself to this request.
    fn refusal(&self, refusal: Refusal) -> Refusal {
        Refusal {
            // A client that is told to open a new connection must not continue on this one (RFC 9110, section 15.5.20).
            keeps_client: self.keeps_client && refusal.status != 421,
            is_head: self.asked.method == Method::Head,
            ..refusal
        }
    }

    /// Whether the answer may be so long that its rest is worth a separate connection.
    fn may_have_long_answer(&self) -> bool {
        self.asked.method == Method::Get && !self.is_upgrade && !self.is_personal
    }

    /// Appends the head for the host.
    fn write_head(&self, request: &Request, turn: &Turn, out: &mut Vec<u8>) {
        let (head, bytes) = (&request.head, &request.bytes[..]);
        let rewrite = RequestRewrite {
            fields: &self.fields,
            connection: turn.request_connection(),
            target: self.target.as_deref(),
        };
        let edited = edit::request(head, bytes, &rewrite);
        edited.slices(bytes).for_each(|slice| out.extend_from_slice(slice));
    }
}

impl HttpConnection<'_> {
    /// Serves a request. `ahead` has the bytes that were read after its head.
    pub(super) async fn exchange(&mut self, mut client: Leg, mut request: Request, ahead: Vec<u8>) -> AfterRequest {
        // Each request uses the current snapshot, not the one from when the client connected.
        let snapshot = self.worker.shared.snapshot.load_full();
        let bound = snapshot.binds.find(self.local);
        let listener = bound.map(|at| &snapshot.model.listeners[at]);
        let drains =
            self.worker.shared.stopping.load(Relaxed) || !self.is_served_by(listener, snapshot.route(request.name()));
        let default_policy = HttpPolicy::default();
        let http = listener.map_or(&default_policy, |listener| &listener.http);
        if http.ambiguous_paths == AmbiguousPaths::Normalize {
            request.normalize_path(&self.limits);
        }
        self.client = self.client_of(&request, http);
        request.id = self.id_of(&request, http);
        let (plan, to) = match self.plan(&request, &snapshot, listener, drains) {
            Ok(plan) => plan,
            Err(refusal) => return self.refuse(client, &request, refusal, None, ahead).await,
        };
        let configured = snapshot.route(plan.name);
        let protocol = request.check_path(listener, &snapshot);
        let protocol =
            protocol.and_then(|()| host_protocol(&request, self.is_tls, listener, configured, &snapshot.model));
        let protocol = match protocol {
            Ok(protocol) => protocol,
            Err(refusal) => return self.refuse(client, &request, plan.refusal(refusal), None, ahead).await,
        };
        let route = RequestRoute::find(&snapshot, to, request.head.path(&request.bytes));
        // Counted until the answer or its tunnel has ended.
        let counted = match self.admit(configured, route) {
            Ok(counted) => counted,
            Err(refusal) => {
                let (refusal, route) = (
                    plan.refusal(refusal),
                    configured.map(|route| route.hostname.to_string()),
                );
                return self.refuse(client, &request, refusal, route.as_deref(), ahead).await;
            }
        };
        let mut chooser = {
            let stays_at = route.stickiness(&request, &snapshot, protocol);
            let (shared, client) = (&self.worker.shared, self.client.ip());
            Chooser::sticky(shared, &snapshot, to, protocol, client, stays_at)
                .serving_only(route.allow, client)
                .limited(route.policy.passive.max_host_connections)
        };
        let patience = snapshot.model.timeouts.queue;
        let lease = match queue::next_host(&mut chooser, patience, || client.is_gone()).await {
            Ok(lease) => lease,
            Err(NoHost::ClientGone) => return self.client_gone(client, &request, configured),
            Err(NoHost::Unavailable) => {
                let why = match to {
                    Destination::NoRoute if plan.name.is_none() => RefuseReason::NoName,
                    Destination::NoRoute => RefuseReason::NoRoute,
                    _ if chooser.queue().is_some() => RefuseReason::HostsFull,
                    _ => RefuseReason::NoHost,
                };
                let route = count_refused(&snapshot, to, plan.name, false);
                let (status, text) = why.http().unwrap_or((503, pages::text(503)));
                let refusal = plan.refusal(Refusal::new(status, why.label(), text));
                return self.refuse(client, &request, refusal, route, ahead).await;
            }
        };
        let state = Arc::clone(&self.listener);
        let is_counted = counted.iter().any(Option::is_some);
        let cuts_last = listener.is_some_and(|listener| listener.datapath.cuts_last_requests);
        let is_last = cuts_last && plan.is_last && self.is_undecided;
        let leg_a = match (plan.is_upgrade, protocol) {
            (true, Protocol::Http) => self.leg_a(CutKind::Tunnel, &client, listener, is_counted, &state),
            _ if self.is_tls || protocol == Protocol::Tls => Err(Ineligible::Terminated),
            _ if is_last => self
                .last_request(&request, plan.length, ahead.len(), route.policy)
                .and_then(|()| self.leg_a(CutKind::LastRequest, &client, listener, is_counted, &state))
                .and_then(|leg_a| self.fits_cut(&client, &lease).map(|()| leg_a)),
            _ => Err(Ineligible::PerRequest),
        };
        if let (Err(why), true) = (&leg_a, is_last && !plan.is_upgrade) {
            self.decide_cut(Some(*why));
        }
        let cuts_long = listener.is_some_and(|listener| listener.datapath.cuts_long_answers);
        let is_plain = !self.is_tls && protocol == Protocol::Http;
        let may_be_long = cuts_long && is_plain && plan.may_have_long_answer();
        let leg_a = match leg_a {
            Err(_) if may_be_long && !ahead.is_empty() => {
                Err(Ineligible::LastRequest(LastRequestObstacle::BytesBehind))
            }
            Err(_) if may_be_long && !self.cuts_no_answer => self
                .leg_a(CutKind::LongAnswer, &client, listener, is_counted, &state)
                .and_then(|leg_a| self.fits_cut(&client, &lease).map(|()| leg_a)),
            leg_a => leg_a,
        };
        let policy = TurnPolicy {
            keeps_client: !drains,
            // A connection to be cut was made with this client's options, so no other client can use it.
            keeps_host: !lease.proxy_protocol && !plan.is_personal && leg_a.is_err(),
            is_first: std::mem::take(&mut self.is_first),
            ..TurnPolicy::default()
        };
        let route = match to {
            Destination::Route(route) | Destination::Path(route, _) => snapshot.routes.get(route).cloned(),
            _ => None,
        };
        let turn = Turn::new(plan.facts, policy);
        let (mut leg_a, mut last_request) = (leg_a, None);
        if let Ok(leg_a) = &mut leg_a
            && leg_a.kind == CutKind::LastRequest
        {
            leg_a.consumed = self.consumed + (request.taken + ahead.len()) as u32;
            let mut bytes = Vec::with_capacity(request.bytes.len() + ahead.len() + ROOM_FOR_FIELDS);
            plan.write_head(&request, &turn, &mut bytes);
            bytes.extend_from_slice(&ahead);
            last_request = Some(bytes);
        }
        let upstream = Upstream {
            worker: self.worker,
            snapshot: &snapshot,
            chooser,
            is_tls: protocol == Protocol::Tls,
            leg_a,
            last_request,
            is_upgrade: plan.is_upgrade,
            is_personal: plan.is_personal,
            host_room: self.host_room.clone(),
            leased: LeasedHost {
                lease,
                session: None,
                route,
            },
        };
        let client = ClientSide::new(client, Outbox::default(), Body::new(plan.length, &self.limits), ahead);
        let reached = self
            .reach(&request, &plan, client, upstream, turn, (to, may_be_long))
            .await;
        // The rest of the answer may take hours: an old configuration is not kept for that time.
        drop(snapshot);
        let mut after = match reached {
            Ok(reached) if reached.is_to_be_cut() => {
                let asked = plan.asked;
                return AfterRequest::LongAnswer(Box::new(LongAnswer {
                    request,
                    asked,
                    reached,
                }));
            }
            Ok(reached) => {
                if let Some(why) = reached.long_but_not_cut() {
                    self.listener.late_cut.inc(why.label());
                }
                self.pass(&request, &plan.asked, reached).await
            }
            Err(after) => after,
        };
        if let AfterRequest::Tunnel(tunnel) = &mut after {
            tunnel.keep_counted(counted);
        }
        after
    }

    /// Reads the facts from a head, and finds its route.
    fn plan<'r>(
        &self,
        request: &'r Request,
        snapshot: &Snapshot,
        listener: Option<&Listener>,
        drains: bool,
    ) -> Result<(Plan<'r>, Destination), Refusal> {
        let (head, bytes) = (&request.head, &request.bytes[..]);
        let refused = |status, reason| Refusal::new(status, reason, pages::text(status));
        let length = framing::request_body(head, bytes).map_err(|fault| refused(fault.status(), fault.label()))?;
        if head.method == Method::Connect {
            return Err(refused(501, "connect_unsupported"));
        }
        let has_body = !matches!(length, BodyLength::None | BodyLength::Known(0));
        let is_kept = head.is_persistent() && head.version == Version::Http11;
        let name = request.name();
        let fallback = listener.and_then(Listener::fallback);
        let to = snapshot.view.request_destination(name, head.path(bytes), fallback);
        let route = RequestRoute::find(snapshot, to, head.path(bytes));
        let mut fields = listener.map_or_else(Vec::new, |listener| {
            let forwarded = route.policy.passive.forwarded.unwrap_or(listener.http.forwarded);
            self.request_fields(request, &listener.http, forwarded)
        });
        fields.extend(route.request_edits(request));
        let upgrades = request.upgrades(route.policy);
        let is_upgrade = !upgrades.is_empty();
        // The stream would take a host's success for an accepted WebSocket.
        if self.is_http2 && !is_upgrade && head.upgrades(bytes).next().is_some() {
            return Err(refused(501, "connect_unsupported"));
        }
        let plan = Plan {
            name,
            length,
            facts: RequestFacts::new(head, length, is_upgrade),
            asked: Asked {
                method: head.method,
                // Streams always allow trailers.
                takes_trailers: self.is_http2
                    || request.has("te", |te| elements(te).any(|e| e.eq_ignore_ascii_case(b"trailers"))),
                limits: self.limits,
                websocket_accept: (self.is_http2 && is_upgrade)
                    .then(|| expected_accept(head, bytes))
                    .flatten(),
                upgrades,
                fields: self
                    .answer_fields(snapshot.route(name))
                    .chain(route.answer_edits())
                    .chain(version_edits(head.version))
                    .collect(),
            },
            fields,
            target: route.target(request),
            keeps_client: is_kept && !has_body && !drains,
            is_personal: request.has("authorization", authenticates_connection),
            is_upgrade,
            is_last: !head.is_persistent(),
        };
        Ok((plan, to))
    }

    /// Performs the steps that the turn asks for, until the answer has begun or the request is given up.
    async fn reach(
        &mut self,
        request: &Request,
        plan: &Plan<'_>,
        mut client: ClientSide,
        mut upstream: Upstream<'_>,
        mut turn: Turn,
        (to, may_be_long): (Destination, bool),
    ) -> Result<Reached, AfterRequest> {
        let mut attempt: Option<Attempt> = None;
        let route = RequestRoute::find(upstream.snapshot, to, request.head.path(&request.bytes));
        let timeouts = route.policy.timeouts(upstream.snapshot.model.timeouts.http);
        let awaits_continue = request.head.expects_continue(&request.bytes);
        while !turn.has_answered() {
            match (turn.next(), &mut attempt) {
                (NextStep::Connect { may_reuse }, lost) => {
                    if let Some(lost) = lost.take() {
                        upstream.leased.lease.cluster.retries.inc();
                        self.end_flow(&lost.link, FlowEnd::HostReset);
                        upstream.give_up_cut();
                        if lost.host.has_refused_stream {
                            upstream.choose_other();
                        }
                    }
                    let proxied = ProxiedClient {
                        client: self.client,
                        destination: self.destination,
                        name: plan.name,
                    };
                    match upstream.connect(may_reuse, proxied, &mut client.stream).await {
                        Some(ReachedHost::Cut(host)) => {
                            self.decide_cut(None);
                            return Err(AfterRequest::Cut(Box::new(CutExchange {
                                client: client.into_parts().0,
                                host,
                                lease: upstream.leased.lease,
                            })));
                        }
                        Some(ReachedHost::Stream(host)) => {
                            if let (Err(why), true) = (&host.held, upstream.last_request.is_some()) {
                                self.decide_cut(Some(*why));
                            }
                            turn.on(TurnEvent::HostConnected);
                            if host.stream.is_stream() {
                                turn.on(TurnEvent::HostMayRefuse);
                            }
                            let mut fields = plan.asked.fields.clone();
                            fields.extend(route.cookie_edits(request, &upstream.leased.lease, self.is_tls));
                            let long_cut = may_be_long.then(|| host.held.as_ref().map(|_| ()).map_err(|why| *why));
                            if let Some(Err(why)) = &long_cut {
                                self.cuts_no_answer |= why.is_of_client();
                            }
                            let mut begun = Attempt {
                                host: HostSide::new(host.stream, Outbox::default(), fields),
                                link: HostLink {
                                    listed: self.open_flow(&upstream.leased, host.held.as_ref().err().copied()),
                                    log: self.log_context(request, host.connect),
                                    _active: host.active,
                                    has_cut_port: host.held.is_ok(),
                                    held: host.held.ok(),
                                },
                            };
                            let lease = &upstream.leased.lease;
                            begun.host.repairs = lease.repairs_answers.then(|| Arc::clone(&lease.cluster));
                            begun.host.long_cut = long_cut;
                            let mut head = host.preamble;
                            plan.write_head(request, &turn, &mut head);
                            client.begin(&head, &mut begun.host, &mut turn);
                            attempt = Some(begun);
                        }
                        None if client.stream.is_gone() => {
                            turn.on(TurnEvent::ClientFailed);
                        }
                        None => {
                            count_refused(upstream.snapshot, to, plan.name, true);
                            turn.on(TurnEvent::ConnectFailed);
                        }
                    }
                }
                (NextStep::Exchange { .. }, Some(attempt)) => {
                    let carry = Carry {
                        awaits_continue,
                        written: (0, client.to_client.written()),
                        client: &mut client,
                        host: &mut attempt.host,
                        turn: &mut turn,
                        asked: &plan.asked,
                        flow: &attempt.link.listed.flow,
                        timeouts,
                        until_answer: true,
                        stopping: &self.worker.shared.stopping,
                    };
                    tokio::select! {
                        biased;
                        _ = carry.run(self.timer.as_mut()) => {}
                        () = attempt.link.listed.flow.close.notified() => {
                            self.end_flow(&attempt.link, FlowEnd::Drained);
                            let lease = &upstream.leased.lease;
                            return Err(self.abort(client, lease, "drained", attempt.host.status));
                        }
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

    /// Changes of an answer's fields that the name's TLS policy requires.
    fn answer_fields(&self, route: Option<&Route>) -> impl Iterator<Item = FieldEdit> {
        let hsts = route.and_then(|route| route.tls.as_ref()?.hsts.as_ref());
        let hsts = hsts.filter(|_| self.is_tls);
        let set = hsts.map(|value| FieldEdit::Set(STRICT_TRANSPORT_SECURITY, value.clone().into_bytes()));
        set.into_iter()
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

    fn log_context(&self, request: &Request, connect: Duration) -> Option<LogContext> {
        self.worker.shared.log.is_on().then(|| LogContext {
            request: Some(request.log_line(self.is_tls)),
            accepted: request.began,
            protocol: Protocol::Http,
            name: request.name().cloned(),
            connect,
        })
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
        super::linger::reset(client.stream);
        AfterRequest::Closed
    }
}
