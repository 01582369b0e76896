//! A stream of an HTTP/2 connection to a host as a leg of an exchange. The request is written, and the answer is read,
//! as HTTP/1.1.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use h2::Reason;
use h2::client::ResponseFuture;
use http::{HeaderMap, Response};
use signalbox_core::wire::http1::framing::BodyLength;
use signalbox_core::wire::http1::head::Version;
use signalbox_core::wire::http1::method::Method;
use signalbox_core::wire::http2::answer::{StreamAnswer, to_http1};
use tokio::io::ReadBuf;

use super::body_reader::BodyReader;
use super::body_writer::BodyWriter;
use super::fields::checked_trailers;
use super::host_request::HostRequest;
use super::shared_host::{HostStreamCount, SharedHost, Unsent};

/// A stream of an HTTP/2 connection to a host. It is reset if dropped before both sides have ended.
pub(in crate::datapath::http) struct HostStreamLeg {
    host: Rc<SharedHost>,
    request: RequestPart,
    answer: AnswerPart,
    /// Bytes of heads to read.
    heads: Vec<u8>,
    asked: (Method, Version),
    /// Error of the request, which is returned when the answer is read.
    failure: Option<io::Error>,
    count: HostStreamCount,
}

enum RequestPart {
    /// Bytes of an incomplete head.
    Head(Vec<u8>),
    Body(BodyWriter),
}

enum AnswerPart {
    /// The request has not been sent.
    Unasked,
    Head(ResponseFuture),
    Body(BodyReader),
}

impl HostStreamLeg {
    pub(super) fn new(host: Rc<SharedHost>, count: HostStreamCount) -> Self {
        Self {
            host,
            request: RequestPart::Head(Vec::new()),
            answer: AnswerPart::Unasked,
            heads: Vec::new(),
            asked: (Method::Get, Version::Http11),
            failure: None,
            count,
        }
    }

    /// Writes as much of the request as fits the host's windows.
    pub(in crate::datapath::http) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.request {
            RequestPart::Head(_) => Poll::Ready(self.take_head(bytes)),
            RequestPart::Body(body) => body.poll_write(cx, bytes),
        }
    }

    /// Takes bytes of the head, and sends it when complete. Returns how many it took: all, or those up to the body.
    fn take_head(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let RequestPart::Head(head) = &mut self.request else {
            return Ok(0);
        };
        let before = head.len();
        head.extend_from_slice(bytes);
        let sent = HostRequest::parse(head, self.host.scheme(), self.host.authority()).and_then(|parsed| {
            let Some(request) = parsed else { return Ok(None) };
            let (asked, length, used) = (request.asked, request.length, request.bytes);
            let is_ended = request.is_ended();
            let (answer, stream) = self.host.send(request.head, is_ended)?;
            Ok(Some((asked, used, answer, BodyWriter::new(stream, length))))
        });
        match sent {
            Ok(None) => Ok(bytes.len()),
            Ok(Some((asked, used, answer, body))) => {
                self.asked = asked;
                self.answer = AnswerPart::Head(answer);
                self.request = RequestPart::Body(body);
                Ok(used - before)
            }
            Err(error) => {
                let kind = error.kind();
                self.failure = Some(error);
                Err(kind.into())
            }
        }
    }

    /// Reads the answer. After its end, reads return no bytes.
    pub(in crate::datapath::http) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(error) = self.failure.take() {
            return Poll::Ready(Err(error));
        }
        loop {
            if !self.heads.is_empty() {
                if let AnswerPart::Body(body) = &mut self.answer {
                    ready!(body.poll_end_of_empty(cx))?;
                }
                let taken = self.heads.len().min(buf.remaining());
                buf.put_slice(&self.heads[..taken]);
                self.heads.drain(..taken);
                return Poll::Ready(Ok(()));
            }
            match &mut self.answer {
                AnswerPart::Unasked => return Poll::Pending,
                AnswerPart::Head(_) => ready!(self.poll_head(cx))?,
                AnswerPart::Body(body) => {
                    // A host that has answered may not want the rest of the request.
                    let is_sent = matches!(&self.request, RequestPart::Body(request) if request.is_whole());
                    body.set_may_end_by_reset(!is_sent);
                    let read = ready!(body.poll_read(cx, buf));
                    self.count.heard();
                    return Poll::Ready(read.map(drop));
                }
            }
        }
    }

    /// Checked trailers after an answer of known length. They are known before its last bytes are read, or before the
    /// head of an empty one.
    pub(in crate::datapath::http) fn take_trailers(&mut self) -> io::Result<Option<Box<HeaderMap>>> {
        let AnswerPart::Body(body) = &mut self.answer else {
            return Ok(None);
        };
        let checked = |trailers: Box<HeaderMap>| checked_trailers(&trailers).map(Box::new);
        body.take_trailers().map(checked).transpose()
    }

    /// Waits for the next head: of an interim answer, or the final one.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let AnswerPart::Head(answer) = &mut self.answer else {
            return Poll::Ready(Ok(()));
        };
        if let Poll::Ready(Some(interim)) = answer.poll_informational(cx) {
            let interim = interim.map_err(io::Error::other)?;
            self.heads = self.head(&interim, false)?.0;
        } else {
            let answer = ready!(Pin::new(answer).poll(cx)).map_err(io::Error::other)?;
            let (parts, body) = answer.into_parts();
            let (head, length) = self.head(&Response::from_parts(parts, ()), body.is_end_stream())?;
            self.heads = head;
            self.answer = AnswerPart::Body(BodyReader::new(body, length).await_end(length));
        }
        self.count.heard();
        Poll::Ready(Ok(()))
    }

    fn head(&self, answer: &Response<()>, is_ended: bool) -> io::Result<(Vec<u8>, BodyLength)> {
        let status = answer.status();
        let known = StreamAnswer {
            status: status.as_u16(),
            reason: status.canonical_reason().unwrap_or_default(),
            is_ended,
            asked: self.asked.0,
            version: self.asked.1,
        };
        let fields = answer.headers().iter();
        let fields = fields.map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()));
        to_http1(&known, fields).map_err(|fault| io::Error::new(io::ErrorKind::InvalidData, fault))
    }
}

/// Whether an error means that the host has not processed the request (RFC 9113, section 8.7).
pub(in crate::datapath::http) fn is_refused(error: &io::Error) -> bool {
    let unsent = error.get_ref().and_then(|inner| inner.downcast_ref::<Unsent>());
    unsent.is_some()
        || h2_error(error).is_some_and(|error| {
            // GOAWAY is the error of only those streams that are above its last stream id.
            error.is_remote() && (error.is_go_away() || error.reason() == Some(Reason::REFUSED_STREAM))
        })
}

/// Error code of a host's RST_STREAM.
pub(in crate::datapath::http) fn reset_reason(error: &io::Error) -> Option<Reason> {
    h2_error(error)
        .filter(|error| error.is_reset() && error.is_remote())
        .and_then(h2::Error::reason)
}

fn h2_error(error: &io::Error) -> Option<&h2::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}
