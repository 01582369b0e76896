//! How much of a message is read before it is refused.

/// Most fields that a peer's head may have. No configuration can raise it.
pub const MAX_PEER_FIELDS: usize = 1024;

/// Most fields that a head may have: the parser's room. A peer may send fewer, because the balancer adds some.
pub const MAX_FIELDS: usize = MAX_PEER_FIELDS + 16;

/// Most fields that a trailer section may have: the parser's room.
pub const MAX_TRAILER_FIELDS: usize = 144;

/// Limits of heads and chunked bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageLimits {
    /// Bytes of a head with all its line ends, and of empty lines before a request.
    pub head_bytes: usize,
    /// Bytes of a request target.
    pub target_bytes: usize,
    /// Field lines of a head; [`MAX_FIELDS`] at most.
    pub fields: usize,
    /// Bytes of one chunk's extensions.
    pub chunk_extension_bytes: usize,
    /// Bytes of a trailer section with all its line ends.
    pub trailer_bytes: usize,
    /// Field lines of a trailer section; [`MAX_TRAILER_FIELDS`] at most.
    pub trailer_fields: usize,
}

impl MessageLimits {
    /// Limits for heads of `head_bytes` bytes, half of them for the target, and `fields` fields.
    #[must_use]
    pub const fn of_heads(head_bytes: usize, fields: usize) -> Self {
        Self {
            head_bytes,
            target_bytes: head_bytes / 2,
            fields,
            chunk_extension_bytes: 256,
            trailer_bytes: 8 * 1024,
            trailer_fields: 32,
        }
    }
}

impl Default for MessageLimits {
    fn default() -> Self {
        Self::of_heads(32 * 1024, 128)
    }
}
