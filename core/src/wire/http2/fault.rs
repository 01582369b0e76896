//! Why the request of a stream is refused.

use crate::wire::http1::framing::FramingError;
use crate::wire::http1::head_error::HeadError;

/// Fault of a stream's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum StreamFault {
    /// A field that belongs to a connection (RFC 9113, section 8.2.2).
    #[error("a field belongs to a connection of HTTP/1 (RFC 9113, 8.2.2)")]
    ConnectionField,
    /// Content-Length is no length of this stream.
    #[error(transparent)]
    Framing(FramingError),
    /// The head is not possible in HTTP/1.1.
    #[error(transparent)]
    Head(HeadError),
    /// The stream ends with its head, and Content-Length promises a body (RFC 9113, section 8.1.1).
    #[error("Content-Length is not the length of the stream's data (RFC 9113, 8.1.1)")]
    LengthMismatch,
    /// Another protocol than WebSocket is asked for (RFC 8441).
    #[error("the one protocol that a stream may ask for is websocket (RFC 8441)")]
    Protocol,
    /// The scheme is not that of the connection (RFC 9110, section 7.4).
    #[error("the scheme is not that of the connection (RFC 9110, 7.4)")]
    Scheme,
}

impl StreamFault {
    /// Status code of the answer.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::ConnectionField | Self::LengthMismatch => 400,
            Self::Framing(fault) => fault.status(),
            Self::Head(fault) => fault.status(),
            Self::Protocol => 501,
            Self::Scheme => 421,
        }
    }

    /// Metric label of the fault.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::ConnectionField => "connection_field",
            Self::Framing(fault) => fault.label(),
            Self::Head(fault) => fault.label(),
            Self::LengthMismatch => "length_mismatch",
            Self::Protocol => "connect_unsupported",
            Self::Scheme => "misdirected",
        }
    }
}

impl From<HeadError> for StreamFault {
    fn from(fault: HeadError) -> Self {
        Self::Head(fault)
    }
}

impl From<FramingError> for StreamFault {
    fn from(fault: FramingError) -> Self {
        Self::Framing(fault)
    }
}
