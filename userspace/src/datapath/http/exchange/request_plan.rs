//! Plan of a request: the facts of its head, its route, and the changes for its host.

use signalbox_core::model::{Listener, Route};
use signalbox_core::routing::view::Destination;
use signalbox_core::wire::hostname::Hostname;
use signalbox_core::wire::http::authentication::authenticates_connection;
use signalbox_core::wire::http1::edit::{self, FieldEdit, FieldName, RequestRewrite};
use signalbox_core::wire::http1::framing::{self, BodyLength};
use signalbox_core::wire::http1::grammar::elements;
use signalbox_core::wire::http1::head::Version;
use signalbox_core::wire::http1::method::Method;
use signalbox_core::wire::http1::turn::{RequestFacts, Turn};

use super::attempt::Request;
use super::connection::HttpConnection;
use super::refusal::Refusal;
use super::request_route::RequestRoute;
use crate::datapath::http::message::answer::{Asked, version_edits};
use crate::datapath::http::message::websocket::expected_accept;
use crate::datapath::http::pages;
use crate::state::Snapshot;

/// Field that tells a client to use only TLS (RFC 6797).
const STRICT_TRANSPORT_SECURITY: FieldName = FieldName::constant("Strict-Transport-Security");

/// Facts about a request from its head.
pub(super) struct RequestPlan<'a> {
    pub(super) name: Option<&'a Hostname>,
    pub(super) length: BodyLength,
    pub(super) facts: RequestFacts,
    pub(super) asked: Asked,
    /// Changes of the request's fields.
    pub(super) fields: Vec<FieldEdit>,
    /// Target for the host; `None`: the client's target.
    pub(super) target: Option<Vec<u8>>,
    /// Whether the connection may be kept after an answer by the balancer itself.
    pub(super) keeps_client: bool,
    /// Whether the host's connection would belong to this client alone.
    pub(super) is_personal: bool,
    /// Whether the client asks for another protocol, such as WebSocket, that its route allows.
    pub(super) is_upgrade: bool,
    /// Whether the client sends no further request over its connection.
    pub(super) is_last: bool,
}

impl RequestPlan<'_> {
    /// Completes an answer by the balancer itself to this request.
    pub(super) fn refusal(&self, refusal: Refusal) -> Refusal {
        Refusal {
            // A client that is told to open a new connection must not continue on this one (RFC 9110, section 15.5.20).
            keeps_client: self.keeps_client && refusal.status != 421,
            is_head: self.asked.method == Method::Head,
            ..refusal
        }
    }

    /// Whether the answer may be so long that its rest is worth a separate connection.
    pub(super) fn may_have_long_answer(&self) -> bool {
        self.asked.method == Method::Get && !self.is_upgrade && !self.is_personal
    }

    /// Appends the head for the host.
    pub(super) fn write_head(&self, request: &Request, turn: &Turn, out: &mut Vec<u8>) {
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
    /// Reads the facts from a head, and finds its route.
    pub(super) fn plan<'r>(
        &self,
        request: &'r Request,
        snapshot: &Snapshot,
        listener: Option<&Listener>,
        drains: bool,
    ) -> Result<(RequestPlan<'r>, Destination), Refusal> {
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
        let plan = RequestPlan {
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

    /// Changes of an answer's fields that the name's TLS policy requires.
    fn answer_fields(&self, route: Option<&Route>) -> impl Iterator<Item = FieldEdit> {
        let hsts = route.and_then(|route| route.tls.as_ref()?.hsts.as_ref());
        let hsts = hsts.filter(|_| self.is_tls);
        let set = hsts.map(|value| FieldEdit::Set(STRICT_TRANSPORT_SECURITY, value.clone().into_bytes()));
        set.into_iter()
    }
}
