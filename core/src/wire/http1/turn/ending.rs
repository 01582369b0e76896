//! How an exchange ends.

use super::fault::TurnFault;

/// How an exchange ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnEnding {
    /// Status code of the balancer's own answer, which is sent first, without a body to HEAD. Its Connection field says
    /// `close` unless the client's connection is kept.
    pub answer: Option<u16>,
    /// Fate of the client's connection.
    pub client: ClientAfter,
    /// Fate of the host's connection, if there is one.
    pub host: HostAfter,
    /// Reason why the exchange failed, if it did.
    pub fault: Option<TurnFault>,
}

impl TurnEnding {
    pub(super) const fn closed() -> Self {
        Self {
            answer: None,
            client: ClientAfter::Close,
            host: HostAfter::Close,
            fault: None,
        }
    }

    pub(super) const fn aborted(fault: TurnFault) -> Self {
        Self {
            answer: None,
            client: ClientAfter::Abort,
            host: HostAfter::Close,
            fault: Some(fault),
        }
    }
}

/// Fate of the client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAfter {
    /// Reset it: the client must see that its answer is not whole.
    Abort,
    /// Close it.
    Close,
    /// Read the next request.
    Keep,
    /// Close the sending side, and read and drop what still comes for a while: a reset because of unread bytes would
    /// destroy the answer (RFC 9112, section 9.6).
    Linger,
}

/// Fate of the host's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostAfter {
    /// Close it.
    Close,
    /// Keep it for another request, unless unexpected bytes are there.
    Reuse,
}
