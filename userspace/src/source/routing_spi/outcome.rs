//! What becomes of a text of events, and why nothing does.

use std::collections::BTreeMap;

use serde::Serialize;
use signalbox_core::spi::ParseError;

/// Why events did not count. Nothing has changed that would not change again when they come again.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// They are none; it says where and why.
    #[error(transparent)]
    Text(#[from] ParseError),
    /// They could not be recorded. Not their fault: try again.
    #[error("the events could not be recorded: {0}")]
    Ledger(String),
    /// They are recorded, but certificates could not be written to files. Not their fault: try again.
    #[error("certificates could not be written: {0}")]
    Certificates(#[from] std::io::Error),
    /// The events are recorded, but a rotation that they ask for is not in force. Not their fault: try again.
    #[error("what the events say of rotation could not be put in force: {0}")]
    Rotation(String),
}

/// Why there is no source.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A record makes no sense.
    #[error("the record {key} cannot be read: {reason}: restore it, or remove it and have the events sent again")]
    Record {
        /// Its key.
        key: String,
        /// Why not; without quoting it.
        reason: String,
    },
    /// The directory for certificates cannot be used.
    #[error("the directory of certificates cannot be used: {0}")]
    Certificates(#[from] std::io::Error),
}

/// What a text of events did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Events in it.
    pub events: usize,
    /// Clusters that are no longer what they were. Empty: it was known already.
    pub changed: Vec<String>,
    /// Of these, the ones that the store did not take, and why. Its reason to refuse will not pass by itself.
    pub refused: BTreeMap<String, String>,
}
