//! Words between a datapath and a [`Turn`](super::Turn): events, steps, and actions on an answer's head.

use super::super::edit::ConnectionField;
use super::ending::TurnEnding;

/// Event that the datapath reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnEvent {
    /// Bytes of an answer have come that are no whole head yet.
    AnswerBytes,
    /// The answer has been passed on to its end. An answer without a body ends with its head.
    AnswerEnded,
    /// The client will send nothing more (end of file).
    ClientClosed,
    /// The client's connection is broken.
    ClientFailed,
    /// The request's body breaks the rules.
    ClientMalformed,
    /// The request's body has stalled for too long.
    ClientTimedOut,
    /// No host could be connected to.
    ConnectFailed,
    /// The process or listener shuts down: nothing is kept from now on.
    Drain,
    /// The host has closed its connection (end of file). `is_clean` is false where TLS was not ended by a
    /// `close_notify`.
    HostClosed {
        /// Whether the end is certain to be the host's.
        is_clean: bool,
    },
    /// A connection to a host is established.
    HostConnected,
    /// Bytes have come from the host that belong to no answer.
    HostExtraBytes,
    /// The host's connection is broken.
    HostFailed,
    /// The current connection is one on which a host can refuse requests ([`HostRefused`](Self::HostRefused)).
    HostMayRefuse,
    /// The answer's head, framing or body breaks the rules.
    HostMalformed,
    /// The host reports that it has not processed the request (RFC 9113, section 8.7): any method may be sent again.
    HostRefused,
    /// The host takes no more of the request; its answer may be on its way.
    HostStopped,
    /// The host has not answered in time.
    HostTimedOut,
    /// The first byte of the request's head may have been written.
    RequestBegun,
    /// This many bytes of the request's body were passed on.
    RequestBody(u64),
    /// The request has been passed on to its end. A request without a body ends with its head.
    RequestEnded,
    /// The tunnel has been closed in both directions.
    TunnelEnded,
}

/// Step for the datapath to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Get a connection to a host, and send the request from its head on.
    Connect {
        /// Whether the connection may be one that was kept after another exchange.
        may_reuse: bool,
    },
    /// Pass on request and answer, both at a time.
    Exchange {
        /// Whether the request must still be read from the client and passed on.
        passes_request: bool,
    },
    /// The exchange is over.
    Finished(TurnEnding),
    /// Pass on bytes in both directions. The bytes that the client sent after its request come first; none of them has
    /// been passed on yet (RFC 9110, section 7.8).
    Tunnel,
}

/// Action on an answer's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerAction {
    /// Drop it: an interim answer that the client does not know (RFC 9110, section 15.2).
    Drop,
    /// Pass it on with this Connection field.
    Pass(ConnectionField),
    /// Pass on nothing: [`next`](super::Turn::next) returns the next step.
    Refuse,
}
