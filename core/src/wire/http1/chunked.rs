//! The chunked transfer coding (RFC 9112, section 7.1), scanned in passing: chunks are sent on unchanged.
//!
//! The trailer section is held back until it is whole and checked, because it may be left out (section 7.1.2).

mod error;
mod line;

pub use error::ChunkedError;

use super::fields::FieldSection;
use super::grammar::{is_ows, is_same_to_hosts};
use super::limits::{MAX_TRAILER_FIELDS, MessageLimits};
use line::SizeLine;

/// Fields that frame or route a message, or identify the sender. They mean nothing after the body, and mislead a host
/// that merges trailers into the head (RFC 9110, section 6.5.1).
const NOT_IN_TRAILERS: [&str; 15] = [
    "authorization",
    "client-cert",
    "client-cert-chain",
    "connection",
    "content-length",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-real-ip",
];
/// Beginnings of such fields.
const NOT_BEGUN_IN_TRAILERS: [&str; 2] = ["x-forwarded-", "x-ssl"];

/// Result of a scan of the bytes at the start of the piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkScan {
    /// Bytes that are sent on unchanged: chunks up to and with the line of the last one.
    pub pass: usize,
    /// Bytes that belong to the body. Those after `pass` are the trailer section, which the scanner holds, or white space
    /// that a lenient scanner leaves out.
    pub used: usize,
    /// Whether the body has ended: bytes after `used` are not its own, and the trailer section must be sent.
    pub is_done: bool,
}

/// Scanner of one body, which may come in any pieces.
#[derive(Clone, Debug)]
pub struct ChunkedBody {
    state: ScanState,
    limits: MessageLimits,
    trailers: Vec<u8>,
    trailer_fields: FieldSection,
    /// Whether white space before the size of a chunk is left out, rather than malformed.
    is_lenient: bool,
    is_repaired: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScanState {
    Size(SizeLine),
    /// Chunk data: bytes that are left.
    Data(u64),
    /// The CRLF after chunk data.
    DataCr,
    DataLf,
    Trailers,
    Done,
}

impl ChunkedBody {
    /// Scanner at the start of a body.
    #[must_use]
    pub fn new(limits: &MessageLimits) -> Self {
        Self {
            state: ScanState::Size(SizeLine::default()),
            limits: *limits,
            trailers: Vec::new(),
            trailer_fields: FieldSection::default(),
            is_lenient: false,
            is_repaired: false,
        }
    }

    /// Scanner at the start of an answer's body that may be repaired ([`crate::wire::http1::repair`]).
    #[must_use]
    pub fn lenient(limits: &MessageLimits) -> Self {
        Self {
            is_lenient: true,
            ..Self::new(limits)
        }
    }

    /// Whether bytes have been left out that are malformed.
    #[must_use]
    pub const fn is_repaired(&self) -> bool {
        self.is_repaired
    }

    /// Scans the bytes that follow those of the last scan. All bytes are used unless the body ends in them. A lenient
    /// scanner also stops after white space that it leaves out: it is to scan the rest again.
    ///
    /// # Errors
    ///
    /// The body is malformed: close its connection, and send none of these bytes on.
    pub fn scan(&mut self, bytes: &[u8]) -> Result<ChunkScan, ChunkedError> {
        let (mut at, mut pass) = (0, 0);
        while at < bytes.len() && self.state != ScanState::Done {
            let left_out = self.leave_out(&bytes[at..])?;
            if left_out > 0 {
                return Ok(ChunkScan {
                    pass: at,
                    used: at + left_out,
                    is_done: false,
                });
            }
            if let ScanState::Data(left) = self.state {
                at += self.take_data(left, bytes.len() - at);
            } else {
                self.step(bytes[at])?;
                at += 1;
            }
            // The byte that ended the last chunk's line is passed; the trailer section follows.
            if self.trailers.is_empty() {
                pass = at;
            }
        }
        Ok(ChunkScan {
            pass,
            used: at,
            is_done: self.state == ScanState::Done,
        })
    }

    /// Takes the bytes that follow those of the last scan apart: appends their data, without framing and trailers. Returns
    /// how many were the body's own.
    ///
    /// # Errors
    ///
    /// As [`scan`](Self::scan) has them. The data before the fault has been appended.
    pub fn take_apart(&mut self, bytes: &[u8], data: &mut Vec<u8>) -> Result<usize, ChunkedError> {
        let mut used = 0;
        while used < bytes.len() && !self.is_done() {
            let ahead = usize::try_from(self.data_ahead()).unwrap_or(usize::MAX);
            let ahead = ahead.min(bytes.len() - used);
            if ahead > 0 {
                data.extend_from_slice(&bytes[used..used + ahead]);
                self.skip(ahead as u64);
                used += ahead;
            } else {
                used += self.scan(&bytes[used..=used])?.used;
            }
        }
        Ok(used)
    }

    /// Bytes of chunk data that come next. They may be moved unread, and are then reported to [`skip`](Self::skip).
    #[must_use]
    pub const fn data_ahead(&self) -> u64 {
        match self.state {
            ScanState::Data(left) => left,
            _ => 0,
        }
    }

