//! Requests that the balancer answers itself.

use std::time::{Duration, Instant};

use signalbox_core::model::Protocol;
use tokio::time::timeout;

use super::after::AfterRequest;
use super::attempt::Request;
use super::connection::HttpConnection;
use crate::datapath::http::leg::Leg;
use crate::datapath::http::leg::linger::linger;
use crate::datapath::http::leg::outbox::Outbox;
use crate::datapath::http::pages::Page;
use crate::datapath::log_context::{HTTPS, PendingConnection};
use crate::state::Shared;

/// Time for a client to accept an answer by the balancer itself.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// An answer by the balancer itself, and its reason.
pub(in crate::datapath::http) struct Refusal {
    pub(in crate::datapath::http) status: u16,
    /// Metric label.
    pub(in crate::datapath::http) reason: &'static str,
    pub(super) text: &'static str,
    pub(super) keeps_client: bool,
    pub(super) is_head: bool,
    /// URL that the client is redirected to.
    pub(super) location: Option<String>,
    /// Time after which the client may try again.
    pub(super) retry_after_seconds: Option<u64>,
    /// Bytes to send before the answer.
    pub(super) before: Vec<u8>,
}

impl Refusal {
    /// Answer after which the connection is closed.
    pub(in crate::datapath::http) const fn new(status: u16, reason: &'static str, text: &'static str) -> Self {
        Self {
            status,
            reason,
            text,
            keeps_client: false,
            is_head: false,
            location: None,
            retry_after_seconds: None,
            before: Vec::new(),
        }
    }

    /// Sends the answer.
    pub(in crate::datapath::http) async fn send(mut self, shared: &Shared, mut client: Leg) -> AfterRequest {
        let page = Page {
            status: self.status,
            text: self.text,
            keeps_client: self.keeps_client,
            is_head: self.is_head,
            location: self.location.as_deref(),
            retry_after_seconds: self.retry_after_seconds,
        };
        self.before.extend(page.to_bytes(&shared.error_pages.load()));
        let mut answer = Outbox::default();
        answer.push(&self.before);
        let sent = timeout(ANSWER_TIMEOUT, answer.write_all(&mut client)).await;
        if !matches!(sent, Ok(Ok(()))) {
            return AfterRequest::Closed;
        }
        if self.keeps_client {
            return AfterRequest::Kept(client);
        }
        linger(client).await;
        AfterRequest::Closed
    }
}

impl HttpConnection<'_> {
    /// Counts and logs a request without a cluster, or the event in its place.
    pub(in crate::datapath::http) fn count_refused(
        &self,
        reason: &'static str,
        status: u16,
        route: Option<&str>,
        request: Option<&Request>,
    ) {
        self.listener.request_refused.inc(reason);
        self.listener.requests.count("", status);
        self.log_refused(reason, Some(status), route, request);
    }

    /// Logs a request that no host has answered.
    pub(super) fn log_refused(
        &self,
        reason: &'static str,
        status: Option<u16>,
        route: Option<&str>,
        request: Option<&Request>,
    ) {
        let shared = &self.worker.shared;
        if !shared.log.is_on() {
            return;
        }
        let line = request.map(|request| request.log_line(self.is_tls));
        if let Some(line) = &line {
            line.status.set(status);
        }
        let pending = PendingConnection {
            shared,
            listener: &self.listener,
            protocol: if self.is_tls { HTTPS } else { Protocol::Http.as_str() },
            client: self.client,
            local: self.local,
            accepted: request.map_or_else(Instant::now, |request| request.began),
            request: line.as_ref(),
        };
        pending.log_refused(request.and_then(Request::name), route, reason);
    }
}
