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
    /// It could not even be asked: a file or a program that the connection needs is not as it should be.
    Unprepared(String),
    /// It failed.
    Failed(String),
}

impl Trouble {
    /// Whether a watch can be taken up where it was, if the server is not older than that. After anything the server has
    /// said against the watch, it cannot.
    pub(super) const fn resumes(&self) -> bool {
        matches!(
            self,
            Self::Broken(_) | Self::Unreachable(_) | Self::Unprepared(_) | Self::Unauthorized(_) | Self::Forbidden(_)
        )
    }

    /// What is said of the server in the log.
    pub(super) const fn verdict(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "The API server does not answer.",
            Self::Unprepared(_) => "The API server cannot be asked.",
            Self::Unauthorized(_) | Self::Forbidden(_) => "The API server answers, and refuses.",
            Self::Broken(_) | Self::Garbled(_) => "The API server's answer is not usable.",
            Self::Absent | Self::Expired | Self::Failed(_) => "The API server answers with an error.",
        }
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
            Self::Unprepared(_) => "unprepared",
            Self::Failed(_) => "failed",
        }
    }
}
