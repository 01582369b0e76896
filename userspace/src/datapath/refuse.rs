//! Refusals in the client's protocol, so that the client learns the reason.

use std::os::fd::AsRawFd as _;
use std::time::Duration;

use signalbox_core::model::Protocol;
use signalbox_core::wire::peek::h2::{self, GreetedClient, code};
use signalbox_core::wire::peek::{PeekParseError, http};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::http::pages::Page;
use super::peek::PeekError;
use super::scratch::with_scratch;
use crate::state::Shared;
use crate::state::error_pages::ErrorPages;
use crate::sys;

/// Reason why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefuseReason {
    /// No route matches the name.
    NoRoute,
    /// The client sent no name, and no route exists for such clients.
    NoName,
    /// The route has no usable host.
    NoHost,
    /// All hosts of the route are at their connection limit.
    HostsFull,
    /// The route has usable hosts, but no connect succeeded.
    ConnectFailed,
    /// The route does not serve the client's address.
    NotAllowed,
    /// The client opened connections for the name too fast.
    ConnectionRate,
    /// The client has too many connections for the name.
    Connections,
    /// No certificate of an `https` listener matches the client's name.
    NoCertificate,
    /// The client switches to HTTP/2 where that is not allowed: in TLS without ALPN, or after a request.
    Http2,
    /// The client's first bytes do not show what it asks for.
    Peek(PeekError),
}

impl RefuseReason {
    /// Label of the reason in metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::NoRoute => "no_route",
            Self::NoName => "no_name",
            Self::NoHost => "no_host",
            Self::HostsFull => "hosts_full",
            Self::ConnectFailed => "connect_failed",
            Self::NotAllowed => "not_allowed",
            Self::ConnectionRate => "route_connection_rate",
            Self::Connections => "route_connections",
            Self::NoCertificate => "no_certificate",
            Self::Http2 => "http2_unsupported",
            Self::Peek(why) => why.label(),
        }
    }

    /// HTTP response: status code, and the text of the page.
    pub(super) const fn http(self) -> Option<(u16, &'static str)> {
        Some(match self {
            Self::NoRoute | Self::NoName | Self::NoCertificate => (404, "No application is routed under this name."),
            Self::NotAllowed => (403, "This application does not serve your address."),
            Self::ConnectionRate | Self::Connections => (429, "There are too many connections from your address."),
            Self::NoHost => (503, "The application has no healthy router host right now."),
            Self::HostsFull => (
                503,
                "The application has as many connections as it may. Try again later.",
            ),
            Self::ConnectFailed => (503, "The application's router hosts could not be reached."),
            Self::Http2 => (
                505,
                "HTTP/2 begins with a connection, and in TLS is agreed upon by ALPN.",
            ),
            Self::Peek(PeekError::Timeout) => (408, "The request took too long to arrive."),
            Self::Peek(PeekError::Unacknowledged) => (408, "The acknowledgement of SETTINGS took too long to arrive."),
            Self::Peek(PeekError::Malformed(PeekParseError::TooLarge)) => (431, "The request's head is too large."),
            Self::Peek(PeekError::Malformed(PeekParseError::Malformed(_) | PeekParseError::WrongProtocol)) => {
                (400, "The request could not be understood.")
            }
            Self::Peek(PeekError::Malformed(PeekParseError::PlainHttp)) => {
                (400, "The plain HTTP request was sent to an HTTPS port.")
            }
            Self::Peek(PeekError::Closed | PeekError::Silent) => return None,
        })
    }

    /// HTTP/2 refusal: response and error code. `None` if the client gets no answer.
    fn http2(self) -> Option<h2::H2Refusal<'static>> {
        let code = match self {
            Self::Peek(PeekError::Unacknowledged) => code::SETTINGS_TIMEOUT,
            Self::Peek(PeekError::Malformed(PeekParseError::TooLarge)) => code::ENHANCE_YOUR_CALM,
            _ => code::NO_ERROR,
        };
        self.http().map(|(status, text)| h2::H2Refusal { status, text, code })
    }

    /// TLS alert: the description byte of a fatal alert.
    //= https://www.rfc-editor.org/rfc/rfc8446#section-6
    const fn alert(self) -> Option<u8> {
        Some(match self {
            Self::NoRoute | Self::NoName | Self::NoCertificate => 112, // unrecognized_name
            Self::NotAllowed | Self::ConnectionRate | Self::Connections => 49, // access_denied
            Self::NoHost | Self::HostsFull | Self::ConnectFailed | Self::Http2 => 80, // internal_error
            Self::Peek(PeekError::Malformed(PeekParseError::Malformed(_) | PeekParseError::TooLarge)) => 50, // decode_error
            // A client that does not speak TLS does not understand an alert.
            Self::Peek(_) => return None,
        })
    }

    /// Whether a client of a TLS port speaks plain HTTP, and understands only an answer in HTTP.
    fn is_plain_http(self) -> bool {
        self == Self::Peek(PeekError::Malformed(PeekParseError::PlainHttp))
    }

    /// Description of what a client sees when it is refused for this reason.
    pub fn seen_by(self, protocol: Protocol) -> String {
        match (protocol, self.http(), self.alert()) {
            (Protocol::Http, Some((status, text)), _) => format!("HTTP {status}: {text}"),
            (Protocol::Tls, _, Some(112)) => "the TLS alert unrecognized_name".to_owned(),
            (Protocol::Tls, _, Some(49)) => "the TLS alert access_denied".to_owned(),
            (Protocol::Tls, _, Some(80)) => "the TLS alert internal_error".to_owned(),
            _ => "a reset".to_owned(),
        }
    }

    /// Answer for a client that has sent `first`, not counting bytes taken off its stream while it was greeted.
    fn answer(
        self,
        protocol: Protocol,
        first: &[u8],
        greeted: Option<&GreetedClient>,
        pages: &ErrorPages,
    ) -> Option<Vec<u8>> {
        match protocol {
            Protocol::Tcp => None,
            Protocol::Tls if self.is_plain_http() => self.answer(Protocol::Http, first, greeted, pages),
            Protocol::Tls => self.alert().map(|description| vec![21, 3, 3, 0, 2, 2, description]),
            Protocol::Http if greeted.is_some() || h2::has_preface(first) => self.http2().map(|refusal| {
                greeted.map_or_else(|| refusal.for_ungreeted(first), |greeted| greeted.refusal(&refusal))
            }),
            Protocol::Http => self.http().map(|(status, text)| {
                let page = Page {
                    status,
                    text,
                    keeps_client: false,
                    is_head: false,
                    location: None,
                    retry_after_seconds: None,
                };
                page.to_bytes(pages)
            }),
        }
    }
}

