//! Why a head is refused.

/// Fault of a head: the client's in a request, the host's in an answer. For an answer the client gets 502 instead of
/// [`HeadError::status`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum HeadError {
    /// Host and target name different authorities.
    #[error("the Host field is not the authority of the target (RFC 9112, 3.2.2)")]
    AuthorityMismatch,
    /// A Connection field names Host, Content-Length or Transfer-Encoding.
    #[error("a Connection field lists a field that every recipient needs (RFC 9110, 7.6.1)")]
    ConnectionOption,
    /// A field name is no token, white space precedes it (obs-fold) or its colon, or there is no colon.
    #[error("a field line does not begin with a name and a colon (RFC 9112, 5.1 and 5.2)")]
    FieldName,
    /// A field value holds a control character, or a CR without LF.
    #[error("a field value holds a control character (RFC 9110, 5.5)")]
    FieldValue,
    /// The head is longer than its limit.
    #[error("the head is too long")]
    HeadTooLarge,
    /// The Host field is no authority.
    #[error("the Host field is not a host with an optional port (RFC 9112, 3.2)")]
    HostInvalid,
    /// HTTP/1.1 without a Host field.
    #[error("an HTTP/1.1 request has no Host field (RFC 9112, 3.2)")]
    HostMissing,
    /// More than one Host field.
    #[error("there is more than one Host field (RFC 9112, 3.2)")]
    HostRepeated,
    /// A line does not end in CRLF.
    #[error("a line does not end in CRLF (RFC 9112, 2.2)")]
    LineEnd,
    /// The first line of a request is none.
    #[error("the first line is not a request line (RFC 9112, 3)")]
    RequestLine,
    /// The first line of an answer is none.
    #[error("the first line is not a status line (RFC 9112, 4)")]
    StatusLine,
    /// The target has no form that is allowed for the method.
    #[error("the request target has none of the forms of RFC 9112, 3.2")]
    TargetForm,
    /// The target is longer than its limit.
    #[error("the request target is too long")]
    TargetTooLong,
    /// There are more fields than the limit.
    #[error("there are too many fields")]
    TooManyFields,
    /// HTTP, but neither 1.0 nor 1.1.
    #[error("the version is neither HTTP/1.0 nor HTTP/1.1")]
    VersionUnsupported,
}

impl HeadError {
    /// Status code of the answer to a request with this fault.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::HeadTooLarge | Self::TooManyFields => 431,
            Self::TargetTooLong => 414,
            Self::VersionUnsupported => 505,
            _ => 400,
        }
    }

    /// Metric label of the fault.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::AuthorityMismatch => "authority_mismatch",
            Self::ConnectionOption => "connection_option",
            Self::FieldName => "field_name",
            Self::FieldValue => "field_value",
            Self::HeadTooLarge => "head_too_large",
            Self::HostInvalid => "host_invalid",
            Self::HostMissing => "host_missing",
            Self::HostRepeated => "host_repeated",
            Self::LineEnd => "line_end",
            Self::RequestLine => "request_line",
            Self::StatusLine => "status_line",
            Self::TargetForm => "target_form",
            Self::TargetTooLong => "target_too_long",
            Self::TooManyFields => "too_many_fields",
            Self::VersionUnsupported => "version_unsupported",
        }
    }
}
