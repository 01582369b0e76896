//! Forms of a request target (RFC 9112, section 3.2).

use super::authority::Authority;
use super::byte_range::ByteRange;
use super::method::Method;

/// Form of a request target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// `http://host/path?query`, as a client sends it to a proxy.
    Absolute {
        /// Whether the scheme is `https`.
        is_https: bool,
        /// Authority between the slashes.
        authority: Authority,
        /// Authority as it is written, for a Host field.
        authority_text: ByteRange,
        /// Path and query; may be empty or begin with the query.
        path_and_query: ByteRange,
    },
    /// `*` of OPTIONS.
    Asterisk,
    /// `host:port` of CONNECT.
    Authority(Authority),
    /// `/path?query`.
    Origin,
}

impl Target {
    /// Recognises the form of the target at a range of a buffer. `None` if it has no form that the method allows.
    pub(super) fn parse(buffer: &[u8], range: ByteRange, method: Method) -> Option<Self> {
        let text = range.of(buffer);
        // RFC 3986 allows neither; a fragment is never sent (RFC 9110, section 7.1).
        if !text.iter().all(|&b| b.is_ascii_graphic() && b != b'#') {
            return None;
        }
        if method == Method::Connect {
            let authority = Authority::parse(text)?;
            return (!authority.is_empty() && authority.port.is_some()).then_some(Self::Authority(authority));
        }
        match text {
            [b'/', ..] => Some(Self::Origin),
            b"*" => (method == Method::Options).then_some(Self::Asterisk),
            _ => absolute(buffer, range),
        }
    }

    /// Authority that the target names.
    #[must_use]
    pub const fn authority(&self) -> Option<&Authority> {
        match self {
            Self::Absolute { authority, .. } | Self::Authority(authority) => Some(authority),
            Self::Asterisk | Self::Origin => None,
        }
    }

    /// Port of an authority that writes none.
    #[must_use]
    pub const fn default_port(&self) -> u16 {
        match self {
            Self::Absolute { is_https: true, .. } | Self::Authority(_) => 443,
            _ => 80,
        }
    }
}

fn absolute(buffer: &[u8], range: ByteRange) -> Option<Target> {
    let text = range.of(buffer);
    let scheme_end = text.iter().position(|&b| b == b':')?;
    let (scheme, rest) = text.split_at(scheme_end);
    let is_https = scheme.eq_ignore_ascii_case(b"https");
    if !is_https && !scheme.eq_ignore_ascii_case(b"http") {
        return None;
    }
    let rest = rest.strip_prefix(b"://")?;
    let length = rest
        .iter()
        .position(|&b| matches!(b, b'/' | b'?'))
        .unwrap_or(rest.len());
    let authority = Authority::parse(&rest[..length])?;
    let start = range.end() - rest.len();
    (!authority.is_empty()).then(|| Target::Absolute {
        is_https,
        authority,
        authority_text: ByteRange::new(start, start + length),
        path_and_query: ByteRange::new(start + length, range.end()),
    })
}
