//! The answer of an exchange, written as HTTP/1.1 and sent as frames of a stream.

use std::io;
use std::task::{Context, Poll, ready};

use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use hyper::body::Bytes;
use signalbox_core::http1::chunked::ChunkedBody;
use signalbox_core::http1::fields::FieldSection;
use signalbox_core::http1::framing::{self, AnswerKind, BodyLength};
use signalbox_core::http1::head::ResponseHead;
use signalbox_core::http1::limits::{MAX_FIELDS, MessageLimits};
use signalbox_core::http1::method::Method;
use signalbox_core::http1::parse;
use signalbox_core::http2::request::CONNECTION_FIELDS;

/// Sends an answer. Dropped before the answer is whole, it resets the stream.
pub(super) struct AnswerWriter {
    respond: SendResponse<Bytes>,
    /// The body's stream, once the final head is sent.
    stream: Option<SendStream<Bytes>>,
    method: Method,
    /// Bytes of a head that is not whole yet.
    head: Vec<u8>,
    left: AnswerLeft,
}

/// Rest of an answer.
enum AnswerLeft {
    Head,
    Known(u64),
    Chunked(Box<ChunkedBody>),
    UntilClose,
    Nothing,
}

impl AnswerWriter {
    pub(super) const fn new(respond: SendResponse<Bytes>, method: Method) -> Self {
        Self {
            respond,
            stream: None,
            method,
            head: Vec::new(),
            left: AnswerLeft::Head,
        }
    }

