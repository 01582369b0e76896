//! State of a client's connection after a request.

use super::last_request::CutExchange;
use super::leg::Leg;
use super::reached::LongAnswer;
use super::tunnel::Tunnel;

/// State of a client's connection after a request.
pub(super) enum AfterRequest {
    Closed,
    /// The connection waits for the next request.
    Kept(Leg),
    Tunnel(Box<Tunnel>),
    /// A long answer, whose rest is to be cut, is passed on.
    LongAnswer(Box<LongAnswer>),
    /// The kernel carries the connection and the answer.
    Cut(Box<CutExchange>),
}
