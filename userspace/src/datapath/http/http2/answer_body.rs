//! Body of an answer for hyper, which asks for more of it only where the client takes more.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use signalbox_core::http1::chunked::ChunkedBody;
use signalbox_core::http1::framing::BodyLength;
use signalbox_core::http1::limits::MessageLimits;

use super::answer;
use super::pipe::{PipeReader, Piped};
use super::streams::StreamCount;

/// Body of an answer. It ends in an error where the answer is cut off.
pub(super) struct AnswerBody {
    left: AnswerLeft,
    /// Bytes that were read and not used yet.
    ahead: Bytes,
    pipe: PipeReader,
    /// Counts the stream while its answer is sent.
    _count: StreamCount,
}

/// Rest of an answer's body.
enum AnswerLeft {
    Known(u64),
    Chunked(Box<ChunkedBody>),
    UntilClose,
    Ended,
}

impl AnswerBody {
    pub(super) fn new(length: BodyLength, ahead: Vec<u8>, pipe: PipeReader, count: StreamCount) -> Self {
        let mut body = Self {
            left: match length {
                BodyLength::None | BodyLength::Known(0) => AnswerLeft::Ended,
                BodyLength::Known(bytes) => AnswerLeft::Known(bytes),
                BodyLength::Chunked => AnswerLeft::Chunked(Box::new(ChunkedBody::new(&MessageLimits::default()))),
                BodyLength::UntilClose => AnswerLeft::UntilClose,
            },
            ahead: Bytes::from(ahead),
            pipe,
            _count: count,
        };
        if body.is_end_stream() {
            body.pipe.finish();
        }
        body
    }

    fn end(&mut self) {
        self.left = AnswerLeft::Ended;
        self.pipe.finish();
    }

    /// Takes the next frame out of the bytes that were read; `None`: more are needed, or the body has ended.
    fn next_frame(&mut self) -> io::Result<Option<Frame<Bytes>>> {
        while !self.ahead.is_empty() {
            match &mut self.left {
                AnswerLeft::Ended => return Ok(None),
                AnswerLeft::UntilClose => return Ok(Some(Frame::data(std::mem::take(&mut self.ahead)))),
                AnswerLeft::Known(left) => {
                    let taken = usize::try_from(*left).map_or(self.ahead.len(), |left| left.min(self.ahead.len()));
                    *left -= taken as u64;
                    let (is_last, data) = (*left == 0, self.ahead.split_to(taken));
                    if is_last {
                        self.end();
                    }
                    return Ok(Some(Frame::data(data)));
                }
                AnswerLeft::Chunked(body) => {
                    let data = usize::try_from(body.data_ahead()).unwrap_or(usize::MAX);
                    if data > 0 {
                        let taken = data.min(self.ahead.len());
                        body.skip(taken as u64);
                        return Ok(Some(Frame::data(self.ahead.split_to(taken))));
                    }
                    // Between chunks there are a few bytes only.
                    body.scan(&self.ahead.split_to(1)).map_err(io::Error::other)?;
                    if body.is_done() {
                        let trailers = answer::fields(body.trailer_fields(), body.trailers())?;
                        self.end();
                        return Ok((!trailers.is_empty()).then(|| Frame::trailers(trailers)));
                    }
                }
            }
        }
        Ok(None)
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        loop {
            match self.next_frame() {
                Ok(None) if self.is_end_stream() => return Poll::Ready(None),
                Ok(None) => {}
                Ok(Some(frame)) => return Poll::Ready(Some(Ok(frame))),
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
            match ready!(self.pipe.poll_take(cx)) {
                Piped::Bytes(bytes) => self.ahead = Bytes::from(bytes),
                Piped::Ended if matches!(self.left, AnswerLeft::UntilClose) => self.end(),
                Piped::Ended | Piped::CutOff => {
                    return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into())));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.left, AnswerLeft::Ended)
    }

    fn size_hint(&self) -> SizeHint {
        match self.left {
            AnswerLeft::Known(left) => SizeHint::with_exact(left),
            _ => SizeHint::default(),
        }
    }
}
