//! The line before chunk data: `chunk-size [ chunk-ext ] CRLF` (RFC 9112, section 7.1).

use super::error::ChunkedError;
use super::is_ows;

/// Most digits of a size, with zeros in front: some servers write it with a fixed width.
const MAX_DIGITS: u8 = 64;

/// A size line, as far as it has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SizeLine {
    size: u64,
    digits: u8,
    /// Bytes that are no digits, without the line's end.
    extension: usize,
    place: LinePlace,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LinePlace {
    #[default]
    Digits,
    /// White space before the first semicolon.
    BadWhitespace,
    Extension,
    LineFeed,
}

impl SizeLine {
    /// Whether a digit has come.
    pub(super) const fn has_size(&self) -> bool {
        self.digits > 0
    }

    /// Counts white space before the digits.
    pub(super) const fn pad(&mut self, bytes: usize, max_extension: usize) -> Result<(), ChunkedError> {
        self.extension += bytes;
        if self.extension > max_extension {
            return Err(ChunkedError::ExtensionTooLong);
        }
        Ok(())
    }

    /// Takes the next byte. Returns the chunk's size when the line has ended.
    pub(super) fn step(&mut self, byte: u8, max_extension: usize) -> Result<Option<u64>, ChunkedError> {
        match (self.place, byte) {
            (LinePlace::LineFeed, b'\n') => return Ok(Some(self.size)),
            (LinePlace::LineFeed, _) | (_, b'\n') => return Err(ChunkedError::LineEnd),
            (LinePlace::Digits, digit) if digit.is_ascii_hexdigit() => return self.digit(digit).map(|()| None),
            (LinePlace::Digits, _) if self.digits == 0 => return Err(ChunkedError::Size),
            // Some servers pad the size, and peers accept it: after white space only the line's end or a semicolon may
            // come.
            (LinePlace::Digits | LinePlace::BadWhitespace | LinePlace::Extension, b'\r') => {
                self.place = LinePlace::LineFeed;
            }
            (LinePlace::Digits | LinePlace::BadWhitespace, b';') => self.place = LinePlace::Extension,
            (LinePlace::Digits | LinePlace::BadWhitespace, space) if is_ows(space) => {
                self.place = LinePlace::BadWhitespace;
            }
            (LinePlace::Digits, _) => return Err(ChunkedError::Size),
            (LinePlace::Extension, byte) if super::super::grammar::is_field_byte(byte) => {}
            (LinePlace::Extension | LinePlace::BadWhitespace, _) => return Err(ChunkedError::Extension),
        }
        if self.place != LinePlace::LineFeed {
            self.extension += 1;
        }
        if self.extension > max_extension {
            return Err(ChunkedError::ExtensionTooLong);
        }
        Ok(None)
    }

    fn digit(&mut self, digit: u8) -> Result<(), ChunkedError> {
        self.digits += 1;
        if self.digits > MAX_DIGITS || self.size > u64::MAX >> 4 {
            return Err(ChunkedError::Size);
        }
        let value = char::from(digit).to_digit(16).unwrap_or_default();
        self.size = self.size << 4 | u64::from(value);
        Ok(())
    }
}
