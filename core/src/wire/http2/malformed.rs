//! Malformed fields of HTTP/2 messages: each ends its stream (RFC 9113, section 8.1.1), where the crate h2 would end
//! the connection, and with it other clients' streams. Malformed paths are answered with 400.

mod block;
mod huffman;

use block::{Scratch, replace_malformed};

/// Octets that a client's connection begins with (RFC 9113, section 3.4).
const PREFACE: usize = 24;
const FRAME_HEAD: usize = 9;
/// Largest frame unless the peers have agreed on larger ones.
const MAX_FRAME: usize = 16_384;
/// Largest header block that is looked at, with the heads of its frames. A larger one ends the connection, by other
/// limits.
const MAX_BLOCK: usize = 128 * 1024;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

/// Guard of a connection: substitutes malformed fields in the bytes that a peer sends.
///
/// Bytes go through unchanged as soon as no field among them can be malformed: header blocks when they are whole, all
/// others at once.
#[derive(Default)]
pub struct FieldGuard {
    /// Bytes that go through unchecked.
    skipped: usize,
    /// Beginning of a frame or header block that is not whole yet.
    held: Vec<u8>,
    scratch: Scratch,
    /// Header blocks with malformed fields so far.
    pub malformed: u64,
}

/// Next piece of the bytes of a connection.
enum Next {
    /// So many bytes go through.
    Through(usize),
    /// A header block of this many bytes is replaced by these frames.
    Instead(usize, Vec<u8>),
    /// More bytes are needed.
    More,
}

impl FieldGuard {
    /// Guard for the stream of a client.
    #[must_use]
    pub fn of_client() -> Self {
        Self {
            skipped: PREFACE,
            ..Self::default()
        }
    }

    /// Takes bytes from the peer, and returns how many of them go through unchanged. The bytes that follow them are
    /// added to `out`, as far as they can go through by now.
    pub fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> usize {
        if self.held.is_empty() {
            let (through, taken) = self.walk(bytes, out);
            self.held.extend_from_slice(&bytes[taken..]);
            return through;
        }
        let mut held = std::mem::take(&mut self.held);
        held.extend_from_slice(bytes);
        let mut rest = Vec::new();
        let (through, taken) = self.walk(&held, &mut rest);
        out.extend_from_slice(&held[..through]);
        out.append(&mut rest);
        held.drain(..taken);
        self.held = held;
        0
    }

