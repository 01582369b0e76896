//! An exchange between its two halves: its host is known, and its answer has begun.

use signalbox_core::model::HttpTimeouts;
use signalbox_core::wire::http1::turn::Turn;

use super::attempt::{Attempt, Request};
use crate::datapath::http::host::upstream::LeasedHost;
use crate::datapath::http::message::answer::Asked;
use crate::datapath::http::message::request::ClientSide;
use crate::state::outcome::Ineligible;

/// An exchange whose host is known, or for which there is certainly none.
pub(super) struct Reached {
    pub(super) client: ClientSide,
    pub(super) attempt: Option<Attempt>,
    pub(super) turn: Turn,
    pub(super) leased: LeasedHost,
    pub(super) timeouts: HttpTimeouts,
}

impl Reached {
    /// Whether the answer is long enough for its rest to be cut, and a cut is possible.
    pub(super) fn is_to_be_cut(&self) -> bool {
        self.long_cut() == Some(Ok(()))
    }

    /// Reason why the rest of a long answer is not cut although it should be.
    pub(super) fn long_but_not_cut(&self) -> Option<Ineligible> {
        self.long_cut()?.err()
    }

    fn long_cut(&self) -> Option<Result<(), Ineligible>> {
        let host = self.attempt.as_ref().map(|attempt| &attempt.host)?;
        host.long_cut.filter(|_| host.is_long)
    }
}

/// An exchange whose answer has begun and is long.
pub(in crate::datapath::http) struct LongAnswer {
    pub(super) request: Request,
    pub(super) asked: Asked,
    pub(super) reached: Reached,
}
