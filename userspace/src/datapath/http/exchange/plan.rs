//! Plan of an exchange whose host is leased: what of it the kernel may carry, and the way to the host.

use std::sync::Arc;

use signalbox_core::model::{Listener, Protocol};
use signalbox_core::routing::last_request::LastRequestObstacle;
use signalbox_core::routing::view::Destination;
use signalbox_core::wire::http1::turn::{Turn, TurnPolicy};

use super::attempt::Request;
use super::connection::HttpConnection;
use super::request_plan::RequestPlan;
use super::request_route::RequestRoute;
use crate::datapath::choose::{Chooser, Lease};
use crate::datapath::cut::CutKind;
use crate::datapath::http::host::cut_plan::CutPlan;
use crate::datapath::http::host::leg_a::LegA;
use crate::datapath::http::host::upstream::{LeasedHost, Upstream};
use crate::datapath::http::leg::Leg;
use crate::state::outcome::Ineligible;
use crate::state::{ListenerState, Snapshot};

/// Extra space for fields that are added to a head here, so that most buffers need not grow.
const ROOM_FOR_FIELDS: usize = 512;

/// An exchange whose host is leased.
pub(super) struct PlannedExchange<'a, 'r> {
    pub(super) request: &'r Request,
    pub(super) plan: &'r RequestPlan<'r>,
    pub(super) route: RequestRoute<'r>,
    pub(super) listener: Option<&'r Listener>,
    pub(super) state: &'a Arc<ListenerState>,
    pub(super) lease: Lease,
    pub(super) protocol: Protocol,
    /// Bytes that were read after the request's head.
    pub(super) ahead: &'r [u8],
    /// Whether the request or its tunnel counts against a limit that only userspace can give back.
    pub(super) is_counted: bool,
}

impl PlannedExchange<'_, '_> {
    /// Whether the answer may be so long that its rest is worth a connection of its own. The reason why such an answer
    /// is not cut is counted.
    fn may_be_long(&self, is_tls: bool) -> bool {
        let cuts = self
            .listener
            .is_some_and(|listener| listener.datapath.cuts_long_answers);
        cuts && !is_tls && self.protocol == Protocol::Http && self.plan.may_have_long_answer()
    }
}

impl HttpConnection<'_> {
    /// Plans the part that the kernel may carry. The connection's cut is decided, and counted, by its first request.
    fn plan_cut<'a>(&mut self, exchange: &PlannedExchange<'a, '_>, client: &Leg) -> CutPlan<'a> {
        let plan = exchange.plan;
        let cuts_last = exchange
            .listener
            .is_some_and(|listener| listener.datapath.cuts_last_requests);
        let is_last = cuts_last && plan.is_last && self.is_undecided;
        let why = match (plan.is_upgrade, exchange.protocol) {
            (true, Protocol::Http) => match self.leg_a_of(exchange, CutKind::Tunnel, client) {
                Ok(leg_a) => return CutPlan::Tunnel(leg_a),
                Err(why) => why,
            },
            _ if self.is_tls || exchange.protocol == Protocol::Tls => Ineligible::Terminated,
            _ if is_last => match self.leg_a_of_last_request(exchange, client) {
                Ok(leg_a) => return CutPlan::LastRequest(leg_a, Vec::new()),
                Err(why) => why,
            },
            _ => Ineligible::PerRequest,
        };
        if is_last && !plan.is_upgrade {
            self.decide_cut(Some(why));
        }
        if !exchange.may_be_long(self.is_tls) {
            return CutPlan::No(why);
        }
        if !exchange.ahead.is_empty() {
            return CutPlan::No(Ineligible::LastRequest(LastRequestObstacle::BytesBehind));
        }
        if self.cuts_no_answer {
            return CutPlan::No(why);
        }
        let leg_a = self.leg_a_of(exchange, CutKind::LongAnswer, client);
        match leg_a.and_then(|leg_a| self.fits_cut(client, &exchange.lease).map(|()| leg_a)) {
            Ok(leg_a) => CutPlan::LongAnswer(leg_a),
            Err(why) => CutPlan::No(why),
        }
    }

    fn leg_a_of<'a>(
        &self,
        exchange: &PlannedExchange<'a, '_>,
        kind: CutKind,
        client: &Leg,
    ) -> Result<LegA<'a>, Ineligible> {
        self.leg_a(kind, client, exchange.listener, exchange.is_counted, exchange.state)
    }

    fn leg_a_of_last_request<'a>(
        &self,
        exchange: &PlannedExchange<'a, '_>,
        client: &Leg,
    ) -> Result<LegA<'a>, Ineligible> {
        let (request, plan) = (exchange.request, exchange.plan);
        self.last_request(request, plan.length, exchange.ahead.len(), exchange.route.policy)?;
        let mut leg_a = self.leg_a_of(exchange, CutKind::LastRequest, client)?;
        self.fits_cut(client, &exchange.lease)?;
        leg_a.consumed = self.consumed + (request.taken + exchange.ahead.len()) as u32;
        Ok(leg_a)
    }

    /// Plans the way to the host, and the steps of the exchange.
    pub(super) fn plan_upstream<'u>(
        &mut self,
        exchange: PlannedExchange<'u, '_>,
        to: Destination,
        chooser: Chooser<'u>,
        snapshot: &'u Snapshot,
        client: &Leg,
        drains: bool,
    ) -> (Turn, Upstream<'u>)
    where
        Self: 'u,
    {
        let may_be_long = exchange.may_be_long(self.is_tls);
        let mut cut = self.plan_cut(&exchange, client);
        let PlannedExchange {
            request,
            plan,
            lease,
            protocol,
            ahead,
            ..
        } = exchange;
        let policy = TurnPolicy {
            keeps_client: !drains,
            // A connection to be cut was made with this client's options, so no other client can use it.
            keeps_host: lease.proxy.is_none() && !plan.is_personal && cut.obstacle().is_some(),
            is_first: std::mem::take(&mut self.is_first),
            ..TurnPolicy::default()
        };
        let turn = Turn::new(plan.facts, policy);
        if let CutPlan::LastRequest(_, bytes) = &mut cut {
            bytes.reserve(request.bytes.len() + ahead.len() + ROOM_FOR_FIELDS);
            plan.write_head(request, &turn, bytes);
            bytes.extend_from_slice(ahead);
        }
        let route = match to {
            Destination::Route(route) | Destination::Path(route, _) => snapshot.routes.get(route).cloned(),
            _ => None,
        };
        let upstream = Upstream {
            worker: self.worker,
            snapshot,
            chooser,
            destination: to,
            is_tls: protocol == Protocol::Tls,
            cut,
            may_be_long,
            is_upgrade: plan.is_upgrade,
            is_personal: plan.is_personal,
            host_room: self.host_room.clone(),
            leased: LeasedHost {
                lease,
                session: None,
                route,
            },
        };
        (turn, upstream)
    }
}
