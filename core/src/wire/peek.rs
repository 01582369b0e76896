//! Peek: the name that the first bytes of a connection ask for.
//!
//! Pure functions over all bytes received so far: called again, with more, while the answer is [`Peek::Incomplete`] or
//! [`Peek::Greet`]. A final answer never changes, however many bytes follow.

pub mod h2;
pub mod http;
pub mod proxy;
pub mod tls;

use crate::wire::hostname::Hostname;

/// The outcome of a peek.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peek {
    /// More bytes are needed.
    Incomplete,
    /// More bytes are needed; the client may send none before the server's first word, HTTP/2's SETTINGS.
    Greet,
    /// The bytes are understood.
    Found(ClientRequest),
    /// The bytes will never be understood.
    Invalid(PeekParseError),
}

/// Name and protocols that a client asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientRequest {
    /// Host name; `None`: the client positively named none.
    pub hostname: Option<Hostname>,
    /// Application protocols that the client offers, in its order (TLS ALPN, RFC 7301).
    pub alpn: Vec<Box<[u8]>>,
}

/// Reason why bytes will never be understood; the label of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeekParseError {
    /// The client speaks another protocol altogether.
    WrongProtocol,
    /// The client speaks HTTP where TLS is expected.
    PlainHttp,
    /// The client speaks the right protocol, but breaks its rules.
    Malformed(&'static str),
    /// The client's message is longer than the parser's limit.
    TooLarge,
}

impl PeekParseError {
    /// Metric label of the fault.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::WrongProtocol => "wrong_protocol",
            Self::PlainHttp => "plain_http",
            Self::Malformed(_) => "malformed",
            Self::TooLarge => "too_large",
        }
    }
}

impl Peek {
    fn malformed(what: &'static str) -> Self {
        Self::Invalid(PeekParseError::Malformed(what))
    }

    fn named(name: Hostname) -> Self {
        Self::Found(ClientRequest {
            hostname: Some(name),
            alpn: Vec::new(),
        })
    }

    fn nameless() -> Self {
        Self::Found(ClientRequest::default())
    }
}

/// Host part of an authority (`host`, `host:port`, `[v6]`, `[v6]:port`), without user information.
fn authority_host(authority: &[u8]) -> &[u8] {
    let authority = authority
        .iter()
        .rposition(|&b| b == b'@')
        .map_or(authority, |at| &authority[at + 1..]);
    if authority.starts_with(b"[") {
        return authority
            .iter()
            .position(|&b| b == b']')
            .map_or(authority, |end| &authority[..=end]);
    }
    authority
        .iter()
        .position(|&b| b == b':')
        .map_or(authority, |colon| &authority[..colon])
}

/// Outcome for an authority. An address literal is a host that no route has.
fn from_authority(authority: &[u8]) -> Peek {
    let host = authority_host(authority);
    if host.is_empty() || host.starts_with(b"[") {
        return Peek::nameless();
    }
    Hostname::parse(host).map_or_else(|_| Peek::malformed("the host is not a host name"), Peek::named)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Checks that each proper prefix of a complete message is incomplete, and that bytes after it do not matter.
    pub(crate) fn check_all_prefixes(message: &[u8], peek: impl Fn(&[u8]) -> Peek) -> Peek {
        for end in 0..message.len() {
            assert!(
                matches!(peek(&message[..end]), Peek::Incomplete | Peek::Greet),
                "prefix of {end} of {}",
                message.len()
            );
        }
        let outcome = peek(message);
        let mut longer = message.to_vec();
        longer.extend_from_slice(&[0x5a; 100]);
        assert_eq!(outcome, peek(&longer));
        outcome
    }

    pub(crate) fn name(text: &str) -> Peek {
        Peek::named(Hostname::parse(text.as_bytes()).unwrap())
    }

    #[test]
    fn an_authority_loses_port_brackets_and_user() {
        assert_eq!(authority_host(b"a.test:8080"), b"a.test");
        assert_eq!(authority_host(b"user:pw@a.test:1"), b"a.test");
        assert_eq!(authority_host(b"[::1]:80"), b"[::1]");
        assert_eq!(from_authority(b"[::1]:80"), Peek::nameless());
    }
}