/// Time that a refused client has to read its answer.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum number of bytes of a refused client that are discarded while it reads.
const MAX_DISCARD_BYTES: usize = 256 * 1024;

/// Sends the answer of a refusal and closes the connection.
pub async fn refuse(
    shared: &Shared,
    stream: TcpStream,
    protocol: Protocol,
    why: RefuseReason,
    greeted: Option<GreetedClient>,
) {
    refuse_after(shared, Vec::new(), stream, protocol, why, greeted).await;
}

/// Refuses a client whose first bytes were taken off its stream.
pub(super) async fn refuse_after(
    shared: &Shared,
    mut first: Vec<u8>,
    mut stream: TcpStream,
    protocol: Protocol,
    why: RefuseReason,
    greeted: Option<GreetedClient>,
) {
    let pages = shared.error_pages.load_full();
    if why.answer(protocol, &[], None, &pages).is_none() {
        return;
    }
    // Closing with unread bytes would send an RST, which overtakes the answer. So the bytes that have arrived are read
    // and discarded, up to a limit. A client that keeps sending is reset.
    with_scratch(|scratch| {
        let mut left = MAX_DISCARD_BYTES;
        while left > 0 {
            match sys::recv(stream.as_raw_fd(), scratch, 0) {
                Ok(n) if n > 0 => {
                    left = left.saturating_sub(n);
                    let room = http::MAX_HEAD_BYTES.saturating_sub(first.len());
                    first.extend_from_slice(&scratch[..n.min(room)]);
                }
                _ => return,
            }
        }
    });
    let Some(answer) = why.answer(protocol, &first, greeted.as_ref(), &pages) else {
        return;
    };
    if sys::send(stream.as_raw_fd(), &answer).is_err() || sys::shutdown_write(stream.as_raw_fd()).is_err() {
        return;
    }
    let until_closed = async {
        let (mut left, mut discarded) = (MAX_DISCARD_BYTES, [0u8; 1024]);
        while left > 0 {
            match stream.read(&mut discarded).await {
                Ok(n) if n > 0 => left = left.saturating_sub(n),
                _ => return,
            }
        }
    };
    let _ = timeout(LINGER_TIMEOUT, until_closed).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_proper_for_the_protocol() {
        let pages = ErrorPages::default();
        assert_eq!(
            RefuseReason::NoRoute.answer(Protocol::Tls, &[], None, &pages),
            Some(vec![21, 3, 3, 0, 2, 2, 112])
        );
        let page = String::from_utf8(
            RefuseReason::NoHost
                .answer(Protocol::Http, b"GET /", None, &pages)
                .unwrap(),
        )
        .unwrap();
        assert!(page.starts_with("HTTP/1.1 503 ") && page.contains("Connection: close\r\n"));
        let (head, body) = page.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())));
        assert_eq!(RefuseReason::NoRoute.answer(Protocol::Tcp, &[], None, &pages), None);
        assert_eq!(
            RefuseReason::Peek(PeekError::Malformed(PeekParseError::WrongProtocol)).answer(
                Protocol::Tls,
                &[],
                None,
                &pages
            ),
            None
        );
        let plain = RefuseReason::Peek(PeekError::Malformed(PeekParseError::PlainHttp));
        let page = plain.answer(Protocol::Tls, b"GET / HTTP/1.1", None, &pages).unwrap();
        assert!(page.starts_with(b"HTTP/1.1 400 "), "the client does not speak TLS");
        let frames = RefuseReason::NoRoute
            .answer(Protocol::Http, h2::PREFACE, None, &pages)
            .unwrap();
        assert_eq!(frames[..9], [0, 0, 0, 4, 0, 0, 0, 0, 0], "SETTINGS come first");
        let closed = RefuseReason::Peek(PeekError::Closed);
        assert_eq!(closed.answer(Protocol::Http, h2::PREFACE, None, &pages), None);
    }
}
