//! Host of an HTTP/1 request, read in steps that a TC program can take one by one.
//!
//! Stricter than `core::wire::peek::http`, which must find the same name in everything that is accepted here: a request in
//! origin-form (RFC 9112, section 3.2.1) whose whole head is there, in printable ASCII and with CRLF, with one Host.

use super::KernelPeek;
use super::abi::{MAX_PAYLOAD_BYTES, PeekName, PeekPayload};
use super::name::{MAX_NAME_BYTES, lower_case};

/// Most steps that any request takes: two for a byte at the most.
pub const MAX_STEPS: u32 = 2 * MAX_PAYLOAD_BYTES;

/// Most fields of a head.
const MAX_FIELDS: u32 = 100;

/// Most bytes of a method.
const MAX_METHOD_BYTES: u32 = 16;

/// Part of the head that the next byte belongs to.
mod part {
    pub(super) const METHOD: u32 = 0;
    pub(super) const TARGET: u32 = 1;
    pub(super) const VERSION: u32 = 2;
    /// The line feed after a line's carriage return.
    pub(super) const LINE_FEED: u32 = 3;
    /// First byte of a line.
    pub(super) const LINE: u32 = 4;
    pub(super) const FIELD_NAME: u32 = 5;
    pub(super) const VALUE: u32 = 6;
    /// Spaces before the Host's value.
    pub(super) const BEFORE_HOST: u32 = 7;
    pub(super) const HOST: u32 = 8;
    pub(super) const HOST_PORT: u32 = 9;
    /// The line feed at the end of the head.
    pub(super) const LAST_LINE_FEED: u32 = 10;
}

/// `HTTP/1.`, as a number in memory order of a little-endian machine.
const VERSION_PREFIX: u64 = u64::from_le_bytes(*b"HTTP/1.\0");
/// Beginning of `CONNECT`; no other method of its length has it.
const CONNECT_PREFIX: u32 = u32::from_le_bytes(*b"CONN");
const HOST_FIELD: u32 = u32::from_le_bytes(*b"host");

/// State of a reading.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RequestReader {
    at: u32,
    part: u32,
    /// Number of bytes of the current part so far, and its first ones: of a field's name in lower case.
    length: u32,
    first: u32,
    fields: u32,
    hosts: u32,
    /// A number of [`KernelPeek`]: memory may hold any number.
    outcome: u32,
}

impl Default for RequestReader {
    fn default() -> Self {
        Self::new()
    }
}

