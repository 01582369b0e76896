//! The frames of HTTP/2 (RFC 9113, section 4.1), read and written.

/// Size of a frame's header in bytes.
pub(super) const HEADER: usize = 9;
/// Largest payload in bytes before a peer allows more (RFC 9113, section 4.2), which the balancer never does.
pub(super) const MAX_PAYLOAD: usize = 16_384;

/// Frame types (RFC 9113, section 6).
pub(super) mod frame_type {
    pub(in super::super) const DATA: u8 = 0;
    pub(in super::super) const HEADERS: u8 = 1;
    pub(in super::super) const SETTINGS: u8 = 4;
    pub(in super::super) const PING: u8 = 6;
    pub(in super::super) const GOAWAY: u8 = 7;
    pub(in super::super) const CONTINUATION: u8 = 9;
}

/// Flags of frames. `ACK` belongs to SETTINGS and PING, `END_STREAM` to DATA and HEADERS.
pub(super) mod flag {
    pub(in super::super) const ACK: u8 = 0x1;
    pub(in super::super) const END_STREAM: u8 = 0x1;
    pub(in super::super) const END_HEADERS: u8 = 0x4;
    pub(in super::super) const PADDED: u8 = 0x8;
    pub(in super::super) const PRIORITY: u8 = 0x20;
}

/// Error codes (RFC 9113, section 7).
pub mod code {
    /// The connection is closed, and nothing was wrong with it.
    pub const NO_ERROR: u32 = 0;
    /// A frame is where it is not allowed.
    pub const PROTOCOL_ERROR: u32 = 1;
    /// SETTINGS have not been acknowledged in time.
    pub const SETTINGS_TIMEOUT: u32 = 4;
    /// A frame has a length that it may not have.
    pub const FRAME_SIZE_ERROR: u32 = 6;
    /// A header block does not decode.
    pub const COMPRESSION_ERROR: u32 = 9;
    /// The client sends more than the balancer is willing to look at.
    pub const ENHANCE_YOUR_CALM: u32 = 11;
}

/// A frame's header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    /// Payload size in bytes.
    pub(super) len: usize,
    pub(super) frame_type: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl Header {
    pub(super) const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// First frame of some bytes, as far as it is there.
#[derive(Debug)]
pub(super) enum FirstFrame<'a> {
    /// Less than a frame's header is there.
    Incomplete,
    /// The header is there, and not the whole payload.
    Partial(Header),
    /// A whole frame is there: header and payload.
    Whole(Header, &'a [u8]),
}

/// Reads the first frame.
pub(super) fn first_frame(bytes: &[u8]) -> FirstFrame<'_> {
    let Some((&[a, b, c, kind, flags, s, t, r, e], rest)) = bytes.split_first_chunk::<HEADER>() else {
        return FirstFrame::Incomplete;
    };
    let header = Header {
        len: u32::from_be_bytes([0, a, b, c]) as usize,
        frame_type: kind,
        flags,
        // The first bit is reserved, and ignored.
        stream: u32::from_be_bytes([s, t, r, e]) & 0x7fff_ffff,
    };
    rest.get(..header.len).map_or(FirstFrame::Partial(header), |payload| {
        FirstFrame::Whole(header, payload)
    })
}

/// Appends a frame; the payload is short.
pub(super) fn write(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let len = payload.len().min(MAX_PAYLOAD);
    out.extend_from_slice(&(len as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(&payload[..len]);
}