    /// Counts bytes of chunk data that were moved without a scan; [`data_ahead`](Self::data_ahead) at most.
    pub fn skip(&mut self, bytes: u64) {
        if let ScanState::Data(left) = self.state {
            debug_assert!(bytes <= left, "more is skipped than chunk data is ahead");
            self.state = after_data(left.saturating_sub(bytes));
        }
    }

    /// Whether the body has ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state == ScanState::Done
    }

    /// Trailer section of a body that has ended, with the empty line at its end. It is sent after the last chunk. Where
    /// trailers are not wanted, [`NO_TRAILERS`] is sent in its place.
    #[must_use]
    pub fn trailers(&self) -> &[u8] {
        &self.trailers
    }

    /// Trailer fields of a body that has ended, as ranges of [`trailers`](Self::trailers).
    #[must_use]
    pub const fn trailer_fields(&self) -> &FieldSection {
        &self.trailer_fields
    }

    /// Counts white space before the size of a chunk, if it is to be left out.
    fn leave_out(&mut self, bytes: &[u8]) -> Result<usize, ChunkedError> {
        let ScanState::Size(line) = &mut self.state else {
            return Ok(0);
        };
        if !self.is_lenient || line.has_size() {
            return Ok(0);
        }
        let count = bytes.iter().take_while(|byte| is_ows(**byte)).count();
        line.pad(count, self.limits.chunk_extension_bytes)?;
        self.is_repaired |= count > 0;
        Ok(count)
    }

    fn take_data(&mut self, left: u64, available: usize) -> usize {
        let taken = usize::try_from(left).map_or(available, |left| left.min(available));
        self.state = after_data(left - taken as u64);
        taken
    }

    fn step(&mut self, byte: u8) -> Result<(), ChunkedError> {
        self.state = match self.state {
            ScanState::Size(mut line) => match line.step(byte, self.limits.chunk_extension_bytes)? {
                None => ScanState::Size(line),
                Some(0) => ScanState::Trailers,
                Some(size) => ScanState::Data(size),
            },
            ScanState::DataCr if byte == b'\r' => ScanState::DataLf,
            ScanState::DataLf if byte == b'\n' => ScanState::Size(SizeLine::default()),
            ScanState::DataCr | ScanState::DataLf => return Err(ChunkedError::DataEnd),
            ScanState::Trailers => self.trailer_byte(byte)?,
            state @ (ScanState::Data(_) | ScanState::Done) => state,
        };
        Ok(())
    }

    fn trailer_byte(&mut self, byte: u8) -> Result<ScanState, ChunkedError> {
        if self.trailers.len() >= self.limits.trailer_bytes {
            return Err(ChunkedError::TrailersTooLarge);
        }
        let follows_cr = self.trailers.last() == Some(&b'\r');
        if follows_cr != (byte == b'\n') {
            return Err(ChunkedError::TrailerLine);
        }
        self.trailers.push(byte);
        if self.trailers != NO_TRAILERS && !self.trailers.ends_with(b"\r\n\r\n") {
            return Ok(ScanState::Trailers);
        }
        self.trailer_fields = check_trailers(&self.trailers, self.limits.trailer_fields)?;
        Ok(ScanState::Done)
    }
}

/// Empty trailer section.
pub const NO_TRAILERS: &[u8] = b"\r\n";

const fn after_data(left: u64) -> ScanState {
    match left {
        0 => ScanState::DataCr,
        left => ScanState::Data(left),
    }
}

fn check_trailers(section: &[u8], max_fields: usize) -> Result<FieldSection, ChunkedError> {
    let mut room = [httparse::EMPTY_HEADER; MAX_TRAILER_FIELDS];
    let headers = match httparse::parse_headers(section, &mut room[..max_fields.min(MAX_TRAILER_FIELDS)]) {
        Ok(httparse::Status::Complete((_, headers))) => headers,
        Err(httparse::Error::TooManyHeaders) => return Err(ChunkedError::TooManyTrailers),
        _ => return Err(ChunkedError::TrailerLine),
    };
    let located = FieldSection::locate(section, 0, headers).filter(|(_, end)| *end == section.len());
    let (fields, _) = located.ok_or(ChunkedError::TrailerLine)?;
    if fields.iter().all(|field| may_be_trailer(field.name.of(section))) {
        Ok(fields)
    } else {
        Err(ChunkedError::TrailerNotAllowed)
    }
}

/// Whether a field is allowed in trailers.
fn may_be_trailer(name: &[u8]) -> bool {
    let is = |known: &str| is_same_to_hosts(name, known.as_bytes());
    let begins = |known: &str| {
        let first = name.get(..known.len());
        first.is_some_and(|first| is_same_to_hosts(first, known.as_bytes()))
    };
    !NOT_IN_TRAILERS.into_iter().any(is) && !NOT_BEGUN_IN_TRAILERS.into_iter().any(begins)
}

#[cfg(test)]
mod tests;
