//! Failures of requests, by the reaction to them.

use crate::body::BodyError;

/// Reason why a list or a watch failed, or ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WatchError {
    /// The server does not have the resource.
    Absent,
    /// A watch was cut off without a message from the server: to be resumed from the same version.
    Broken(String),
    /// The server does not know the account, or rejects its credentials.
    Unauthorized(String),
    /// The account lacks the right.
    Forbidden(String),
    /// The known version is too old for a watch: to be listed again.
    Expired,
    /// The answer makes no sense: to be listed again.
    Garbled(String),
    /// The server was not reached.
    Unreachable(String),
    /// The server could not be asked: a file or a program that the connection needs is missing or wrong.
    ConfigUnusable(String),
    /// The server failed.
    Failed(String),
}

impl From<BodyError> for WatchError {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::Broken(text) => Self::Broken(text),
            BodyError::TooLong(_) => Self::Garbled(error.to_string()),
        }
    }
}

impl WatchError {
    /// Returns whether a watch can be resumed at its version, if the server is not older than that: not after the
    /// server has reported an error of the watch.
    pub(super) const fn resumes(&self) -> bool {
        matches!(
            self,
            Self::Broken(_)
                | Self::Unreachable(_)
                | Self::ConfigUnusable(_)
                | Self::Unauthorized(_)
                | Self::Forbidden(_)
        )
    }

    /// Returns the verdict on the server, for the log.
    pub(super) const fn remark(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "The API server does not answer.",
            Self::ConfigUnusable(_) => "The API server cannot be asked.",
            Self::Unauthorized(_) | Self::Forbidden(_) => "The API server answers, and refuses.",
            Self::Broken(_) | Self::Garbled(_) => "The API server's answer is not usable.",
            Self::Absent | Self::Expired | Self::Failed(_) => "The API server answers with an error.",
        }
    }

    /// Returns the label for the source's events.
    pub(super) const fn label(&self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Broken(_) => "broken",
            Self::Unauthorized(_) => "unauthorized",
            Self::Forbidden(_) => "forbidden",
            Self::Expired => "expired",
            Self::Garbled(_) => "bad_message",
            Self::Unreachable(_) => "unreachable",
            Self::ConfigUnusable(_) => "unprepared",
            Self::Failed(_) => "failed",
        }
    }
}
