//! STOMP frames, <https://stomp.github.io/stomp-specification-1.2.html>: as much of it as a consumer needs, with bounds.
//!
//! Our own because the client crate at hand, async-stomp, is under the EUPL, a copyleft that signalbox's licence does
//! not go with; and because a body that is too large must be passed over, not end the connection: the broker would
//! deliver it again, for ever.

use std::fmt::Write as _;

/// The largest head (command and headers), in bytes. ActiveMQ's have some hundreds.
const MAX_HEAD: usize = 64 << 10;

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) command: String,
    /// In order; of a name given twice the first counts.
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    /// Whether the body was longer than what is kept of it.
    pub(super) cut: bool,
}

/// Bytes that are no frame: nothing after them can be believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
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

impl Frame {
    pub(super) fn new(command: &str, headers: &[(&str, &str)]) -> Self {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self {
            command: command.to_owned(),
            headers: headers.iter().map(own).collect(),
            body: Vec::new(),
            cut: false,
        }
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// As it goes over the wire.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut head = format!("{}\n", self.command);
        let escaped = has_escapes(&self.command);
        for (name, value) in &self.headers {
            if escaped {
                let _ = writeln!(head, "{}:{}", escape(name), escape(value)); // a String takes everything
            } else {
                let _ = writeln!(head, "{name}:{value}");
            }
        }
        if !self.body.is_empty() {
            let _ = writeln!(head, "content-length:{}", self.body.len());
        }
        head.push('\n');
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes.push(0);
        bytes
    }
}

/// These two stay as STOMP 1.0 had them.
fn has_escapes(command: &str) -> bool {
    !matches!(command, "CONNECT" | "CONNECTED")
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' => escaped.push_str("\\\\"),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            ':' => escaped.push_str("\\c"),
            other => escaped.push(other),
        }
    }
    escaped
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

/// Makes frames of bytes as they come.
#[derive(Debug)]
pub(super) struct Decoder {
    buffer: Vec<u8>,
    /// How much of a head has been searched for its end.
    searched: usize,
    body: Option<Body>,
    max_body: usize,
}

#[derive(Debug)]
struct Body {
    frame: Frame,
    /// What is still to come, the closing NUL not counted; `None`: up to the NUL.
    left: Option<usize>,
}

