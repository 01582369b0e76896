//! What can go wrong with a request, by what is to be done about it.

/// Why a list or a watch gave nothing, or ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The server does not have the resource.
    Absent,
    /// A watch was cut off, without the server saying anything: to be taken up where it was.
    Broken(String),
    /// The server does not know, or does not believe, who asks.
    Unauthorized(String),
    /// Who asks may not.
    Forbidden(String),
    /// What was known is too old to be taken up: to be listed again.
    Expired,
    /// The answer makes no sense: to be listed again.
    Garbled(String),
    /// It was not reached.
    Unreachable(String),
    /// It failed.
    Failed(String),
}

impl Trouble {
    /// Whether a watch can be taken up where it was. After anything the server has said against it, it cannot: it may
    /// have come back with an older past.
    pub(super) const fn resumes(&self) -> bool {
        matches!(
            self,
            Self::Broken(_) | Self::Unreachable(_) | Self::Unauthorized(_) | Self::Forbidden(_)
        )
    }

    /// For the standing: in small words.
    pub(super) const fn label(&self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Broken(_) => "broken",
            Self::Unauthorized(_) => "unauthorized",
            Self::Forbidden(_) => "forbidden",
            Self::Expired => "expired",
            Self::Garbled(_) => "bad_message",
            Self::Unreachable(_) => "unreachable",
            Self::Failed(_) => "failed",
        }
    }
}