    /// Bytes that were held when the connection ended.
    pub fn end(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// Number of the first bytes that go through, and of those that go through or have something in `out` in their
    /// place.
    fn walk(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> (usize, usize) {
        let (mut through, mut at) = (None, 0);
        // Beginning of the bytes that go through but are not in `through` or `out` yet.
        let mut open = 0;
        loop {
            match self.next(&bytes[at..]) {
                Next::Through(length) => at += length,
                Next::Instead(length, frames) => {
                    match through {
                        None => through = Some(at),
                        Some(_) => out.extend_from_slice(&bytes[open..at]),
                    }
                    out.extend_from_slice(&frames);
                    at += length;
                    open = at;
                }
                Next::More => break,
            }
        }
        if through.is_some() {
            out.extend_from_slice(&bytes[open..at]);
        }
        (through.unwrap_or(at), at)
    }

    fn next(&mut self, bytes: &[u8]) -> Next {
        if bytes.is_empty() {
            return Next::More;
        }
        if self.skipped > 0 {
            let length = self.skipped.min(bytes.len());
            self.skipped -= length;
            return Next::Through(length);
        }
        let Some(frame) = Frame::read(bytes) else {
            return Next::More;
        };
        if frame.kind != HEADERS {
            self.skipped = frame.length;
            return self.next(bytes);
        }
        let Some(length) = block_length(bytes) else {
            if bytes.len() > MAX_BLOCK {
                self.skipped = usize::MAX;
                return self.next(bytes);
            }
            return Next::More;
        };
        match self.replaced(&bytes[..length]) {
            Some(frames) => Next::Instead(length, frames),
            None => Next::Through(length),
        }
    }

    /// Frames in place of those of a header block, if one of its fields is malformed.
    fn replaced(&mut self, frames: &[u8]) -> Option<Vec<u8>> {
        let head = Frame::read(frames)?;
        let fragment = head.fragment(frames)?;
        let mut whole = Vec::new();
        if head.length < frames.len() {
            whole.extend_from_slice(fragment);
            let mut rest = &frames[head.length..];
            while let Some(next) = Frame::read(rest) {
                whole.extend_from_slice(&rest[FRAME_HEAD..next.length]);
                rest = &rest[next.length..];
            }
        }
        let block = if whole.is_empty() { fragment } else { &whole };
        let block = replace_malformed(block, &mut self.scratch)?;
        self.malformed += 1;
        Some(head.with_block(&block))
    }
}

/// Head of a frame.
struct Frame {
    /// Length of the frame with its head.
    length: usize,
    kind: u8,
    flags: u8,
    stream: [u8; 4],
}

impl Frame {
    fn read(bytes: &[u8]) -> Option<Self> {
        let &[a, b, c, kind, flags, ref stream @ ..] = bytes.first_chunk::<FRAME_HEAD>()?;
        Some(Self {
            length: FRAME_HEAD + u32::from_be_bytes([0, a, b, c]) as usize,
            kind,
            flags,
            stream: *stream,
        })
    }

    /// Part of the header block in a HEADERS frame: without padding and priority (RFC 9113, section 6.2).
    fn fragment<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let mut payload = bytes.get(FRAME_HEAD..self.length)?;
        if self.flags & PADDED != 0 {
            let (&padding, rest) = payload.split_first()?;
            payload = &rest[..rest.len().checked_sub(usize::from(padding))?];
        }
        if self.flags & PRIORITY != 0 {
            payload = payload.get(5..)?;
        }
        Some(payload)
    }

    /// Frames of the same stream with another block.
    fn with_block(&self, block: &[u8]) -> Vec<u8> {
        let mut frames = Vec::with_capacity(block.len() + FRAME_HEAD);
        let count = block.len().div_ceil(MAX_FRAME);
        for (number, fragment) in block.chunks(MAX_FRAME).enumerate() {
            let (kind, flags) = match number {
                0 => (HEADERS, self.flags & END_STREAM),
                _ => (CONTINUATION, 0),
            };
            let last = if number + 1 == count { END_HEADERS } else { 0 };
            frames.extend_from_slice(&(fragment.len() as u32).to_be_bytes()[1..]);
            frames.extend_from_slice(&[kind, flags | last]);
            frames.extend_from_slice(&self.stream);
            frames.extend_from_slice(fragment);
        }
        frames
    }
}

/// Length of the frames of a header block, from its HEADERS to the last CONTINUATION; `None` if they are not whole. A
/// frame of another kind ends it: the connection ends there.
fn block_length(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let frame = Frame::read(&bytes[at..])?;
        if at > 0 && frame.kind != CONTINUATION {
            return Some(at);
        }
        at += frame.length;
        if bytes.len() < at {
            return None;
        }
        if frame.flags & END_HEADERS != 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MALFORMED: &[u8] = b"\x40\x03x-a\x03a\x01b";
    const GOOD: &[u8] = b"\x40\x03x-a\x03abc";

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        frame.extend_from_slice(&[kind, flags, 0, 0, 0, stream]);
        frame.extend_from_slice(payload);
        frame
    }

    /// Bytes that go through when all of these pieces have come.
    fn through(pieces: &[&[u8]]) -> Vec<u8> {
        let mut guard = FieldGuard::of_client();
        let mut all = vec![];
        for piece in pieces {
            let mut out = vec![];
            let length = guard.take(piece, &mut out);
            all.extend_from_slice(&piece[..length]);
            all.append(&mut out);
        }
        all.append(&mut guard.end());
        all
    }

