//! Bytes of an answer on their way from an exchange to its stream: a bounded buffer between two tasks of one thread.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Most bytes that wait in a pipe.
pub(super) const ROOM: usize = 64 * 1024;

#[derive(Default)]
struct AnswerPipe {
    bytes: Vec<u8>,
    is_ended: bool,
    is_writer_gone: bool,
    is_reader_gone: bool,
    /// Whether the reader has had the whole answer: its going means nothing then.
    has_whole: bool,
    writer: Option<Waker>,
    reader: Option<Waker>,
}

/// Writing end. Dropped before [`Self::end`], it cuts the stream off.
pub(super) struct PipeWriter(Rc<RefCell<AnswerPipe>>);

/// Reading end.
pub(super) struct PipeReader(Rc<RefCell<AnswerPipe>>);

/// Bytes of a pipe, or its end.
pub(super) enum Piped {
    Bytes(Vec<u8>),
    Ended,
    /// The writer has gone before its end.
    CutOff,
}

/// Makes a pipe.
pub(super) fn pipe() -> (PipeWriter, PipeReader) {
    let pipe = Rc::default();
    (PipeWriter(Rc::clone(&pipe)), PipeReader(pipe))
}

impl PipeWriter {
    /// Writes what there is room for.
    pub(super) fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut pipe = self.0.borrow_mut();
        if pipe.is_reader_gone || pipe.is_ended {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if pipe.has_whole {
            return Ok(bytes.len());
        }
        let taken = bytes.len().min(ROOM.saturating_sub(pipe.bytes.len()));
        pipe.bytes.extend_from_slice(&bytes[..taken]);
        if taken > 0 {
            wake(pipe.reader.take());
        }
        Ok(taken)
    }

    /// Writes, or waits for room.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.try_write(bytes) {
            Ok(0) if !bytes.is_empty() => {
                self.0.borrow_mut().writer = Some(cx.waker().clone());
                Poll::Pending
            }
            written => Poll::Ready(written),
        }
    }

    /// Waits until the reader has taken everything: a reader that takes nothing is the exchange's to give up.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut pipe = self.0.borrow_mut();
        if pipe.bytes.is_empty() {
            return Poll::Ready(Ok(()));
        }
        if pipe.is_reader_gone {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        pipe.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Waits until there is no reader.
    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut pipe = self.0.borrow_mut();
        if pipe.is_reader_gone {
            return Poll::Ready(());
        }
        pipe.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Ends the bytes: all were written.
    pub(super) fn end(&mut self) {
        let mut pipe = self.0.borrow_mut();
        pipe.is_ended = true;
        wake(pipe.reader.take());
    }
}

impl Drop for PipeWriter {
    fn drop(&mut self) {
        let mut pipe = self.0.borrow_mut();
        pipe.is_writer_gone = true;
        wake(pipe.reader.take());
    }
}

impl PipeReader {
    /// Takes all bytes that wait.
    pub(super) fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<Piped> {
        let mut pipe = self.0.borrow_mut();
        if !pipe.bytes.is_empty() {
            wake(pipe.writer.take());
            return Poll::Ready(Piped::Bytes(std::mem::take(&mut pipe.bytes)));
        }
        if pipe.is_ended {
            return Poll::Ready(Piped::Ended);
        }
        if pipe.is_writer_gone {
            return Poll::Ready(Piped::CutOff);
        }
        pipe.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Says that the answer is whole: the exchange may end in its own time.
    pub(super) fn finish(&mut self) {
        let mut pipe = self.0.borrow_mut();
        pipe.has_whole = true;
        pipe.bytes = Vec::new();
        wake(pipe.writer.take());
    }
}

impl Drop for PipeReader {
    fn drop(&mut self) {
        let mut pipe = self.0.borrow_mut();
        pipe.is_reader_gone = !pipe.has_whole;
        pipe.bytes = Vec::new();
        wake(pipe.writer.take());
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_bounded_and_tells_a_whole_answer_from_a_part() {
        let cx = &mut Context::from_waker(Waker::noop());
        let (mut writer, mut reader) = pipe();
        assert!(reader.poll_take(cx).is_pending());
        assert_eq!(writer.try_write(&vec![1; ROOM + 5]).unwrap(), ROOM);
        assert!(writer.poll_write(cx, b"more").is_pending() && writer.poll_flush(cx).is_pending());
        assert!(matches!(reader.poll_take(cx), Poll::Ready(Piped::Bytes(bytes)) if bytes.len() == ROOM));
        assert!(writer.poll_flush(cx).is_ready());
        writer.try_write(b"end").unwrap();
        drop(writer);
        assert!(matches!(reader.poll_take(cx), Poll::Ready(Piped::Bytes(bytes)) if bytes == b"end"));
        assert!(matches!(reader.poll_take(cx), Poll::Ready(Piped::CutOff)));
        let (mut writer, mut reader) = pipe();
        writer.end();
        assert!(matches!(reader.poll_take(cx), Poll::Ready(Piped::Ended)));
        assert!(writer.poll_gone(cx).is_pending());
        drop(reader);
        assert!(writer.poll_gone(cx).is_ready() && writer.try_write(b"x").is_err());
        let (mut writer, mut reader) = pipe();
        reader.finish();
        drop(reader);
        assert!(writer.poll_gone(cx).is_pending() && writer.poll_flush(cx).is_ready());
    }
}
