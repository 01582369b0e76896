//! Part of an exchange that the kernel may carry. It is planned once, when the host is leased and before it is connected.

use super::leg_a::LegA;
use crate::state::outcome::Ineligible;

/// Part of an exchange that the kernel may carry.
pub(in crate::datapath::http) enum CutPlan<'a> {
    /// None, for a reason.
    No(Ineligible),
    /// The tunnel after a 101.
    Tunnel(LegA<'a>),
    /// Everything once the host is connected, because the client sends no further request. The bytes are the request in
    /// its form for the host.
    LastRequest(LegA<'a>, Vec<u8>),
    /// The rest of an answer, if it is long.
    LongAnswer(LegA<'a>),
}

impl CutPlan<'_> {
    /// Reason why the kernel carries no part.
    pub(in crate::datapath::http) const fn obstacle(&self) -> Option<Ineligible> {
        match self {
            Self::No(why) => Some(*why),
            _ => None,
        }
    }

    pub(in crate::datapath::http) const fn is_last_request(&self) -> bool {
        matches!(self, Self::LastRequest(..))
    }
}
