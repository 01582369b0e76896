//! Heads of requests and answers as ranges of the buffer that they were parsed from ([`super::parse`]).

use super::authority::Authority;
use super::byte_range::ByteRange;
use super::connection::ConnectionOptions;
use super::fields::FieldSection;
use super::grammar::elements;
use super::method::Method;
use super::target::Target;

/// Version of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
}

impl Version {
    /// Text of the version in a request line or status line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http10 => "HTTP/1.0",
            Self::Http11 => "HTTP/1.1",
        }
    }
}

/// Head of a request. Methods that take a buffer want the one that the head was parsed from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// Method of the request.
    pub method: Method,
    /// Method as it is written.
    pub method_name: ByteRange,
    /// Target as it is written.
    pub target: ByteRange,
    /// Form of the target.
    pub target_form: Target,
    /// Version of the request.
    pub version: Version,
    /// Host and port that the request is for; `None` only for HTTP/1.0 without any.
    pub authority: Option<Authority>,
    /// Field lines.
    pub fields: FieldSection,
    /// Options of the Connection field.
    pub connection: ConnectionOptions,
    /// Whole head, without empty lines before it and with the empty line after it. The body begins at its end.
    pub range: ByteRange,
}

impl RequestHead {
    /// Path without query, as it is written: no segment is resolved, nothing is decoded. `*` of OPTIONS; empty for
    /// CONNECT.
    #[must_use]
    pub fn path<'b>(&self, buffer: &'b [u8]) -> &'b [u8] {
        let (root, rest) = self.path_and_query(buffer);
        let end = rest.iter().position(|&b| b == b'?').unwrap_or(rest.len());
        if root.is_empty() { &rest[..end] } else { root }
    }

    /// Target in origin-form, in two parts: a `/` where the target is an absolute one without a path, and the text as
    /// sent (RFC 9112, section 3.2.1). `*` for OPTIONS of a whole host (section 3.2.4); empty for CONNECT.
    #[must_use]
    pub fn path_and_query<'b>(&self, buffer: &'b [u8]) -> (&'static [u8], &'b [u8]) {
        match &self.target_form {
            Target::Absolute { path_and_query, .. } => match path_and_query.of(buffer) {
                b"" if self.method == Method::Options => (b"*", b""),
                rest if rest.starts_with(b"/") => (b"", rest),
                rest => (b"/", rest),
            },
            Target::Asterisk | Target::Origin => (b"", self.target.of(buffer)),
            Target::Authority(_) => (b"", b""),
        }
    }

    /// Whether the client keeps the connection for another request (RFC 9112, section 9.3).
    #[must_use]
    pub const fn is_persistent(&self) -> bool {
        is_persistent(self.version, self.connection)
    }

    /// Whether the client waits for a 100 (Continue) before it sends the body (RFC 9110, section 10.1.1). In HTTP/1.0
    /// the expectation is ignored.
    #[must_use]
    pub fn expects_continue(&self, buffer: &[u8]) -> bool {
        let is_expected = |value: &[u8]| elements(value).any(|e| e.eq_ignore_ascii_case(b"100-continue"));
        self.version == Version::Http11 && self.fields.values(buffer, "expect").any(is_expected)
    }

    /// Whether the client takes trailers (RFC 9110, section 6.5.1); those of the answer are left out otherwise.
    #[must_use]
    pub fn accepts_trailers(&self, buffer: &[u8]) -> bool {
        self.fields.values(buffer, "te").any(names_trailers)
    }

    /// Protocols that the client asks to upgrade to (RFC 9110, section 7.8), such as `websocket`; none unless the
    /// Connection field says `upgrade`, and none in HTTP/1.0.
    pub fn upgrades<'b>(&self, buffer: &'b [u8]) -> impl Iterator<Item = &'b [u8]> {
        let asks = self.connection.upgrade && self.version == Version::Http11;
        let values = self.fields.values(buffer, "upgrade").filter(move |_| asks);
        values.flat_map(elements)
    }
}

/// Head of an answer. Methods that take a buffer want the one that the head was parsed from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// Version of the answer.
    pub version: Version,
    /// Status code, 100 to 999.
    pub status: u16,
    /// Status line without its line end.
    pub status_line: ByteRange,
    /// Field lines.
    pub fields: FieldSection,
    /// Options of the Connection field.
    pub connection: ConnectionOptions,
    /// Whole head with the empty line after it. The body begins at its end.
    pub range: ByteRange,
}

impl ResponseHead {
    /// Whether the host keeps the connection for another request (RFC 9112, section 9.3).
    #[must_use]
    pub const fn is_persistent(&self) -> bool {
        is_persistent(self.version, self.connection)
    }
}

/// Whether a TE field names `trailers` (RFC 9110, section 10.1.4).
pub(super) fn names_trailers(value: &[u8]) -> bool {
    elements(value).any(|coding| coding.eq_ignore_ascii_case(b"trailers"))
}

const fn is_persistent(version: Version, connection: ConnectionOptions) -> bool {
    !connection.close && (matches!(version, Version::Http11) || connection.keep_alive)
}
