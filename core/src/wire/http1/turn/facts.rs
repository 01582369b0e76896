//! Facts that the course of an exchange depends on.

use super::super::framing::{AnswerKind, BodyLength};
use super::super::head::{RequestHead, ResponseHead, Version};
use super::super::method::Method;

/// Facts of a request that a turn depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestFacts {
    /// Method of the request.
    pub method: Method,
    /// Version of the client.
    pub version: Version,
    /// Whether the client keeps its connection for another request.
    pub is_persistent: bool,
    /// Length of the request's body.
    pub body: BodyLength,
    /// Whether the client asks for another protocol, and the route lets it.
    pub is_upgrade: bool,
}

impl RequestFacts {
    /// Facts of a head. `is_upgrade`: the client asks for a protocol that the route lets through.
    #[must_use]
    pub const fn new(head: &RequestHead, body: BodyLength, is_upgrade: bool) -> Self {
        Self {
            method: head.method,
            version: head.version,
            is_persistent: head.is_persistent(),
            body,
            is_upgrade,
        }
    }

    pub(super) const fn has_body(&self) -> bool {
        !matches!(self.body, BodyLength::None | BodyLength::Known(0))
    }
}

/// Facts of an answer that a turn depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerFacts {
    /// Kind of the answer by its head.
    pub kind: AnswerKind,
    /// Whether the host keeps its connection for another request.
    pub is_persistent: bool,
}

impl AnswerFacts {
    /// Facts of a head.
    #[must_use]
    pub const fn new(head: &ResponseHead, kind: AnswerKind) -> Self {
        Self {
            kind,
            is_persistent: head.is_persistent(),
        }
    }
}

/// Limits that the balancer sets to an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnPolicy {
    /// How often a request may be sent again.
    pub retries: u8,
    /// How often a request may be sent again that a host has refused.
    pub refusals: u8,
    /// Bytes of a request's body that the datapath keeps, so that they can be sent again.
    pub replay_bytes: u64,
    /// Whether the client's connection may be kept.
    pub keeps_client: bool,
    /// Whether the host's connection may be kept, and one that was kept be used.
    pub keeps_host: bool,
    /// Whether the request is the first on its client's connection.
    pub is_first: bool,
}

impl Default for TurnPolicy {
    fn default() -> Self {
        Self {
            retries: 1,
            refusals: 5,
            replay_bytes: 16 * 1024,
            keeps_client: true,
            keeps_host: true,
            is_first: false,
        }
    }
}
