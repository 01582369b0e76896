//! Why a message's framing is refused.

/// Fault of a message's framing: the client's in a request, the host's in an answer. For an answer the client gets 502
/// instead of [`FramingError::status`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum FramingError {
    /// CONNECT or TRACE with a body.
    #[error("the request has content, and its method allows none (RFC 9110, 9.3.6 and 9.3.8)")]
    ContentNotAllowed,
    /// Content-Length is empty, signed, a list, or beyond 64 bits.
    #[error("Content-Length is not one decimal number (RFC 9112, 6.3)")]
    ContentLengthInvalid,
    /// More than one Content-Length field.
    #[error("there is more than one Content-Length field (RFC 9112, 6.3)")]
    ContentLengthRepeated,
    /// Content-Length beside Transfer-Encoding.
    #[error("there are both Content-Length and Transfer-Encoding (RFC 9112, 6.1)")]
    LengthAndTransferEncoding,
    /// Transfer-Encoding in HTTP/1.0.
    #[error("there is a Transfer-Encoding in HTTP/1.0 (RFC 9112, 6.1)")]
    TransferEncodingInHttp10,
    /// Transfer-Encoding is not exactly one `chunked`.
    #[error("Transfer-Encoding is not `chunked` alone (RFC 9112, 6.1)")]
    TransferEncodingUnsupported,
}

impl FramingError {
    /// Status code of the answer to a request with this fault.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::TransferEncodingUnsupported => 501,
            _ => 400,
        }
    }

    /// Metric label of the fault.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::ContentNotAllowed => "content_not_allowed",
            Self::ContentLengthInvalid => "content_length_invalid",
            Self::ContentLengthRepeated => "content_length_repeated",
            Self::LengthAndTransferEncoding => "length_and_transfer_encoding",
            Self::TransferEncodingInHttp10 => "transfer_encoding_in_http10",
            Self::TransferEncodingUnsupported => "transfer_encoding_unsupported",
        }
    }
}
