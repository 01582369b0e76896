//! What the frames of a client say up to the end of its first header block.

use super::frame::{Header, MAX_PAYLOAD, code, flag, kind};
use crate::peek::{Asked, Fault, Peek, from_authority};

/// Largest dynamic table of a client's header blocks before a server's SETTINGS say otherwise (RFC 9113, section 6.5.2).
const TABLE: usize = 4096;

/// Why a client's bytes are not looked at any further.
#[derive(Clone, Copy, Debug)]
pub(super) struct Broken {
    pub(super) fault: Fault,
    /// What the connection is to be closed with; `NO_ERROR` where only the request is wrong.
    pub(super) code: u32,
}

impl Broken {
    pub(super) const fn connection(code: u32, what: &'static str) -> Self {
        Self {
            fault: Fault::Malformed(what),
            code,
        }
    }

    const fn request(fault: Fault) -> Self {
        Self {
            fault,
            code: code::NO_ERROR,
        }
    }
}

/// What has been seen so far, frame by frame.
#[derive(Debug, Default)]
pub(super) struct Head {
    /// SETTINGS frames of the client's, acknowledgements apart.
    pub(super) settings: u32,
    /// The stream of the first request: known as soon as the header of a HEADERS frame is there.
    pub(super) stream: Option<u32>,
    /// A header block that has not ended.
    block: Option<Vec<u8>>,
    /// What the first header block asks for.
    pub(super) asked: Option<Asked>,
    /// The method is HEAD, whose answer has no body.
    pub(super) is_head: bool,
}

impl Head {
    /// A client that has said no more than this, in whole frames, may be waiting for the server's SETTINGS.
    pub(super) const fn may_wait(&self) -> bool {
        self.settings > 0 && self.stream.is_none()
    }

    /// Looks at a frame's header, whose payload need not be there.
    pub(super) fn expect(&mut self, header: &Header) -> Result<(), Broken> {
        if header.len > MAX_PAYLOAD {
            return Err(Broken {
                fault: Fault::TooLarge,
                code: code::FRAME_SIZE_ERROR,
            });
        }
        //= https://www.rfc-editor.org/rfc/rfc9113#section-3.4
        //# This sequence MUST be followed by a SETTINGS frame
        if self.settings == 0 && (header.kind != kind::SETTINGS || header.has(flag::ACK)) {
            return Err(Broken::connection(
                code::PROTOCOL_ERROR,
                "HTTP/2 does not begin with SETTINGS",
            ));
        }
        let continues = header.kind == kind::CONTINUATION && self.stream == Some(header.stream) && self.block.is_some();
        if !continues && (self.block.is_some() || header.kind == kind::CONTINUATION) {
            return Err(Broken::connection(code::PROTOCOL_ERROR, "CONTINUATION out of place"));
        }
        if header.kind == kind::HEADERS && self.stream.is_none() {
            //= https://www.rfc-editor.org/rfc/rfc9113#section-5.1.1
            //# Streams initiated by a client MUST use odd-numbered stream identifiers
            if header.stream.is_multiple_of(2) {
                return Err(Broken::connection(
                    code::PROTOCOL_ERROR,
                    "HEADERS on a stream that no client opens",
                ));
            }
            self.stream = Some(header.stream);
        }
        Ok(())
    }

    /// Takes a whole frame, whose header was expected.
    pub(super) fn take(&mut self, header: &Header, payload: &[u8]) -> Result<(), Broken> {
        match header.kind {
            kind::SETTINGS if !header.has(flag::ACK) => self.settings = self.settings.saturating_add(1),
            kind::HEADERS if self.asked.is_none() => {
                let fragment = fragment(payload, header).ok_or(Broken::connection(
                    code::PROTOCOL_ERROR,
                    "HEADERS with impossible padding",
                ))?;
                self.block = Some(fragment.to_vec());
            }
            kind::CONTINUATION => self.block.get_or_insert_default().extend_from_slice(payload),
            _ => return Ok(()),
        }
        if header.has(flag::END_HEADERS)
            && let Some(block) = self.block.take()
        {
            self.decode(&block)?;
        }
        Ok(())
    }

    /// Reads the first header block. No later one needs its dynamic table: nobody here reads them.
    fn decode(&mut self, block: &[u8]) -> Result<(), Broken> {
        let (mut authority, mut host): (Option<Vec<u8>>, Option<Vec<u8>>) = (None, None);
        let (mut is_repeated, mut is_head) = (false, false);
        let mut decoder = loona_hpack::Decoder::new();
        decoder.set_max_allowed_table_size(TABLE);
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
            // Kept once: a block may refer to one long value again and again.
            is_repeated |= seen.is_some();
            seen.get_or_insert_with(|| value.into_owned());
        });
        self.is_head = is_head;
        if outcome.is_err() {
            return Err(Broken::connection(
                code::COMPRESSION_ERROR,
                "the HTTP/2 header block does not decode",
            ));
        }
        if is_repeated {
            return Err(Broken::request(Fault::Malformed("more than one :authority or host")));
        }
        let found = authority
            .or(host)
            .map_or_else(Peek::nameless, |authority| from_authority(&authority));
        match found {
            Peek::Found(asked) => self.asked = Some(asked),
            Peek::Bad(fault) => return Err(Broken::request(fault)),
            Peek::Incomplete | Peek::Greet => {}
        }
        Ok(())
    }
}

/// The header block fragment of a HEADERS frame, without padding and priority.
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
