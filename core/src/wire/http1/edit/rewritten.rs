//! A head as a list of slices: mostly ranges of the received one.

use super::super::byte_range::ByteRange;
use super::super::grammar::is_field_byte;

/// Head that is sent on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RewrittenHead {
    pieces: Vec<Piece>,
    added: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Added(ByteRange),
    Original(ByteRange),
}

impl RewrittenHead {
    /// Slices of the head in order; none is empty. `buffer` must be the one that the head was parsed from.
    pub fn slices<'a>(&'a self, buffer: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.pieces.iter().map(move |piece| match piece {
            Piece::Added(range) => range.of(&self.added),
            Piece::Original(range) => range.of(buffer),
        })
    }

    /// Number of bytes of all slices.
    #[must_use]
    pub fn len(&self) -> usize {
        let length = |piece: &Piece| match piece {
            Piece::Added(range) | Piece::Original(range) => range.len(),
        };
        self.pieces.iter().map(length).sum()
    }

    /// Whether the head is empty, which a built one never is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copy of the head in one piece.
    #[must_use]
    pub fn to_vec(&self, buffer: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len());
        self.slices(buffer).for_each(|slice| out.extend_from_slice(slice));
        out
    }

    /// Sends a range of the original on.
    pub(super) fn keep(&mut self, start: usize, end: usize) {
        if start >= end {
            return;
        }
        match self.pieces.last_mut() {
            Some(Piece::Original(last)) if last.end() == start => *last = ByteRange::new(last.start(), end),
            _ => self.pieces.push(Piece::Original(ByteRange::new(start, end))),
        }
    }

    pub(super) fn add(&mut self, text: &[u8]) {
        self.add_bytes(text.iter().copied());
    }

    /// Adds a field line. A byte that no value may hold becomes a space (RFC 9110, section 5.5).
    pub(super) fn add_line(&mut self, name: &[u8], value: &[u8]) {
        self.add(name);
        self.add(b": ");
        self.add_bytes(value.iter().map(|&b| if is_field_byte(b) { b } else { b' ' }));
        self.add(b"\r\n");
    }

    /// Ends the head with its empty line.
    pub(super) fn end(&mut self) {
        self.add(b"\r\n");
    }

    fn add_bytes(&mut self, bytes: impl Iterator<Item = u8>) {
        let start = self.added.len();
        self.added.extend(bytes);
        let end = self.added.len();
        if start == end {
            return;
        }
        match self.pieces.last_mut() {
            Some(Piece::Added(last)) => *last = ByteRange::new(last.start(), end),
            _ => self.pieces.push(Piece::Added(ByteRange::new(start, end))),
        }
    }
}
