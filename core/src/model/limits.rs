//! Time limits, and limits against greedy clients.

use serde::Serialize;
use std::time::Duration;

use crate::wire::http1::limits::MessageLimits;

/// Time limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Timeouts {
    /// Limit of one connect to a host.
    pub connect: Duration,
    /// Wait for a host with room, where hosts have a limit of connections.
    pub queue: Duration,
    /// Limit for the head of an HTTP request to arrive.
    pub peek_http: Duration,
    /// Limit for a ClientHello to arrive.
    pub peek_tls: Duration,
    /// Time without a byte either way after which a flow is ended.
    pub idle: Duration,
    /// Time that flows get to end on their own when signalbox is told to stop.
    pub shutdown: Duration,
    /// Time that flows get to end on their own when their route, cluster or host is taken out of rotation.
    pub drain: Duration,
    /// Longest wait, from the start, for watched clusters to be read; signalbox is not ready until the wait ends.
    pub first_read: Duration,
    /// Time limits of requests that are routed one by one ([`Routing::Request`]).
    pub http: HttpTimeouts,
}

/// Time limits of requests that are routed one by one. [`Timeouts::peek_http`] is that of a request's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HttpTimeouts {
    /// Time that a client's connection is kept for the next request.
    pub keep_alive: Duration,
    /// Time in which a body must make progress, in either direction.
    pub body: Duration,
    /// Time from the end of a request to the head of its answer.
    pub answer: Duration,
    /// Time without a byte either way after which a tunnel (WebSocket) is ended.
    pub tunnel: Duration,
}

/// Limits against greedy clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Most connections at once in all; `None`: as many as the descriptor limit allows.
    pub max_connections: Option<u32>,
    /// Number of entries in the flow table of tier `cut`.
    pub cut_flows: u32,
    /// Limits of each source address.
    pub per_source: PerSource,
    /// Limits of TLS handshakes in progress.
    pub handshakes: HandshakeLimits,
    /// Limits of the heads of requests and answers.
    pub heads: HeadLimits,
}

/// Limits of the heads of requests and answers, where requests are routed one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HeadLimits {
    /// Most bytes.
    pub bytes: u32,
    /// Most fields.
    pub fields: u16,
}

impl Default for HeadLimits {
    fn default() -> Self {
        Self {
            bytes: 32 * 1024,
            fields: 128,
        }
    }
}

impl HeadLimits {
    /// Limits of messages whose heads have these.
    #[must_use]
    pub const fn of_messages(self) -> MessageLimits {
        MessageLimits::of_heads(self.bytes as usize, self.fields as usize)
    }
}

/// Limits of TLS handshakes in progress at a worker; 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HandshakeLimits {
    /// Most handshakes at once.
    pub per_worker: u32,
    /// Most handshakes at once with one source address (/32, /64).
    pub per_source: u32,
}

/// Limits for each source address (/32, /64); 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PerSource {
    /// Most connections at once.
    pub concurrent: u32,
    /// Most new connections in a second.
    pub per_second: u32,
    /// Most connections at once that are still being peeked at.
    pub peeking: u32,
}
