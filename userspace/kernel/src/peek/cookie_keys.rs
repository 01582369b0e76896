//! Keys of the SYN cookies: map `PEEK_COOKIES`. Nodes that share addresses tell each other theirs, and all use the oldest
//! one, by the clock that is furthest ahead: each node accepts the cookies of all.

use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use signalbox_common::net::seq::is_ahead;
use signalbox_common::peek::abi::PeekHost;
use signalbox_common::peek::cookie_key::{CookieKey, FORMER_TICKS, PeekCookies};

use crate::cut::table::tick;
use crate::map::MmapArray;

/// Age of another node's key, compared with that of this node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherKey {
    /// The key of this node, too.
    Same,
    /// Older: this node uses it from now on.
    Adopted,
    /// Younger: the other node will use this node's.
    Younger,
    /// Older, but this node has just changed its key, and still accepts the former one: it waits.
    NotYet,
}

/// The keys, which all programs and processes with these pins share.
pub struct CookieKeys {
    cookies: MmapArray<PeekCookies>,
    /// Held while keys are changed.
    changing: Mutex<()>,
}

impl CookieKeys {
    /// `own`: key of this machine, for the first process that uses the map.
    pub(super) fn new(cookies: MmapArray<PeekCookies>, own: [u64; 2]) -> Self {
        let keys = Self {
            cookies,
            changing: Mutex::default(),
        };
        if keys.current().born == 0 {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let own = CookieKey {
                key: own,
                ahead_ms: 0,
                born: (now.as_micros() as u64).max(1),
            };
            keys.write(keys.current_index(), &own);
        }
        keys
    }

    /// The current key.
    #[must_use]
    pub fn current(&self) -> CookieKey {
        let entry = self.entry(self.current_index());
        // SAFETY: aligned, within the mapping; only an older key's place is written whole.
        unsafe { entry.read_volatile() }
    }

    /// Takes note of another node's key. Its clock is relative to this machine's.
    pub fn learn(&self, other: &CookieKey) -> OtherKey {
        let _changing = self.changing.lock();
        let (own, index) = (self.current(), self.current_index());
        if (own.born, own.key) == (other.born, other.key) {
            // Messages take time: no node is told a clock that is ahead of the teller's.
            if (other.ahead_ms.wrapping_sub(own.ahead_ms) as i64) > 0 {
                self.set_clock(index, other.ahead_ms);
            }
            return OtherKey::Same;
        }
        // No node says 0, which means here that there is no key.
        if other.born == 0 || (own.born, own.key) < (other.born, other.key) {
            return OtherKey::Younger;
        }
        let (current, former_until) = self.words();
        let until = former_until.load(Ordering::Relaxed);
        if until != 0 && is_ahead(until, tick(), FORMER_TICKS + 1) {
            return OtherKey::NotYet;
        }
        self.write(index ^ 1, other);
        // Both count now. The programs look at the current one first.
        former_until.store(PeekHost::until(tick(), FORMER_TICKS), Ordering::Release);
        current.store(index ^ 1, Ordering::Release);
        OtherKey::Adopted
    }

    fn current_index(&self) -> u32 {
        self.words().0.load(Ordering::Acquire) & 1
    }

    /// Index of the current key, and the tick until which the other one counts.
    fn words(&self) -> (&AtomicU32, &AtomicU32) {
        let cookies = self.cookies.at(0);
        // SAFETY: aligned, within the mapping, which lives as long as `self`.
        unsafe {
            (
                AtomicU32::from_ptr(ptr::addr_of_mut!((*cookies).current)),
                AtomicU32::from_ptr(ptr::addr_of_mut!((*cookies).former_until)),
            )
        }
    }

    fn entry(&self, index: u32) -> *mut CookieKey {
        let cookies = self.cookies.at(0);
        // SAFETY: within the mapping: the index is 0 or 1.
        unsafe {
            ptr::addr_of_mut!((*cookies).keys)
                .cast::<CookieKey>()
                .add((index & 1) as usize)
        }
    }

    /// Writes a key that no program uses yet.
    fn write(&self, index: u32, key: &CookieKey) {
        // SAFETY: aligned, within the mapping.
        unsafe { self.entry(index).write_volatile(*key) };
    }

    fn set_clock(&self, index: u32, ahead_ms: u64) {
        // SAFETY: aligned, within the mapping.
        let clock = unsafe { AtomicU64::from_ptr(ptr::addr_of_mut!((*self.entry(index)).ahead_ms)) };
        clock.store(ahead_ms, Ordering::Relaxed);
    }
}
