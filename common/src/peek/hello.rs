//! SNI of a ClientHello (RFC 8446, section 4.1.2), read in steps that a TC program can take one by one.
//!
//! Stricter than `core::wire::peek::tls`, which must find the same name in everything that is accepted here: a hello that is
//! whole in one record, whose extensions end where it does, with one name.

use super::KernelPeek;
use super::abi::{MAX_PAYLOAD_BYTES, PeekName, PeekPayload};
use super::name::{MAX_NAME_BYTES, lower_case};

/// Most steps that any hello takes.
pub const MAX_STEPS: u32 = 512;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u32 = 0;
const ALPN: u32 = 16;
/// Bytes before the session identifier: record and message headers, version and random.
const SESSION: u32 = 43;
const MAX_SESSION_BYTES: u32 = 32;

/// Part of the hello that the next step reads.
mod part {
    pub(super) const HEADERS: u32 = 0;
    pub(super) const EXTENSION: u32 = 1;
    pub(super) const NAME: u32 = 2;
    /// A protocol of the ALPN extension.
    pub(super) const PROTOCOL: u32 = 3;
}

/// State of a reading.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct HelloReader {
    at: u32,
    part: u32,
    /// End of the message.
    end: u32,
    /// End of the name, or of the list of protocols.
    part_end: u32,
    names: u32,
    /// A number of [`KernelPeek`]: memory may hold any number.
    outcome: u32,
}

impl Default for HelloReader {
    fn default() -> Self {
        Self::new()
    }
}

#[inline(always)]
fn u8_at(payload: &PeekPayload, at: u32) -> u32 {
    u32::from(payload.byte(at))
}

#[inline(always)]
fn u16_at(payload: &PeekPayload, at: u32) -> u32 {
    u8_at(payload, at) << 8 | u8_at(payload, at + 1)
}

impl HelloReader {
    /// A reading that begins.
    #[inline(always)]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            at: 0,
            part: part::HEADERS,
            end: 0,
            part_end: 0,
            names: 0,
            outcome: KernelPeek::Open as u32,
        }
    }

    /// Outcome so far: a number of [`KernelPeek`].
    #[inline(always)]
    #[must_use]
    pub const fn outcome(&self) -> u32 {
        self.outcome
    }

    /// Reads the headers, an extension's, or a byte of the name.
    #[inline(always)]
    pub fn step(&mut self, payload: &PeekPayload, name: &mut PeekName) {
        match self.part {
            part::HEADERS => self.outcome = self.headers(payload) as u32,
            part::NAME => self.name(payload, name),
            part::PROTOCOL => self.protocol(payload),
            _ => self.extension(payload, name),
        }
    }

    #[inline(always)]
    fn headers(&mut self, payload: &PeekPayload) -> KernelPeek {
        let length = payload.length;
        if length < 9 {
            // Not worth the effort: userspace waits for more.
            return if length > 0 && payload.byte(0) != HANDSHAKE {
                KernelPeek::PassUp
            } else {
                KernelPeek::Incomplete
            };
        }
        if payload.byte(0) != HANDSHAKE
            || payload.byte(1) != 3
            || payload.byte(5) != CLIENT_HELLO
            || payload.byte(6) != 0
        {
            return KernelPeek::PassUp;
        }
        let (record, message) = (u16_at(payload, 3), u16_at(payload, 7));
        if record != message + 4 || message < 41 || 9 + message > MAX_PAYLOAD_BYTES {
            return KernelPeek::PassUp;
        }
        if length < 9 + message {
            return KernelPeek::Incomplete;
        }
        self.end = 9 + message;
        let session = u8_at(payload, SESSION);
        let ciphers_at = SESSION + 1 + session;
        if session > MAX_SESSION_BYTES || ciphers_at + 2 > self.end {
            return KernelPeek::PassUp;
        }
        let ciphers = u16_at(payload, ciphers_at);
        let compression_at = ciphers_at + 2 + ciphers;
        if ciphers == 0 || ciphers & 1 != 0 || compression_at + 1 > self.end {
            return KernelPeek::PassUp;
        }
        let compression = u8_at(payload, compression_at);
        let extensions_at = compression_at + 1 + compression;
        if compression == 0 || extensions_at + 2 > self.end {
            return KernelPeek::PassUp;
        }
        self.at = extensions_at + 2;
        if self.at + u16_at(payload, extensions_at) != self.end {
            return KernelPeek::PassUp;
        }
        self.part = part::EXTENSION;
        KernelPeek::Open
    }

    #[inline(always)]
    fn extension(&mut self, payload: &PeekPayload, name: &mut PeekName) {
        let at = self.at;
        if at == self.end {
            self.outcome = if self.names == 1 {
                KernelPeek::Found as u32
            } else {
                KernelPeek::PassUp as u32
            };
            return;
        }
        if at + 4 > self.end {
            self.outcome = KernelPeek::PassUp as u32;
            return;
        }
        let (kind, length) = (u16_at(payload, at), u16_at(payload, at + 2));
        let end = at + 4 + length;
        if end > self.end {
            self.outcome = KernelPeek::PassUp as u32;
            return;
        }
        self.at = end;
        if kind == SERVER_NAME {
            self.names += 1;
            // A list of one name, of the only type that there is (RFC 6066, section 3).
            let is_plain = length > 5
                && u16_at(payload, at + 4) == length - 2
                && u8_at(payload, at + 6) == 0
                && u16_at(payload, at + 7) == length - 5;
            if !is_plain || self.names > 1 {
                self.outcome = KernelPeek::PassUp as u32;
                return;
            }
            self.at = at + 9;
            self.part = part::NAME;
            self.part_end = end;
            name.length = 0;
        } else if kind == ALPN {
            if length < 4 || u16_at(payload, at + 4) != length - 2 {
                self.outcome = KernelPeek::PassUp as u32;
                return;
            }
            self.at = at + 6;
            self.part = part::PROTOCOL;
            self.part_end = end;
        }
    }

    #[inline(always)]
    fn name(&mut self, payload: &PeekPayload, name: &mut PeekName) {
        let length = usize::from(name.length);
        let lower = lower_case(u8_at(payload, self.at) as u8);
        if lower == 0 || length >= MAX_NAME_BYTES {
            self.outcome = KernelPeek::PassUp as u32;
            return;
        }
        name.text[length] = lower;
        name.length += 1;
        self.at += 1;
        if self.at >= self.part_end {
            self.part = part::EXTENSION;
        }
    }

    #[inline(always)]
    fn protocol(&mut self, payload: &PeekPayload) {
        let length = u8_at(payload, self.at);
        self.at += 1 + length;
        if length == 0 || self.at > self.part_end {
            self.outcome = KernelPeek::PassUp as u32;
        } else if self.at == self.part_end {
            self.part = part::EXTENSION;
        }
    }
}
