//! Keys of SYN cookies, and the clock that cookies tell the time by. Nodes that share addresses have the same key and
//! clock, so that each of them accepts the cookies of all.

use super::cookie::EPOCH_SHIFT_NS;

/// Ticks for which cookies of the former key are accepted: two epochs.
pub const FORMER_TICKS: u32 = (2 << (EPOCH_SHIFT_NS - 20)) as u32;

/// A key, and its clock.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CookieKey {
    /// Key of the hash.
    pub key: [u64; 2],
    /// Milliseconds by which the key's clock is ahead of this machine's `CLOCK_MONOTONIC`, modulo 2^64.
    pub ahead_ms: u64,
    /// Microseconds since 1970 at which the key was made: of several nodes' keys the oldest is used. 0: there is none.
    pub born: u64,
}

/// Element of `PEEK_COOKIES`, mapped into userspace.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeekCookies {
    /// The current key and the former one, in the order of `current`.
    pub keys: [CookieKey; 2],
    /// Index of the current key.
    pub current: u32,
    /// Tick until which cookies of the former key are accepted; 0: there is none.
    pub former_until: u32,
}

impl CookieKey {
    /// Nanoseconds of the key's clock.
    #[inline(always)]
    #[must_use]
    pub const fn clock_ns(&self, monotonic_ns: u64) -> u64 {
        monotonic_ns.wrapping_add(self.ahead_ms.wrapping_mul(1_000_000))
    }
}

const _: () = assert!(size_of::<PeekCookies>() == 72);
