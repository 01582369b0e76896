//! The end of an exchange: the remaining bytes, the counts, and the further use of both connections.

use std::os::fd::AsRawFd as _;

use signalbox_core::model::Route;
use signalbox_core::wire::http1::method::Method;
use signalbox_core::wire::http1::turn::{ClientAfter, HostAfter, TurnEnding, TurnFault};

use super::after::AfterRequest;
use super::attempt::{Attempt, HostLink, Request};
use super::connection::HttpConnection;
use super::refusal::Refusal;
use crate::datapath::http::host::upstream::LeasedHost;
use crate::datapath::http::leg::Leg;
use crate::datapath::http::leg::linger::{close, linger, reset};
use crate::datapath::http::message::request::ClientSide;
use crate::datapath::http::pages;
use crate::datapath::refuse::RefuseReason;
use crate::state::outcome::FlowEnd;
use crate::sys;

impl HttpConnection<'_> {
    /// Ends an exchange.
    pub(super) async fn finish(
        &mut self,
        request: &Request,
        ending: TurnEnding,
        client: ClientSide,
        attempt: Option<Attempt>,
        leased: LeasedHost,
    ) -> AfterRequest {
        let cluster = &leased.lease.cluster.name;
        let begun = attempt.as_ref().and_then(|attempt| attempt.host.status);
        let status = ending
            .answer
            .or(begun)
            .unwrap_or_else(|| ending.fault.map_or(500, TurnFault::status));
        self.listener.requests.count(cluster, status);
        leased.lease.cluster.request_seconds.observe(request.began.elapsed());
        if let Some(fault) = ending.fault {
            self.listener.request_refused.inc(label(fault));
        }
        match attempt {
            Some(attempt) => {
                attempt.link.set_status(status);
                if let Some(share) = &leased.lease.stats {
                    share.quality.answered(status);
                }
                self.end_flow(&attempt.link, flow_end(ending.fault));
                if attempt.link.has_cut_port
                    && ending.fault.is_none()
                    && let Some(host) = attempt.host.leg.stream.tcp()
                {
                    sys::reset_on_close(host.as_raw_fd());
                }
                if ending.host == HostAfter::Reuse {
                    let is_personal = attempt.host.is_personal;
                    leased.keep(self.worker, attempt.host.leg.stream, is_personal);
                }
            }
            None => {
                let route = leased.route.as_ref().map(|route| route.hostname.as_str());
                let why = RefuseReason::ConnectFailed.label();
                self.log_refused(why, Some(status), route, Some(request));
            }
        }
        // The host is done with the request, so it is not counted while the client lingers.
        drop(leased);
        let (stream, mut to_client, ahead) = client.leg.into_parts();
        if let Some(status) = ending.answer {
            let refusal = Refusal {
                keeps_client: ending.client == ClientAfter::Keep,
                is_head: request.head.method == Method::Head,
                // Interim answers may still wait to be written. The balancer's answer follows them.
                before: to_client.take(),
                ..Refusal::new(status, "", pages::text(status))
            };
            self.bytes = ahead;
            return refusal.send(&self.worker.shared, stream).await;
        }
        match ending.client {
            ClientAfter::Keep => {
                self.bytes = ahead;
                return AfterRequest::Kept(stream);
            }
            ClientAfter::Close => close(stream, !ahead.is_empty()).await,
            ClientAfter::Linger => linger(stream).await,
            ClientAfter::Abort => reset(stream),
        }
        AfterRequest::Closed
    }

    /// Answers a request that is not sent to a host.
    pub(super) async fn refuse(
        &mut self,
        client: Leg,
        request: &Request,
        refusal: Refusal,
        route: Option<&str>,
        ahead: Vec<u8>,
    ) -> AfterRequest {
        self.count_refused(refusal.reason, refusal.status, route, Some(request));
        self.bytes = ahead;
        refusal.send(&self.worker.shared, client).await
    }

    /// Gives up a request whose client left before a host had room.
    pub(super) fn client_gone(&self, client: Leg, request: &Request, route: Option<&Route>) -> AfterRequest {
        let (fault, route) = (TurnFault::ClientGone, route.map(|route| route.hostname.to_string()));
        self.count_refused(fault.label(), fault.status(), route.as_deref(), Some(request));
        reset(client);
        AfterRequest::Closed
    }

    /// Counts and logs the end of an attempt at a host.
    pub(super) fn end_flow(&self, link: &HostLink, end: FlowEnd) {
        let flow = &link.listed.flow;
        flow.context.cluster.closed[end as usize].inc();
        if let Some(log) = &link.log {
            log.log_end(&self.worker.shared, &flow.context, Some(flow), flow.tier(), end);
        }
    }
}

/// Metric label of a fault. An unreachable host has the same label as for connections.
const fn label(fault: TurnFault) -> &'static str {
    match fault {
        TurnFault::HostUnreachable => RefuseReason::ConnectFailed.label(),
        fault => fault.label(),
    }
}

const fn flow_end(fault: Option<TurnFault>) -> FlowEnd {
    match fault {
        None => FlowEnd::Finished,
        Some(TurnFault::ClientGone | TurnFault::RequestCutOff) => FlowEnd::ClientReset,
        Some(TurnFault::NoAnswer | TurnFault::AnswerCutOff | TurnFault::HostUnreachable) => FlowEnd::HostReset,
        Some(TurnFault::AnswerTimeout | TurnFault::RequestTimeout) => FlowEnd::Idle,
        Some(_) => FlowEnd::Failed,
    }
}
