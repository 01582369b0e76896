//! Faults of an exchange, each with the side that caused it.

/// Whose fault it is that an exchange failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultSide {
    /// The client's.
    Client,
    /// The host's, or the way to it.
    Host,
}

impl FaultSide {
    /// Metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Host => "host",
        }
    }
}

/// Reason why an exchange failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TurnFault {
    /// The host's connection ended in the middle of the answer.
    AnswerCutOff,
    /// The answer breaks the rules.
    AnswerMalformed,
    /// The host did not answer in time.
    AnswerTimeout,
    /// The client's connection broke.
    ClientGone,
    /// No host could be connected to.
    HostUnreachable,
    /// The host's connection ended before an answer.
    NoAnswer,
    /// The client's connection ended in the middle of the request.
    RequestCutOff,
    /// The request's body breaks the rules.
    RequestMalformed,
    /// The request's body did not come in time.
    RequestTimeout,
    /// The host switches protocols though the client did not ask for it, or before the host had the request.
    TunnelNotAsked,
}

impl TurnFault {
    /// Whose fault it is.
    #[must_use]
    pub const fn side(self) -> FaultSide {
        match self {
            Self::ClientGone | Self::RequestCutOff | Self::RequestMalformed | Self::RequestTimeout => FaultSide::Client,
            _ => FaultSide::Host,
        }
    }

    /// Status code for the client, if it can get one. nginx's 499 for a client that is gone.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::RequestCutOff | Self::RequestMalformed => 400,
            Self::RequestTimeout => 408,
            Self::ClientGone => 499,
            Self::HostUnreachable => 503,
            Self::AnswerTimeout => 504,
            _ => 502,
        }
    }

    /// Metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::AnswerCutOff => "answer_cut_off",
            Self::AnswerMalformed => "answer_malformed",
            Self::AnswerTimeout => "answer_timeout",
            Self::ClientGone => "client_gone",
            Self::HostUnreachable => "host_unreachable",
            Self::NoAnswer => "no_answer",
            Self::RequestCutOff => "request_cut_off",
            Self::RequestMalformed => "request_malformed",
            Self::RequestTimeout => "request_timeout",
            Self::TunnelNotAsked => "tunnel_not_asked",
        }
    }
}