    fn conversation(blocks: [&[u8]; 3]) -> Vec<u8> {
        let padded = [&[2u8][..], &[0, 0, 0, 0, 7], blocks[1], &[0, 0]].concat();
        let (first, rest) = blocks[2].split_at(4);
        [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            frame(4, 0, 0, &[]),
            frame(HEADERS, END_HEADERS | END_STREAM, 1, blocks[0]),
            frame(0, 0, 3, &[1; 3000]),
            frame(HEADERS, END_HEADERS | PADDED | PRIORITY, 5, &padded),
            frame(HEADERS, END_STREAM, 7, first),
            frame(CONTINUATION, 0, 7, &[]),
            frame(CONTINUATION, END_HEADERS, 7, rest),
            frame(0, END_STREAM, 5, b"end"),
        ]
        .concat()
    }

    #[test]
    fn well_formed_messages_go_through_at_once() {
        let all = conversation([GOOD; 3]);
        assert_eq!(FieldGuard::of_client().take(&all, &mut vec![]), all.len());
    }

    #[test]
    fn each_malformed_block_is_replaced_and_nothing_else() {
        let substitute = b"\x40\x02te\x04xxxx";
        for malformed in 0..3 {
            let mut blocks = [GOOD; 3];
            blocks[malformed] = MALFORMED;
            let all = conversation(blocks);
            let said = through(&[&all]);
            let frame = match malformed {
                0 => frame(HEADERS, END_HEADERS | END_STREAM, 1, substitute),
                1 => frame(HEADERS, END_HEADERS, 5, substitute),
                _ => frame(HEADERS, END_HEADERS | END_STREAM, 7, substitute),
            };
            assert!(
                said.windows(frame.len()).any(|bytes| bytes == frame),
                "{malformed}: {said:x?}"
            );
            assert_eq!(
                said.windows(MALFORMED.len())
                    .filter(|bytes| *bytes == MALFORMED)
                    .count(),
                0
            );
            assert!(said.ends_with(&all[all.len() - 12..]));
        }
    }

    #[test]
    fn a_block_that_never_ends_is_not_held_for_ever() {
        let mut guard = FieldGuard::default();
        let mut given = frame(HEADERS, 0, 1, GOOD);
        let mut out = vec![];
        let mut through = guard.take(&given, &mut out);
        let more = frame(CONTINUATION, 0, 1, &[0x82; 1000]);
        for _ in 0..200 {
            through += guard.take(&more, &mut out);
            given.extend_from_slice(&more);
        }
        assert_eq!(through + out.len(), given.len());
        assert_eq!(out, given[..out.len()]);
    }

    #[test]
    fn a_large_substitute_takes_several_frames() {
        // Five zero bits are the digit 0.
        let block = [&b"\x40\x01A\xff\x99\x74"[..], &[0; 15_000]].concat();
        let sent = frame(HEADERS, END_HEADERS | END_STREAM, 1, &block);
        let said = through(&[&[b' '; PREFACE][..], &sent]);
        let first = Frame::read(&said[PREFACE..]).unwrap();
        assert_eq!((first.length, first.flags), (FRAME_HEAD + MAX_FRAME, END_STREAM));
        let second = Frame::read(&said[PREFACE + first.length..]).unwrap();
        assert_eq!((second.kind, second.flags), (CONTINUATION, END_HEADERS));
        assert_eq!(said.len(), PREFACE + first.length + second.length);
        let filler = 1 + 24_000 - 2;
        assert_eq!(first.length + second.length, 2 * FRAME_HEAD + 4 + 4 + filler);
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(
            bad in prop::array::uniform3(any::<bool>()),
            mut cuts in prop::collection::vec(0usize..3200, 0..12),
        ) {
            let all = conversation(bad.map(|bad| if bad { MALFORMED } else { GOOD }));
            cuts.extend([0, all.len()]);
            cuts.retain(|&at| at <= all.len());
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &all[pair[0]..pair[1]]).collect();
            prop_assert_eq!(through(&pieces), through(&[&all]));
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let mut guard = FieldGuard::default();
            let mut out = vec![];
            let length = guard.take(&bytes, &mut out);
            prop_assert!(length <= bytes.len());
        }
    }
}
