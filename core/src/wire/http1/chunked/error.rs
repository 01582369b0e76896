//! Why a chunked body is refused.

/// Fault of a chunked body: the client's of a request (400), the host's of an answer (502).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ChunkedError {
    /// Chunk data is not followed by CRLF.
    #[error("chunk data does not end in CRLF (RFC 9112, 7.1)")]
    DataEnd,
    /// A chunk extension holds a control character or does not begin with a semicolon.
    #[error("a chunk extension is malformed (RFC 9112, 7.1.1)")]
    Extension,
    /// Chunk extensions are longer than their limit.
    #[error("chunk extensions are too long")]
    ExtensionTooLong,
    /// A line with a chunk's size does not end in CRLF.
    #[error("the line of a chunk's size does not end in CRLF (RFC 9112, 7.1)")]
    LineEnd,
    /// A chunk's size is not 1 to 16 hexadecimal digits.
    #[error("a chunk's size is not 1 to 16 hexadecimal digits (RFC 9112, 7.1)")]
    Size,
    /// There are more trailer fields than the limit.
    #[error("there are too many trailer fields")]
    TooManyTrailers,
    /// A line of the trailer section is no field line.
    #[error("a line of the trailer section is not a field line (RFC 9112, 7.1.2)")]
    TrailerLine,
    /// A trailer field frames or routes the message.
    #[error("a trailer field is not allowed after a body (RFC 9110, 6.5.1)")]
    TrailerNotAllowed,
    /// The trailer section is longer than its limit.
    #[error("the trailer section is too long")]
    TrailersTooLarge,
}

impl ChunkedError {
    /// Metric label of the fault.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::DataEnd => "chunk_data_end",
            Self::Extension => "chunk_extension",
            Self::ExtensionTooLong => "chunk_extension_too_long",
            Self::LineEnd => "chunk_line_end",
            Self::Size => "chunk_size",
            Self::TooManyTrailers => "too_many_trailers",
            Self::TrailerLine => "trailer_line",
            Self::TrailerNotAllowed => "trailer_not_allowed",
            Self::TrailersTooLarge => "trailers_too_large",
        }
    }
}
