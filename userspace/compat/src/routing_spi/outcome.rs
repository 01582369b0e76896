//! Outcomes of a text of events.

use signalbox_core::discovered::spi::ParseError;

/// Reason why events did not count. A partial change is made again when the events come again.
#[derive(Debug, thiserror::Error)]
pub enum EventsError {
    /// The text is no list of events; the error says where and why.
    #[error(transparent)]
    Text(#[from] ParseError),
    /// The events could not be recorded. The ledger is at fault: try again.
    #[error("the events could not be recorded: {0}")]
    Ledger(String),
    /// The events are recorded, but certificates could not be written to files. The disk is at fault: try again.
    #[error("certificates could not be written: {0}")]
    Certificates(#[from] std::io::Error),
    /// The events are recorded, but a rotation that they ask for is not applied. The store is at fault: try again.
    #[error("what the events say of rotation could not be put in force: {0}")]
    Rotation(String),
}

/// Reason why the source could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A record makes no sense.
    #[error("the record {key} cannot be read: {reason}: restore it, or remove it and have the events sent again")]
    Record {
        /// Key of the record.
        key: String,
        /// Reason, without quoting the record.
        reason: String,
    },
    /// The directory for certificates cannot be used.
    #[error("the directory of certificates cannot be used: {0}")]
    Certificates(#[from] std::io::Error),
}
