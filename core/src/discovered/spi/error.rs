//! Error of a text that cannot be decoded.

use crate::wire::yaml::YamlError;

/// Error of a text that is not a series of events. It never quotes what could be a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("document {document}, line {line}: {message}")]
pub struct ParseError {
    /// Number of the document in the text, from 1.
    pub document: usize,
    /// Number of the line in the text, from 1.
    pub line: usize,
    /// Description of the mistake there.
    pub message: String,
}

impl ParseError {
    pub(super) fn new(document: usize, line: usize, message: impl Into<String>) -> Self {
        Self {
            document,
            line,
            message: message.into(),
        }
    }
}

impl From<YamlError> for ParseError {
    fn from(error: YamlError) -> Self {
        Self::new(error.document, error.position.line, error.message)
    }
}
