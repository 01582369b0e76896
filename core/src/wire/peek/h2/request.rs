//! Frames of a client up to the end of its first header block.

use super::frame::{Header, MAX_PAYLOAD, code, flag, frame_type};
use crate::wire::peek::{ClientRequest, Peek, PeekParseError, from_authority};

/// Largest dynamic table, in bytes, of a client's header blocks before a server's SETTINGS (RFC 9113, section 6.5.2).
const DYNAMIC_TABLE_BYTES: usize = 4096;

/// Reason why no more of a client's bytes are parsed.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProtocolError {
    pub(super) error: PeekParseError,
    /// Error code to close the connection with; `NO_ERROR` where only the request is wrong.
    pub(super) code: u32,
}

impl ProtocolError {
    pub(super) const fn connection(code: u32, what: &'static str) -> Self {
        Self {
            error: PeekParseError::Malformed(what),
            code,
        }
    }

    const fn bad_request(fault: PeekParseError) -> Self {
        Self {
            error: fault,
            code: code::NO_ERROR,
        }
    }
}

/// State of the scan, frame by frame.
#[derive(Debug, Default)]
pub(super) struct RequestParser {
    /// Number of the client's SETTINGS frames, without acknowledgements.
    pub(super) settings: u32,
    /// Stream of the first request: known as soon as the header of a HEADERS frame is there.
    pub(super) stream: Option<u32>,
    /// Header block that has not ended.
    block: Option<Vec<u8>>,
    /// Name that the first header block asks for.
    pub(super) client_request: Option<ClientRequest>,
    /// Whether the method is HEAD, whose answer has no body.
    pub(super) is_head: bool,
}

impl RequestParser {
    /// Whether the client, if these whole frames are all it has sent, may be waiting for the server's SETTINGS.
    pub(super) const fn may_await_settings(&self) -> bool {
        self.settings > 0 && self.stream.is_none()
    }

    /// Checks a frame's header, whose payload need not be there.
    pub(super) fn check_header(&mut self, header: &Header) -> Result<(), ProtocolError> {
        if header.len > MAX_PAYLOAD {
            return Err(ProtocolError {
                error: PeekParseError::TooLarge,
                code: code::FRAME_SIZE_ERROR,
            });
        }
        //= https://www.rfc-editor.org/rfc/rfc9113#section-3.4
        //# This sequence MUST be followed by a SETTINGS frame
        if self.settings == 0 && (header.frame_type != frame_type::SETTINGS || header.has(flag::ACK)) {
            return Err(ProtocolError::connection(
                code::PROTOCOL_ERROR,
                "HTTP/2 does not begin with SETTINGS",
            ));
        }
        let continues =
            header.frame_type == frame_type::CONTINUATION && self.stream == Some(header.stream) && self.block.is_some();
        if !continues && (self.block.is_some() || header.frame_type == frame_type::CONTINUATION) {
            return Err(ProtocolError::connection(
                code::PROTOCOL_ERROR,
                "CONTINUATION out of place",
            ));
        }
        if header.frame_type == frame_type::HEADERS && self.stream.is_none() {
            //= https://www.rfc-editor.org/rfc/rfc9113#section-5.1.1
            //# Streams initiated by a client MUST use odd-numbered stream identifiers
            if header.stream.is_multiple_of(2) {
                return Err(ProtocolError::connection(
                    code::PROTOCOL_ERROR,
                    "HEADERS on a stream that no client opens",
                ));
            }
            self.stream = Some(header.stream);
        }
        Ok(())
    }

    /// Takes a whole frame, whose header has been checked by [`Self::check_header`].
    pub(super) fn push_frame(&mut self, header: &Header, payload: &[u8]) -> Result<(), ProtocolError> {
        match header.frame_type {
            frame_type::SETTINGS if !header.has(flag::ACK) => self.settings = self.settings.saturating_add(1),
            frame_type::HEADERS if self.client_request.is_none() => {
                let fragment = fragment(payload, header).ok_or(ProtocolError::connection(
                    code::PROTOCOL_ERROR,
                    "HEADERS with impossible padding",
                ))?;
                self.block = Some(fragment.to_vec());
            }
            frame_type::CONTINUATION => self.block.get_or_insert_default().extend_from_slice(payload),
            _ => return Ok(()),
        }
        if header.has(flag::END_HEADERS)
            && let Some(block) = self.block.take()
        {
            self.decode(&block)?;
        }
        Ok(())
    }

    /// Decodes the first header block. Later blocks are never decoded, so that its dynamic table need not be kept.
    fn decode(&mut self, block: &[u8]) -> Result<(), ProtocolError> {
        let (mut authority, mut host): (Option<Vec<u8>>, Option<Vec<u8>>) = (None, None);
        let (mut is_repeated, mut is_head) = (false, false);
        let mut decoder = loona_hpack::Decoder::new();
        decoder.set_max_allowed_table_size(DYNAMIC_TABLE_BYTES);
        let outcome = decoder.decode_with_cb(block, |name, value| {
            let seen = match &*name {
                b":authority" => &mut authority,
                b"host" => &mut host,
                b":method" => {
                    is_head = *value == *b"HEAD";
                    return;
                }
                _ => return,
            };
            // A repeated value is kept once: a block may refer to one long value again and again.
            is_repeated |= seen.is_some();
            seen.get_or_insert_with(|| value.into_owned());
        });
        self.is_head = is_head;
        if outcome.is_err() {
            return Err(ProtocolError::connection(
                code::COMPRESSION_ERROR,
                "the HTTP/2 header block does not decode",
            ));
        }
        if is_repeated {
            return Err(ProtocolError::bad_request(PeekParseError::Malformed(
                "more than one :authority or host",
            )));
        }
        let found = authority
            .or(host)
            .map_or_else(Peek::nameless, |authority| from_authority(&authority));
        match found {
            Peek::Found(asked) => self.client_request = Some(asked),
            Peek::Invalid(fault) => return Err(ProtocolError::bad_request(fault)),
            Peek::Incomplete | Peek::Greet => {}
        }
        Ok(())
    }
}

/// Header block fragment of a HEADERS frame, without padding and priority.
fn fragment<'a>(mut payload: &'a [u8], header: &Header) -> Option<&'a [u8]> {
    if header.has(flag::PADDED) {
        let (&padding, rest) = payload.split_first()?;
        payload = rest.get(..rest.len().checked_sub(usize::from(padding))?)?;
    }
    if header.has(flag::PRIORITY) {
        payload = payload.get(5..)?;
    }
    Some(payload)
}
