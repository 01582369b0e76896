//! A request in HTTP/1.1, converted to the head of a stream to a host.

use std::io;

use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{Method as HttpMethod, Request, Version as HttpVersion};
use signalbox_core::wire::http1::framing::{self, BodyLength};
use signalbox_core::wire::http1::head::{RequestHead, Version};
use signalbox_core::wire::http1::method::Method;
use signalbox_core::wire::http1::parse::{self, ParsedRequest};

use super::fields::{grown_limits, stream_fields};

/// Head of a request to a host, and the facts needed to read its answer.
pub(super) struct HostRequest {
    pub(super) head: Request<()>,
    pub(super) length: BodyLength,
    pub(super) asked: (Method, Version),
    /// Number of bytes of the head in HTTP/1.1.
    pub(super) bytes: usize,
}

impl HostRequest {
    /// Reads a head from the start of some bytes; `None` if it is incomplete. `fallback` is the authority of an
    /// HTTP/1.0 request without a Host field.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidInput`]: the request cannot be sent in HTTP/2.
    pub(super) fn parse(bytes: &[u8], scheme: &Scheme, fallback: &Authority) -> io::Result<Option<Self>> {
        let head = match parse::request(bytes, &grown_limits()) {
            Ok(ParsedRequest::Head(head)) => head,
            Ok(ParsedRequest::Incomplete) => return Ok(None),
            Ok(ParsedRequest::Http2) => return Err(io::ErrorKind::InvalidInput.into()),
            Err(fault) => return Err(unfit(fault)),
        };
        Ok(Some(Self {
            head: request(&head, bytes, scheme, fallback)?,
            length: framing::request_body(&head, bytes).map_err(unfit)?,
            asked: (head.method, head.version),
            bytes: head.range.end(),
        }))
    }

    /// Whether the stream ends with the head.
    pub(super) const fn is_ended(&self) -> bool {
        matches!(self.length, BodyLength::None | BodyLength::Known(0))
    }
}

fn request(head: &RequestHead, bytes: &[u8], scheme: &Scheme, fallback: &Authority) -> io::Result<Request<()>> {
    let host = head.fields.values(bytes, "host").next();
    let authority = match host {
        Some(host) if !host.is_empty() => Authority::try_from(host).map_err(unfit)?,
        _ => fallback.clone(),
    };
    let (root, rest) = head.path_and_query(bytes);
    let path = PathAndQuery::try_from([root, rest].concat()).map_err(unfit)?;
    let uri = Uri::builder()
        .scheme(scheme.clone())
        .authority(authority)
        .path_and_query(path);
    let mut request = Request::new(());
    *request.method_mut() = HttpMethod::from_bytes(head.method_name.of(bytes)).map_err(unfit)?;
    *request.uri_mut() = uri.build().map_err(unfit)?;
    *request.version_mut() = HttpVersion::HTTP_2;
    *request.headers_mut() = stream_fields(&head.fields, bytes, &["host"]).map_err(unfit)?;
    Ok(request)
}

fn unfit(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> io::Result<Option<HostRequest>> {
        let fallback = Authority::from_static("10.0.0.1:80");
        HostRequest::parse(text.as_bytes(), &Scheme::HTTP, &fallback)
    }

    #[test]
    fn a_request_becomes_the_head_of_a_stream() {
        let text = "POST /a.B/C?d HTTP/1.1\r\nHost: a.test:81\r\nTE: trailers\r\nCookie: a=1; b=2\r\n\
                    Transfer-Encoding: chunked\r\nConnection: TE\r\n\r\n5\r\n";
        let request = parse(text).unwrap().unwrap();
        assert_eq!(request.head.uri(), "http://a.test:81/a.B/C?d");
        assert_eq!(request.head.headers().get("te").unwrap(), "trailers");
        assert_eq!(request.head.headers().len(), 2, "{:?}", request.head.headers());
        assert_eq!((request.length, request.bytes), (BodyLength::Chunked, text.len() - 3));
        assert!(parse(&text[..40]).unwrap().is_none());
    }

    #[test]
    fn requests_without_a_host_and_for_a_whole_host() {
        let old = parse("GET / HTTP/1.0\r\n\r\n").unwrap().unwrap();
        assert_eq!(old.head.uri(), "http://10.0.0.1:80/");
        assert_eq!(old.asked, (Method::Get, Version::Http10));
        assert!(old.is_ended());
        let options = parse("OPTIONS * HTTP/1.1\r\nHost: a.test\r\n\r\n").unwrap().unwrap();
        assert_eq!(options.head.uri().path(), "*");
    }

    #[test]
    fn a_request_that_http2_has_no_words_for_is_refused() {
        for text in [
            "GET /<a> HTTP/1.1\r\nHost: a.test\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        ] {
            let error = parse(text).err().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{text}");
        }
    }
}
