//! Methods, as far as their meaning changes framing or retries (RFC 9110, section 9).

/// Method of a request. Method names are case-sensitive: `get` is an [`Other`](Self::Other).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// CONNECT: asks for a tunnel.
    Connect,
    /// DELETE.
    Delete,
    /// GET.
    Get,
    /// HEAD: the answer has no body.
    Head,
    /// OPTIONS.
    Options,
    /// PATCH.
    Patch,
    /// POST.
    Post,
    /// PUT.
    Put,
    /// TRACE.
    Trace,
    /// Any other token.
    Other,
}

impl Method {
    /// Method of a request line.
    #[must_use]
    pub const fn parse(name: &[u8]) -> Self {
        match name {
            b"CONNECT" => Self::Connect,
            b"DELETE" => Self::Delete,
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"OPTIONS" => Self::Options,
            b"PATCH" => Self::Patch,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"TRACE" => Self::Trace,
            _ => Self::Other,
        }
    }

    /// Whether a request does the same when it is done twice (RFC 9110, section 9.2.2).
    #[must_use]
    pub const fn is_idempotent(self) -> bool {
        self.is_safe() || matches!(self, Self::Delete | Self::Put)
    }

    /// Whether a request only reads (RFC 9110, section 9.2.1).
    #[must_use]
    pub const fn is_safe(self) -> bool {
        matches!(self, Self::Get | Self::Head | Self::Options | Self::Trace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_that_may_be_repeated() {
        let is_idempotent = |name: &[u8]| Method::parse(name).is_idempotent();
        for name in [&b"GET"[..], b"HEAD", b"OPTIONS", b"TRACE", b"PUT", b"DELETE"] {
            assert!(is_idempotent(name), "{name:?}");
        }
        for name in [&b"POST"[..], b"PATCH", b"CONNECT", b"get", b"PROPFIND", b""] {
            assert!(!is_idempotent(name), "{name:?}");
        }
    }
}
