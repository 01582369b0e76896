//! State of a client's connection after a request.

use super::last_request::CutExchange;
use super::reached::LongAnswer;
use super::tunnel::Tunnel;
use crate::datapath::http::leg::Leg;

/// State of a client's connection after a request.
pub(in crate::datapath::http) enum AfterRequest {
    Closed,
    /// The connection waits for the next request.
    Kept(Leg),
    Tunnel(Box<Tunnel>),
    /// A long answer, whose rest is to be cut, is passed on.
    LongAnswer(Box<LongAnswer>),
    /// The kernel carries the connection and the answer.
    Cut(Box<CutExchange>),
}