impl RequestReader {
    /// A reading that begins.
    #[inline(always)]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            at: 0,
            part: part::METHOD,
            length: 0,
            first: 0,
            fields: 0,
            hosts: 0,
            outcome: KernelPeek::Open as u32,
        }
    }

    /// Outcome so far: a number of [`KernelPeek`].
    #[inline(always)]
    #[must_use]
    pub const fn outcome(&self) -> u32 {
        self.outcome
    }

    #[inline(always)]
    const fn begin(&mut self, part: u32) {
        self.part = part;
        self.length = 0;
        self.first = 0;
    }

    #[inline(always)]
    const fn pass_up(&mut self) {
        self.outcome = KernelPeek::PassUp as u32;
    }

    /// Reads a byte, or several that mean nothing.
    #[inline(always)]
    pub fn step(&mut self, payload: &PeekPayload, name: &mut PeekName) {
        let at = self.at;
        if at >= payload.length || at >= MAX_PAYLOAD_BYTES {
            self.outcome = KernelPeek::Incomplete as u32;
            return;
        }
        if self.part == part::VALUE && at + 8 <= payload.length && is_printable(payload.word(at)) {
            self.at = at + 8;
            return;
        }
        let byte = payload.byte(at);
        self.at = at + 1;
        match self.part {
            part::METHOD => self.method(byte),
            part::TARGET => self.target(byte),
            part::VERSION => self.version(payload, at, byte),
            part::LINE_FEED if byte == b'\n' => self.begin(part::LINE),
            part::LAST_LINE_FEED if byte == b'\n' => self.end(),
            part::LINE if byte == b'\r' => self.part = part::LAST_LINE_FEED,
            part::LINE | part::FIELD_NAME => self.field_name(byte, name),
            part::VALUE if byte == b'\r' => self.part = part::LINE_FEED,
            part::VALUE if is_visible(byte) || byte == b' ' => {}
            part::BEFORE_HOST if byte == b' ' => {}
            part::BEFORE_HOST | part::HOST => self.host(byte, name),
            part::HOST_PORT if byte.is_ascii_digit() => {}
            part::HOST_PORT if byte == b'\r' => self.part = part::LINE_FEED,
            _ => self.pass_up(),
        }
    }

    #[inline(always)]
    fn method(&mut self, byte: u8) {
        // CONNECT has no origin-form: its target names the host.
        let is_connect = self.length == 7 && self.first == CONNECT_PREFIX;
        if byte == b' ' && self.length > 0 && !is_connect {
            self.begin(part::TARGET);
        } else if byte.is_ascii_uppercase() && self.length < MAX_METHOD_BYTES {
            if self.length < 4 {
                self.first |= u32::from(byte) << ((self.length & 3) * 8);
            }
            self.length += 1;
        } else {
            self.pass_up();
        }
    }

    #[inline(always)]
    const fn target(&mut self, byte: u8) {
        if self.length == 0 && byte != b'/' {
            self.pass_up();
        } else if byte == b' ' {
            self.begin(part::VERSION);
        } else if is_visible(byte) {
            self.length += 1;
        } else {
            self.pass_up();
        }
    }

    #[inline(always)]
    fn version(&mut self, payload: &PeekPayload, at: u32, byte: u8) {
        if self.length == 0 {
            // `HTTP/1.`, a digit and the end of the line: all must be there.
            let word = payload.word(at);
            let digit = (word >> 56) as u8;
            if at + 10 > payload.length {
                self.outcome = KernelPeek::Incomplete as u32;
                return;
            }
            if word << 8 != VERSION_PREFIX << 8 || (digit != b'0' && digit != b'1') {
                self.pass_up();
                return;
            }
            self.at = at + 8;
            self.length = 1;
        } else if byte == b'\r' {
            self.part = part::LINE_FEED;
        } else {
            self.pass_up();
        }
    }

    #[inline(always)]
    fn field_name(&mut self, byte: u8, name: &mut PeekName) {
        if self.part == part::LINE {
            self.fields += 1;
            self.part = part::FIELD_NAME;
            if self.fields > MAX_FIELDS {
                self.pass_up();
                return;
            }
        }
        let lower = lower_case(byte);
        if byte == b':' && self.length > 0 {
            if self.length == 4 && self.first == HOST_FIELD {
                self.hosts += 1;
                self.part = part::BEFORE_HOST;
                name.length = 0;
                if self.hosts > 1 {
                    self.pass_up();
                }
            } else {
                self.part = part::VALUE;
            }
        } else if lower != 0 && byte != b'.' {
            if self.length < 4 {
                self.first |= u32::from(lower) << ((self.length & 3) * 8);
            }
            self.length += 1;
        } else {
            self.pass_up();
        }
    }

    #[inline(always)]
    fn host(&mut self, byte: u8, name: &mut PeekName) {
        let (lower, length) = (lower_case(byte), usize::from(name.length));
        if lower != 0 && length < MAX_NAME_BYTES {
            self.part = part::HOST;
            name.text[length] = lower;
            name.length += 1;
        } else if self.part == part::HOST && byte == b'\r' {
            self.part = part::LINE_FEED;
        } else if self.part == part::HOST && byte == b':' {
            self.part = part::HOST_PORT;
        } else {
            self.pass_up();
        }
    }

    #[inline(always)]
    const fn end(&mut self) {
        self.outcome = if self.hosts == 1 {
            KernelPeek::Found as u32
        } else {
            KernelPeek::PassUp as u32
        };
    }
}

#[inline(always)]
const fn is_visible(byte: u8) -> bool {
    byte > b' ' && byte < 0x7f
}

/// Whether all eight bytes are printable ASCII.
#[inline(always)]
const fn is_printable(word: u64) -> bool {
    const HIGH: u64 = 0x8080_8080_8080_8080;
    const ONES: u64 = 0x0101_0101_0101_0101;
    // Below a space: borrows; DEL: the sum with one has the uppermost bit.
    let low = word.wrapping_sub(ONES * 0x20);
    let del = word.wrapping_add(ONES);
    (low | del | word) & HIGH == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn words_are_printable_if_their_bytes_are(bytes in any::<[u8; 8]>(), at in 0usize..8, odd in any::<u8>()) {
            let mut bytes = bytes.map(|byte| 0x20 + byte % 0x5f);
            prop_assert!(is_printable(u64::from_le_bytes(bytes)));
            bytes[at] = odd;
            // A byte of 0x7f or more must not go undetected; one below a space may at most make its neighbour look odd.
            if !(0x20..0x7f).contains(&odd) {
                prop_assert!(!is_printable(u64::from_le_bytes(bytes)));
            }
        }
    }
}
