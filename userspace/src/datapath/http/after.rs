//! Fate of a client's connection behind a request.

use super::last_request::CutExchange;
use super::leg::Leg;
use super::reached::LongAnswer;
use super::tunnel::Tunnel;

/// Fate of a client's connection behind a request.
pub(super) enum AfterRequest {
    Closed,
    /// The next request is read.
    Kept(Leg),
    Tunnel(Box<Tunnel>),
    /// An answer so long that its rest is to be cut is passed on.
    LongAnswer(Box<LongAnswer>),
    /// The kernel carries it, with the answer.
    Cut(Box<CutExchange>),
}
