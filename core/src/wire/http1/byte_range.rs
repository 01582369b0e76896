//! A part of a buffer, named by its place instead of borrowed: heads outlive reads into the buffer.

/// Range of bytes in the buffer that a head was parsed from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteRange {
    start: u32,
    end: u32,
}

impl ByteRange {
    /// Range from `start` up to, not including, `end`. Heads are far shorter than 4 GiB; an offset beyond is cut off.
    #[must_use]
    pub fn new(start: usize, end: usize) -> Self {
        let narrow = |offset: usize| u32::try_from(offset).unwrap_or(u32::MAX);
        Self {
            start: narrow(start),
            end: narrow(end),
        }
    }

    /// Bytes of the range in the buffer that it was made for; empty in a buffer that is too short.
    #[must_use]
    pub fn of(self, buffer: &[u8]) -> &[u8] {
        debug_assert!(self.end() <= buffer.len(), "a range is used with another buffer");
        buffer.get(self.start()..self.end()).unwrap_or_default()
    }

    /// Offset of the first byte.
    #[must_use]
    pub const fn start(self) -> usize {
        self.start as usize
    }

    /// Offset after the last byte.
    #[must_use]
    pub const fn end(self) -> usize {
        self.end as usize
    }

    /// Number of bytes.
    #[must_use]
    pub const fn len(self) -> usize {
        self.end().saturating_sub(self.start())
    }

    /// Whether the range has no bytes.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
}
