//! Body of an incoming message: how many of the next bytes belong to it, and which of them are passed on.

use signalbox_core::wire::http1::chunked::{ChunkedBody, ChunkedError};
use signalbox_core::wire::http1::framing::BodyLength;
use signalbox_core::wire::http1::limits::MessageLimits;

/// Number of body bytes from which they go through a pipe: for fewer, its system calls cost more than the saved copies.
const MIN_SPLICED_BYTES: u64 = 128 * 1024;

/// Body of an incoming message.
pub(in crate::datapath::http) enum Body {
    Ended,
    /// A known number of bytes is left.
    Known(u64),
    Chunked(Box<ChunkedBody>),
    /// Until the connection ends.
    UntilClose,
}

/// The next bytes of a message, and how many belong to the body.
pub(super) struct Piece {
    /// Number of bytes that are passed on unchanged.
    pub(super) pass: usize,
    /// Number of bytes that belong to the body.
    pub(super) used: usize,
    /// Trailer section, which follows the passed-on bytes at the end of a chunked body.
    pub(super) trailers: Option<Vec<u8>>,
    /// Whether malformed bytes of the body have been left out.
    pub(super) is_repaired: bool,
}

impl Body {
    pub(in crate::datapath::http) fn new(length: BodyLength, limits: &MessageLimits) -> Self {
        match length {
            BodyLength::None | BodyLength::Known(0) => Self::Ended,
            BodyLength::Known(bytes) => Self::Known(bytes),
            BodyLength::Chunked => Self::Chunked(Box::new(ChunkedBody::new(limits))),
            BodyLength::UntilClose => Self::UntilClose,
        }
    }

    /// Body of a host's answer, whose chunks may be repaired.
    pub(super) fn of_answer(length: BodyLength, limits: &MessageLimits, repairs: bool) -> Self {
        match length {
            BodyLength::Chunked if repairs => Self::Chunked(Box::new(ChunkedBody::lenient(limits))),
            length => Self::new(length, limits),
        }
    }

    pub(super) const fn is_ended(&self) -> bool {
        matches!(self, Self::Ended)
    }

    /// Number of bytes that may be moved without parsing: those of a long body of known length.
    pub(super) const fn unseen(&self) -> Option<u64> {
        match self {
            Self::Known(left) if *left >= MIN_SPLICED_BYTES => Some(*left),
            _ => None,
        }
    }

    /// Counts bytes that were moved without parsing.
    pub(super) fn count_unseen(&mut self, bytes: u64) {
        if let Self::Known(left) = self {
            *left = left.saturating_sub(bytes);
            if *left == 0 {
                *self = Self::Ended;
            }
        }
    }

    /// Number of bytes that a read may take without taking bytes after the body, if known.
    pub(super) fn room(&self, most: usize) -> usize {
        match self {
            Self::Known(left) => usize::try_from(*left).map_or(most, |left| left.min(most)),
            _ => most,
        }
    }

    /// Decodes the next bytes of a chunked body, as [`ChunkedBody::take_apart`] does. Nothing of it is passed on
    /// unchanged.
    pub(super) fn take_apart(&mut self, bytes: &[u8], data: &mut Vec<u8>) -> Result<Piece, ChunkedError> {
        let mut piece = Piece {
            pass: 0,
            used: 0,
            trailers: None,
            is_repaired: false,
        };
        if let Self::Chunked(body) = self {
            piece.used = body.take_apart(bytes, data)?;
            piece.is_repaired = body.is_repaired();
            if body.is_done() {
                *self = Self::Ended;
            }
        }
        Ok(piece)
    }

    /// Takes the next bytes: all of them, unless the body ends in them or some are left out.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<Piece, ChunkedError> {
        let plain = |taken| Piece {
            pass: taken,
            used: taken,
            trailers: None,
            is_repaired: false,
        };
        match self {
            Self::Ended => Ok(plain(0)),
            Self::UntilClose => Ok(plain(bytes.len())),
            Self::Known(left) => {
                let taken = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= taken as u64;
                if *left == 0 {
                    *self = Self::Ended;
                }
                Ok(plain(taken))
            }
            Self::Chunked(body) => {
                let scan = body.scan(bytes)?;
                let trailers = scan.is_done.then(|| body.trailers().to_vec());
                let is_repaired = body.is_repaired();
                if scan.is_done {
                    *self = Self::Ended;
                }
                Ok(Piece {
                    pass: scan.pass,
                    used: scan.used,
                    trailers,
                    is_repaired,
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_bodies_of_known_length_go_unseen() {
        let limits = MessageLimits::default();
        let mut body = Body::new(BodyLength::Known(MIN_SPLICED_BYTES + 1), &limits);
        assert_eq!(body.unseen(), Some(MIN_SPLICED_BYTES + 1));
        body.count_unseen(2);
        assert_eq!(body.unseen(), None);
        body.count_unseen(MIN_SPLICED_BYTES - 1);
        assert!(body.is_ended());
        for length in [BodyLength::Chunked, BodyLength::UntilClose, BodyLength::None] {
            assert_eq!(Body::new(length, &limits).unseen(), None);
        }
    }

    #[test]
    fn a_body_takes_its_own_bytes_and_no_more() {
        let limits = MessageLimits::default();
        let mut body = Body::new(BodyLength::Known(5), &limits);
        assert_eq!(body.room(64), 5);
        assert_eq!(body.take(b"abc").unwrap().used, 3);
        assert_eq!(body.take(b"deGET /").unwrap().pass, 2);
        assert!(body.is_ended());
        assert_eq!(body.take(b"GET /").unwrap().used, 0);
        let mut body = Body::new(BodyLength::Chunked, &limits);
        let piece = body.take(b"3\r\nabc\r\n0\r\nA: b\r\n\r\nGET /").unwrap();
        assert_eq!((piece.pass, piece.used), (11, 19));
        assert_eq!(piece.trailers.unwrap(), b"A: b\r\n\r\n");
        assert!(body.is_ended());
        assert!(Body::new(BodyLength::Chunked, &limits).take(b"3\nabc").is_err());
    }
}