impl Decoder {
    /// Keeps at most `max_body` bytes of a body.
    pub(super) fn new(max_body: usize) -> Self {
        Self {
            buffer: Vec::new(),
            searched: 0,
            body: None,
            max_body,
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Bytes of which nothing has been made yet.
    pub(super) fn waiting(&self) -> usize {
        self.buffer.len()
    }

    /// The next frame, once all of it is there.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, Malformed> {
        loop {
            if self.body.is_some() {
                return self.rest();
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
            self.body = Some(head_of(&head)?);
        }
    }

    /// Where the head ends, its empty line included.
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

    fn rest(&mut self) -> Result<Option<Frame>, Malformed> {
        let Some(Body { frame, left }) = &mut self.body else {
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

fn head_of(head: &[u8]) -> Result<Body, Malformed> {
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
    Ok(Body { frame, left })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(decoder: &mut Decoder) -> Result<Vec<Frame>, Malformed> {
        std::iter::from_fn(|| decoder.next().transpose()).collect()
    }

    #[test]
    fn what_activemq_sends() {
        let mut decoder = Decoder::new(100);
        decoder
            .push(b"CONNECTED\nserver:ActiveMQ/5.17.2\nheart-beat:5000,5000\nsession:ID:vm-3:2\nversion:1.2\n\n\0\n");
        decoder.push(
            b"\n\nMESSAGE\nack:ID\\cvm-4\\c1\ncontent-length:3\n\na\0b\0\nMESSAGE\r\nack:2\r\nack:3\r\n\r\nxyz\0",
        );
        let frames = all(&mut decoder).unwrap();
        assert_eq!(frames[0].header("session"), Some("ID:vm-3:2"));
        assert_eq!(
            (frames[1].header("ack"), &frames[1].body[..]),
            (Some("ID:vm-4:1"), &b"a\0b"[..])
        );
        assert_eq!((frames[2].header("ack"), &frames[2].body[..]), (Some("2"), &b"xyz"[..]));
        assert_eq!((frames.len(), decoder.waiting()), (3, 0));
    }

    #[test]
    fn a_body_that_is_too_long_is_passed_over() {
        for length in ["", "content-length:1000\n"] {
            let mut decoder = Decoder::new(10);
            decoder.push(format!("MESSAGE\n{length}\n{}\0MESSAGE\n\nshort\0", "x".repeat(1000)).as_bytes());
            let frames = all(&mut decoder).unwrap();
            assert_eq!((frames[0].body.len(), frames[0].cut), (10, true));
            assert_eq!((&frames[1].body[..], frames[1].cut), (&b"short"[..], false));
        }
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        for (bytes, error) in [
            (&b"HTTP/1.1 400 Bad Request\nServer nginx\n\n"[..], Malformed::Header),
            (b"MESSAGE\na:\\t\n\n\0", Malformed::Header),
            (b"MESSAGE\na:\\", Malformed::Head),
            (b"MESSAGE\ncontent-length:-1\n\n\0", Malformed::Length),
            (b"MESSAGE\ncontent-length:1\n\nabc\0", Malformed::End),
            (b"\xff\n\n\0", Malformed::Text),
        ] {
            let mut decoder = Decoder::new(10);
            decoder.push(bytes);
            decoder.push(&vec![b'x'; MAX_HEAD * usize::from(error == Malformed::Head)]);
            assert_eq!(all(&mut decoder), Err(error), "{}", String::from_utf8_lossy(bytes));
        }
    }

    proptest! {
        /// Frames come out as they went in, whatever is in them and however the bytes are cut up.
        #[test]
        fn frames_survive_the_wire(
            frames in proptest::collection::vec(
                (proptest::collection::vec(("\\PC{1,8}|[\\\\:\r\n]{1,4}", "\\PC{0,8}|[\\\\:\r\n]{0,4}"), 0..4), proptest::collection::vec(any::<u8>(), 0..50)),
                1..5,
            ),
            pieces in proptest::collection::vec(1usize..40, 0..30),
        ) {
            let frames: Vec<Frame> = frames.into_iter().map(|(headers, body)| Frame {
                command: "MESSAGE".into(),
                headers: headers.into_iter().filter(|(name, _)| name != "content-length").collect(),
                body,
                cut: false,
            }).collect();
            let bytes: Vec<u8> = frames.iter().flat_map(|frame| [frame.encode(), b"\n".to_vec()].concat()).collect();
            let mut decoder = Decoder::new(50);
            let mut decoded = Vec::new();
            let mut rest = &bytes[..];
            for piece in pieces {
                let (now, later) = rest.split_at(piece.min(rest.len()));
                decoder.push(now);
                decoded.extend(all(&mut decoder).unwrap());
                rest = later;
            }
            decoder.push(rest);
            decoded.extend(all(&mut decoder).unwrap());
            for frame in &mut decoded {
                frame.headers.retain(|(name, _)| name != "content-length");
            }
            prop_assert_eq!(decoded, frames);
        }

        /// Any bytes are survived, and what is kept of them has an end.
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(prop_oneof![
            any::<u8>().prop_map(|byte| vec![byte]),
            prop::sample::select(vec![&b"MESSAGE\n"[..], b"\n\n", b"\0", b"content-length:", b"7", b"\\c", b":", b"\r\n"]).prop_map(<[u8]>::to_vec),
        ], 0..60)) {
            let mut decoder = Decoder::new(5);
            decoder.push(&bytes.concat());
            if let Ok(frames) = all(&mut decoder) {
                prop_assert!(frames.iter().all(|frame| frame.body.len() <= 5));
            }
        }
    }
}
