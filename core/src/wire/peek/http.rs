//! Host of an HTTP request: Host or absolute-form of HTTP/1, `:authority` of HTTP/2 with prior knowledge.

use super::{Peek, PeekParseError, from_authority, h2};

/// Most bytes of a request head that are looked at.
pub const MAX_HEAD_BYTES: usize = 32 * 1024;

const MAX_HEADERS: usize = 128;

/// Looks at all bytes received so far.
#[must_use]
pub fn peek(bytes: &[u8]) -> Peek {
    let window = &bytes[..bytes.len().min(MAX_HEAD_BYTES)];
    let outcome = if h2::has_preface(window) {
        h2::peek(window)
    } else {
        request(window)
    };
    match outcome {
        Peek::Incomplete | Peek::Greet if bytes.len() >= MAX_HEAD_BYTES => Peek::Invalid(PeekParseError::TooLarge),
        outcome => outcome,
    }
}

fn request(bytes: &[u8]) -> Peek {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Peek::Incomplete,
        Err(httparse::Error::TooManyHeaders) => return Peek::Invalid(PeekParseError::TooLarge),
        Err(error) => return peek_error(error),
    }
    let mut hosts = request
        .headers
        .iter()
        .filter(|h| h.name.eq_ignore_ascii_case("host"))
        .map(|h| h.value);
    let host = hosts.next();
    //= https://www.rfc-editor.org/rfc/rfc9112#section-3.2
    if hosts.next().is_some() {
        return Peek::malformed("more than one Host header");
    }
    if host.is_none() && request.version == Some(1) {
        return Peek::malformed("HTTP/1.1 without a Host header");
    }
    let (method, target) = (
        request.method.unwrap_or_default(),
        request.path.unwrap_or_default().as_bytes(),
    );
    //= https://www.rfc-editor.org/rfc/rfc9112#section-3.2.2
    //# When an origin server receives a request with an absolute-form of request-target, the origin server MUST
    //# ignore the received Host header field (if any)
    if method == "CONNECT" {
        return from_authority(target);
    }
    if let Some(authority) = absolute_form(target) {
        return from_authority(authority);
    }
    host.map_or_else(Peek::nameless, from_authority)
}

/// Authority of `http://authority/path`.
fn absolute_form(target: &[u8]) -> Option<&[u8]> {
    if target.starts_with(b"/") {
        return None;
    }
    let scheme = target.windows(3).position(|w| w == b"://")?;
    let rest = &target[scheme + 3..];
    let end = rest
        .iter()
        .position(|b| matches!(b, b'/' | b'?' | b'#'))
        .unwrap_or(rest.len());
    Some(&rest[..end])
}

/// Fault of bytes that are not HTTP or break its rules. Only the kind of error decides: later bytes must not matter.
fn peek_error(error: httparse::Error) -> Peek {
    match error {
        httparse::Error::Token | httparse::Error::Version => Peek::Invalid(PeekParseError::WrongProtocol),
        _ => Peek::malformed("the request head does not parse"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check_all_prefixes, name};
    use super::*;

    fn whole(head: &str) -> Peek {
        check_all_prefixes(head.as_bytes(), peek)
    }

    #[test]
    fn the_host_header_in_any_case_and_order_without_its_port() {
        assert_eq!(
            whole("GET / HTTP/1.1\r\nAccept: */*\r\nhOsT:  App1.Example.COM:8080 \r\n\r\n"),
            name("app1.example.com")
        );
    }

    #[test]
    fn absolute_form_beats_the_host_header() {
        assert_eq!(
            whole("GET http://a.test:80/x HTTP/1.1\r\nHost: b.test\r\n\r\n"),
            name("a.test")
        );
        assert_eq!(
            whole("GET /?u=http://b.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n"),
            name("a.test")
        );
        assert_eq!(
            whole("CONNECT a.test:443 HTTP/1.1\r\nHost: b.test\r\n\r\n"),
            name("a.test")
        );
    }

    #[test]
    fn http_1_0_may_name_no_host_but_1_1_must() {
        assert_eq!(whole("GET / HTTP/1.0\r\n\r\n"), Peek::nameless());
        assert!(matches!(
            whole("GET / HTTP/1.1\r\n\r\n"),
            Peek::Invalid(PeekParseError::Malformed(_))
        ));
    }

    #[test]
    fn two_hosts_are_refused_whatever_they_say() {
        assert!(matches!(
            whole("GET / HTTP/1.1\r\nHost: a.test\r\nHost: a.test\r\n\r\n"),
            Peek::Invalid(PeekParseError::Malformed(_))
        ));
    }

    #[test]
    fn garbage_is_another_protocol() {
        for garbage in [&b"\x16\x03\x01\x00\xa5\x01"[..], b"\0\0\0\0\0", b"SSH-2.0-OpenSSH\r\n"] {
            assert_eq!(
                peek(garbage),
                Peek::Invalid(PeekParseError::WrongProtocol),
                "{garbage:?}"
            );
        }
    }

    #[test]
    fn a_head_over_the_limit_is_too_large() {
        let mut head = b"GET / HTTP/1.1\r\nHost: a.test\r\nX: ".to_vec();
        head.resize(MAX_HEAD_BYTES - 1, b'x');
        assert_eq!(peek(&head), Peek::Incomplete);
        head.extend(b"xxxx\r\n\r\n");
        assert_eq!(peek(&head), Peek::Invalid(PeekParseError::TooLarge));
    }

    #[test]
    fn http2_with_prior_knowledge() {
        let mut message = h2::PREFACE.to_vec();
        message.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]); // SETTINGS
        message.extend([0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 1, 0, 0]); // WINDOW_UPDATE
        // Header block: `:method GET`, `:scheme http`, `:path /`, `:authority a.test` (literal).
        let block = b"\x82\x86\x84\x41\x06a.test";
        message.extend([0, 0, block.len() as u8, 1, 5, 0, 0, 0, 1]);
        message.extend(block);
        assert_eq!(check_all_prefixes(&message, peek), name("a.test"));
    }
}
