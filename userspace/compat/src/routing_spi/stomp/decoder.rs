//! Decodes bytes to frames, with the bytes cut up in any way.

use super::{Frame, has_escapes};

/// Largest head (command and headers) in bytes. ActiveMQ's have some hundreds.
pub(super) const MAX_HEAD: usize = 64 << 10;

/// Error for bytes that are no frame: nothing after them can be believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in super::super) enum Malformed {
    #[error("the broker's frame has a head of more than {MAX_HEAD} bytes: is it a STOMP port?")]
    Head,
    #[error("the broker's frame is not UTF-8: is it a STOMP port?")]
    Text,
    #[error("the broker's frame has a header without a colon, or with an unknown escape")]
    Header,
    #[error("the broker's frame has a content-length that is no number")]
    Length,
    #[error("the broker's frame does not end where its content-length says")]
    End,
}

/// Decoder of frames from a byte stream.
#[derive(Debug)]
pub(in super::super) struct Decoder {
    buffer: Vec<u8>,
    /// Number of bytes of a head that have been searched for its end.
    searched: usize,
    body: Option<PartialFrame>,
    max_body: usize,
}

#[derive(Debug)]
struct PartialFrame {
    frame: Frame,
    /// Bytes of the body that are still to come, without the closing NUL; `None`: up to the NUL.
    left: Option<usize>,
}

impl Decoder {
    /// Makes a decoder that keeps at most `max_body` bytes of a body.
    pub(in super::super) fn new(max_body: usize) -> Self {
        Self {
            buffer: Vec::new(),
            searched: 0,
            body: None,
            max_body,
        }
    }

    pub(in super::super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the number of bytes that have not been decoded yet.
    pub(in super::super) fn waiting(&self) -> usize {
        self.buffer.len()
    }

    /// Returns whether all bytes so far belonged to whole frames, or were heart-beats.
    pub(in super::super) fn is_between_frames(&self) -> bool {
        self.buffer.is_empty() && self.body.is_none()
    }

    /// Returns the next frame, once all of it is there.
    pub(in super::super) fn next(&mut self) -> Result<Option<Frame>, Malformed> {
        loop {
            if self.body.is_some() {
                return self.read_body();
            }
            // Line ends between frames are heart-beats.
            let beats = self
                .buffer
                .iter()
                .take_while(|byte| matches!(byte, b'\n' | b'\r'))
                .count();
            if beats > 0 {
                self.buffer.drain(..beats);
                self.searched = 0;
            }
            let Some(end) = self.head_end()? else { return Ok(None) };
            let head: Vec<u8> = self.buffer.drain(..end).collect();
            self.searched = 0;
            self.body = Some(parse_head(&head)?);
        }
    }

    /// Returns the end of the head, with its empty line.
    fn head_end(&mut self) -> Result<Option<usize>, Malformed> {
        let from = self.searched;
        for at in from..self.buffer.len() {
            if at > MAX_HEAD {
                return Err(Malformed::Head);
            }
            let before = &self.buffer[..at];
            if self.buffer[at] == b'\n' && (before.ends_with(b"\n") || before.ends_with(b"\n\r")) {
                return Ok(Some(at + 1));
            }
        }
        self.searched = self.buffer.len();
        Ok(None)
    }

    fn read_body(&mut self) -> Result<Option<Frame>, Malformed> {
        let Some(PartialFrame { frame, left }) = &mut self.body else {
            return Ok(None);
        };
        let nul = || self.buffer.iter().position(|byte| *byte == 0);
        let (part, done) = match *left {
            Some(left) => (left.min(self.buffer.len()), self.buffer.len() > left),
            None => nul().map_or((self.buffer.len(), false), |at| (at, true)),
        };
        let room = self.max_body - frame.body.len();
        frame.cut |= part > room;
        frame.body.extend_from_slice(&self.buffer[..part.min(room)]);
        self.buffer.drain(..part);
        if let Some(left) = left {
            *left -= part;
        }
        if !done {
            return Ok(None);
        }
        if self.buffer.first() != Some(&0) {
            return Err(Malformed::End);
        }
        self.buffer.drain(..1);
        Ok(self.body.take().map(|body| body.frame))
    }
}

fn parse_head(head: &[u8]) -> Result<PartialFrame, Malformed> {
    let text = std::str::from_utf8(head).map_err(|_| Malformed::Text)?;
    let mut lines = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    let command = lines.next().unwrap_or_default().to_owned();
    let escaped = has_escapes(&command);
    let mut headers = Vec::new();
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').ok_or(Malformed::Header)?;
        headers.push(if escaped {
            (unescape(name)?, unescape(value)?)
        } else {
            (name.to_owned(), value.to_owned())
        });
    }
    let frame = Frame {
        command,
        headers,
        body: Vec::new(),
        cut: false,
    };
    let left = match frame.header("content-length") {
        None => None,
        Some(text) => Some(text.trim().parse().map_err(|_| Malformed::Length)?),
    };
    Ok(PartialFrame { frame, left })
}

fn unescape(text: &str) -> Result<String, Malformed> {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        plain.push(match character {
            '\\' => match characters.next() {
                Some('\\') => '\\',
                Some('n') => '\n',
                Some('r') => '\r',
                Some('c') => ':',
                _ => return Err(Malformed::Header),
            },
            other => other,
        });
    }
    Ok(plain)
}
