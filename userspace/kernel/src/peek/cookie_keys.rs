//! Keys of the SYN cookies: map `PEEK_COOKIES`. Nodes that share addresses tell each other theirs, and all use the oldest
//! one, by the clock that is furthest ahead: each node accepts the cookies of all.

use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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
    /// Older, but this node still collects keys, or has just changed its own and still accepts the former one.
    NotYet,
}

/// The keys, which all programs and processes with these pins share.
pub struct CookieKeys {
    cookies: MmapArray<PeekCookies>,
    /// Key of other nodes that this node will use, while it collects them. Locked while keys are changed.
    candidate: Mutex<Option<CookieKey>>,
    /// End of the time in which other nodes' keys are collected; `None` for a map that was there before.
    collects_until: Option<Instant>,
}

/// Time in which a new map's node collects keys: each node tells its own every second. A node that took the first one for
/// the oldest would have to keep it for as long as clients have its cookies.
const COLLECT_TIMEOUT: Duration = Duration::from_millis(2500);

/// Compares another node's key with this node's.
fn compare(own: &CookieKey, other: &CookieKey) -> OtherKey {
    if (own.born, own.key) == (other.born, other.key) {
        OtherKey::Same
    } else if other.born == 0 || (own.born, own.key) < (other.born, other.key) {
        // No node says 0, which means here that there is no key.
        OtherKey::Younger
    } else {
        OtherKey::Adopted
    }
}

/// The older one of two keys.
fn older(one: Option<CookieKey>, other: CookieKey) -> CookieKey {
    one.filter(|one| compare(&other, one) == OtherKey::Adopted)
        .unwrap_or(other)
}

impl CookieKeys {
    /// `own`: key of this machine, for the first process that uses the map.
    pub(super) fn new(cookies: MmapArray<PeekCookies>, own: [u64; 2]) -> Self {
        let mut keys = Self {
            cookies,
            candidate: Mutex::default(),
            collects_until: None,
        };
        if keys.current().born == 0 {
            keys.collects_until = Some(Instant::now() + COLLECT_TIMEOUT);
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
        let mut candidate = self.candidate.lock();
        let (own, index) = (self.current(), self.current_index());
        match compare(&own, other) {
            OtherKey::Same => {
                // Messages take time: no node is told a clock that is ahead of the teller's.
                if (other.ahead_ms.wrapping_sub(own.ahead_ms) as i64) > 0 {
                    self.set_clock(index, other.ahead_ms);
                }
                return OtherKey::Same;
            }
            OtherKey::Younger | OtherKey::NotYet => return OtherKey::Younger,
            OtherKey::Adopted => {}
        }
        let oldest = older(*candidate, *other);
        *candidate = Some(oldest);
        if self.collects_until.is_some_and(|end| Instant::now() < end) {
            return OtherKey::NotYet;
        }
        let (current, former_until) = self.words();
        let until = former_until.load(Ordering::Relaxed);
        if until != 0 && is_ahead(until, tick(), FORMER_TICKS + 1) {
            return OtherKey::NotYet;
        }
        *candidate = None;
        self.write(index ^ 1, &oldest);
        // Both count now. The programs look at the current one first.
        former_until.store(PeekHost::until(tick(), FORMER_TICKS), Ordering::Release);
        current.store(index ^ 1, Ordering::Release);
        if compare(&oldest, other) == OtherKey::Same {
            OtherKey::Adopted
        } else {
            // This node now has the key of a third one.
            OtherKey::Younger
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn key(born: u64, key: u64) -> CookieKey {
        CookieKey {
            key: [key, 0],
            ahead_ms: 7,
            born,
        }
    }

    #[test]
    fn all_nodes_prefer_the_oldest_key() {
        let own = key(50, 2);
        assert_eq!(compare(&own, &CookieKey { ahead_ms: 9, ..own }), OtherKey::Same);
        assert_eq!(compare(&own, &key(49, 3)), OtherKey::Adopted);
        assert_eq!(compare(&own, &key(51, 1)), OtherKey::Younger);
        // Of the same microsecond, all nodes prefer the same one.
        assert_eq!(compare(&own, &key(50, 1)), OtherKey::Adopted);
        assert_eq!(compare(&own, &key(50, 3)), OtherKey::Younger);
        // No key at all.
        assert_eq!(compare(&own, &key(0, 1)), OtherKey::Younger);
    }

    #[test]
    fn the_oldest_of_the_collected_keys_is_adopted() {
        let (oldest, other) = (key(10, 1), key(20, 2));
        assert_eq!(older(None, other), other);
        assert_eq!(older(Some(other), oldest), oldest);
        assert_eq!(older(Some(oldest), other), oldest);
        // The latest word of the same node's clock counts.
        let later = CookieKey { ahead_ms: 8, ..oldest };
        assert_eq!(older(Some(oldest), later), later);
    }
}