    /// Writes what the client's windows have room for. What comes behind a whole answer is dropped.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.left {
            AnswerLeft::Head => Poll::Ready(self.take_head(bytes)),
            _ => self.poll_body(cx, bytes),
        }
    }

    /// Takes bytes of interim heads and the final one, and sends those that are whole. Returns how many it took: all,
    /// or those up to the body.
    fn take_head(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.head.extend_from_slice(bytes);
        let limits = limits();
        while let Some(head) = parse::response(&self.head, &limits).map_err(io::Error::other)? {
            let kind = framing::answer(&head, &self.head, self.method).map_err(io::Error::other)?;
            let response = response(&head, &self.head)?;
            self.head.drain(..head.range.end());
            match kind {
                AnswerKind::Interim => self.respond.send_informational(response).map_err(io::Error::other)?,
                AnswerKind::Final(length) => {
                    self.send_final(response, length)?;
                    return Ok(bytes.len() - std::mem::take(&mut self.head).len());
                }
                AnswerKind::SwitchingProtocols | AnswerKind::Tunnel => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(bytes.len())
    }

    /// Sends bytes of the body, as far as the windows go.
    fn poll_body(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut used = 0;
        while used < bytes.len() {
            let waiting = bytes.len() - used;
            let due = match &mut self.left {
                AnswerLeft::Head | AnswerLeft::UntilClose => waiting,
                AnswerLeft::Known(left) => waiting.min(usize::try_from(*left).unwrap_or(usize::MAX)),
                AnswerLeft::Chunked(body) => waiting.min(usize::try_from(body.data_ahead()).unwrap_or(usize::MAX)),
                AnswerLeft::Nothing => return Poll::Ready(Ok(bytes.len())),
            };
            if due == 0 {
                self.scan(&bytes[used..=used])?;
                used += 1;
                continue;
            }
            let room = match self.poll_room(cx, due)? {
                Poll::Ready(room) => room,
                Poll::Pending if used > 0 => break,
                Poll::Pending => return Poll::Pending,
            };
            let data = Bytes::copy_from_slice(&bytes[used..used + due.min(room)]);
            used += data.len();
            let is_last = self.skip(data.len() as u64);
            self.send(data, is_last)?;
        }
        Poll::Ready(Ok(used))
    }

    /// Waits until the client has reset the stream, before its answer was whole.
    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_whole() {
            return Poll::Pending;
        }
        let reset = match &mut self.stream {
            Some(stream) => stream.poll_reset(cx),
            None => self.respond.poll_reset(cx),
        };
        reset.map(drop)
    }

    /// Ends an answer whose length only its end tells.
    pub(super) fn end(&mut self) {
        if matches!(self.left, AnswerLeft::UntilClose) {
            // An error is ignored: the client has reset the stream.
            let _ = self.send(Bytes::new(), true);
        }
    }

    const fn is_whole(&self) -> bool {
        matches!(self.left, AnswerLeft::Nothing)
    }

    fn send_final(&mut self, response: Response<()>, length: BodyLength) -> io::Result<()> {
        let is_ended = matches!(length, BodyLength::None | BodyLength::Known(0));
        let stream = self.respond.send_response(response, is_ended);
        self.stream = Some(stream.map_err(io::Error::other)?);
        self.left = match length {
            BodyLength::None | BodyLength::Known(0) => AnswerLeft::Nothing,
            BodyLength::Known(bytes) => AnswerLeft::Known(bytes),
            BodyLength::Chunked => AnswerLeft::Chunked(Box::new(ChunkedBody::new(&MessageLimits::default()))),
            BodyLength::UntilClose => AnswerLeft::UntilClose,
        };
        Ok(())
    }

    /// Reads a byte between chunks, of which there are a few only, and sends the end behind the last one.
    fn scan(&mut self, byte: &[u8]) -> io::Result<()> {
        let AnswerLeft::Chunked(body) = &mut self.left else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        body.scan(byte).map_err(io::Error::other)?;
        if !body.is_done() {
            return Ok(());
        }
        let trailers = fields(body.trailer_fields(), body.trailers())?;
        match &mut self.stream {
            Some(stream) if !trailers.is_empty() => {
                stream.send_trailers(trailers).map_err(io::Error::other)?;
                self.left = AnswerLeft::Nothing;
                Ok(())
            }
            _ => self.send(Bytes::new(), true),
        }
    }

    /// Counts data that is sent. Returns whether the body ends with it.
    fn skip(&mut self, bytes: u64) -> bool {
        match &mut self.left {
            AnswerLeft::Known(left) => {
                *left -= bytes;
                *left == 0
            }
            AnswerLeft::Chunked(body) => {
                body.skip(bytes);
                false
            }
            AnswerLeft::Head | AnswerLeft::UntilClose | AnswerLeft::Nothing => false,
        }
    }

    fn send(&mut self, data: Bytes, is_last: bool) -> io::Result<()> {
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        stream.send_data(data, is_last).map_err(io::Error::other)?;
        if is_last {
            self.left = AnswerLeft::Nothing;
        }
        Ok(())
    }

    /// Waits for the windows of stream and connection: returns the bytes that may be sent, at least one.
    fn poll_room(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<usize>> {
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        stream.reserve_capacity(wanted);
        loop {
            if stream.capacity() > 0 {
                return Poll::Ready(Ok(stream.capacity()));
            }
            match ready!(stream.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            }
        }
    }
}

impl Drop for AnswerWriter {
    fn drop(&mut self) {
        // A stream whose answer has begun is reset by h2 when the last handle goes, behind what waits to be sent.
        if self.stream.is_none() {
            self.respond.send_reset(Reason::INTERNAL_ERROR);
        }
    }
}

/// Limits of an answer's head, which has met those of its host's already and has grown since.
fn limits() -> MessageLimits {
    let limits = MessageLimits::default();
    MessageLimits {
        head_bytes: 2 * limits.head_bytes,
        fields: MAX_FIELDS,
        ..limits
    }
}

fn response(head: &ResponseHead, bytes: &[u8]) -> io::Result<Response<()>> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(head.status).map_err(io::Error::other)?;
    *response.headers_mut() = fields(&head.fields, bytes)?;
    Ok(response)
}

/// Fields that a stream may have.
fn fields(section: &FieldSection, buffer: &[u8]) -> io::Result<HeaderMap> {
    let mut fields = HeaderMap::with_capacity(section.len());
    for field in section.iter() {
        let name = HeaderName::from_bytes(field.name.of(buffer)).map_err(io::Error::other)?;
        if !CONNECTION_FIELDS.contains(&name.as_str()) && name != "te" {
            let value = HeaderValue::from_bytes(field.value.of(buffer)).map_err(io::Error::other)?;
            fields.append(name, value);
        }
    }
    Ok(fields)
}
