//! The field section of a head or trailer (RFC 9110, section 5; RFC 9112, section 5).

use super::byte_range::ByteRange;
use super::grammar::is_ows;

/// A field line: `name: value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldLine {
    /// Field name, in the case it came in.
    pub name: ByteRange,
    /// Field value without white space around it.
    pub value: ByteRange,
    /// Whole line with its line end.
    pub line: ByteRange,
}

/// Field lines in the order they came in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSection(Vec<FieldLine>);

impl FieldSection {
    /// All lines in order.
    pub fn iter(&self) -> impl Iterator<Item = &FieldLine> {
        self.0.iter()
    }

    /// Number of lines.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no lines.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Values of the lines of one name, in order. `buffer` must be the one that the section was parsed from.
    pub fn values<'b>(&self, buffer: &'b [u8], name: &str) -> impl Iterator<Item = &'b [u8]> {
        self.0
            .iter()
            .filter(move |field| field.name.of(buffer).eq_ignore_ascii_case(name.as_bytes()))
            .map(|field| field.value.of(buffer))
    }

    /// Whether there is a line of this name.
    #[must_use]
    pub fn has(&self, buffer: &[u8], name: &str) -> bool {
        self.values(buffer, name).next().is_some()
    }

    /// Finds the lines that httparse has seen again, from `at`, and checks that nothing else is there: each line is a
    /// name, a colon, optional white space around the value, and CRLF; an empty line ends the section. Returns the
    /// section and the offset after it; `None` if there is more, such as a bare LF.
    pub(super) fn locate(buffer: &[u8], mut at: usize, headers: &[httparse::Header<'_>]) -> Option<(Self, usize)> {
        let mut lines = Vec::with_capacity(headers.len());
        for header in headers {
            let start = at;
            at = behind(buffer, at, header.name.as_bytes())?;
            let name = ByteRange::new(start, at);
            at = skip_ows(buffer, behind(buffer, at, b":")?);
            let value_start = at;
            at = behind(buffer, at, header.value)?;
            let value = ByteRange::new(value_start, at);
            at = behind(buffer, skip_ows(buffer, at), b"\r\n")?;
            let line = ByteRange::new(start, at);
            lines.push(FieldLine { name, value, line });
        }
        Some((Self(lines), behind(buffer, at, b"\r\n")?))
    }
}

/// Offset after `text`, if `text` is at offset `at`.
pub(super) fn behind(buffer: &[u8], at: usize, text: &[u8]) -> Option<usize> {
    buffer.get(at..)?.starts_with(text).then_some(at + text.len())
}

fn skip_ows(buffer: &[u8], mut at: usize) -> usize {
    while buffer.get(at).copied().is_some_and(is_ows) {
        at += 1;
    }
    at
}
