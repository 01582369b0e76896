//! Keys of the cookies: the current one, by which SYNs are answered, and for a while the former one.

use signalbox_common::net::seq::is_ahead;
use signalbox_common::peek::{
    abi::PeekConfig,
    cookie::{self, CookieCheck, Echo, MAX_ECHO_AGE_MS, OF_ANOTHER},
    cookie_key::{CookieKey, FORMER_TICKS, PeekCookies},
};

use super::{maps::PEEK_COOKIES, segment::Segment};
use crate::cut::skb::{monotonic_ms, monotonic_ns, tick};

/// The keys.
#[inline(always)]
fn keys() -> Option<&'static PeekCookies> {
    PEEK_COOKIES.get(0)
}

/// Index of the current key.
#[inline(always)]
fn current_of(keys: &PeekCookies) -> u32 {
    // SAFETY: aligned, whole; userspace writes it when the other key is complete.
    unsafe { (&raw const keys.current).read_volatile() }
}

/// The current key.
#[inline(always)]
pub fn current() -> Option<&'static CookieKey> {
    let keys = keys()?;
    keys.keys.get(current_of(keys) as usize)
}

/// The former key, if its cookies are still accepted.
#[inline(always)]
fn former() -> Option<&'static CookieKey> {
    let keys = keys()?;
    // SAFETY: aligned, whole; userspace writes it.
    let until = unsafe { (&raw const keys.former_until).read_volatile() };
    if until == 0 || !is_ahead(until, tick(), FORMER_TICKS + 1) {
        return None;
    }
    keys.keys.get((current_of(keys) ^ 1) as usize)
}

/// Checks the cookie of a segment, whose TSecr is `echo` where it `has_stamps`. 0 where it has none of these nodes.
#[inline(never)]
pub fn check(config: &PeekConfig, segment: &Segment, has_stamps: u32, echo: u32, out: &mut CookieCheck) -> u32 {
    let Some(key) = current() else { return 0 };
    let aged = check_with(key, config, segment, u64::from(has_stamps) << 32 | u64::from(echo), out);
    if aged != 0 {
        if is_from_before(aged - 1) {
            out.slot = OF_ANOTHER;
        }
        return 1;
    }
    let Some(key) = former() else { return 0 };
    check_with(key, config, segment, u64::from(has_stamps) << 32 | u64::from(echo), out)
}

/// Whether a cookie of the current key, some milliseconds old, is older than this node's use of that key: a node that has
/// lost its maps has forgotten the flows of its earlier self.
#[inline(always)]
fn is_from_before(age: u32) -> bool {
    let Some(keys) = keys() else { return false };
    // SAFETY: aligned, whole; userspace writes it.
    let until = unsafe { (&raw const keys.former_until).read_volatile() };
    let since = tick().wrapping_sub(until.wrapping_sub(FORMER_TICKS));
    // A tick is 1.05 ms.
    until != 0 && since < FORMER_TICKS && age > since + since / 16
}

/// Checks a cookie with a key. `echo`: TSecr, with a bit above where there is one. A function takes five arguments. Returns
/// the cookie's age in milliseconds and one, or 0.
#[inline(never)]
fn check_with(key: &CookieKey, config: &PeekConfig, segment: &Segment, echo: u64, out: &mut CookieCheck) -> u32 {
    let ts_ecr = (echo >> 32 != 0).then_some(echo as u32);
    match find(key, config, segment, ts_ecr) {
        Some(check) => {
            *out = check;
            // Without timestamps only the epoch is known.
            let age = monotonic_ms().wrapping_add(out.clock).wrapping_sub(echo as u32);
            1 + if ts_ecr.is_some() { age } else { MAX_ECHO_AGE_MS }
        }
        None => 0,
    }
}

#[inline(always)]
fn find(key: &CookieKey, config: &PeekConfig, segment: &Segment, ts_ecr: Option<u32>) -> Option<CookieCheck> {
    let echo = Echo {
        seq: segment.tcp.seq,
        ack: segment.tcp.ack,
        ts_ecr,
    };
    let ahead = key.ahead_ms as u32;
    let (epoch, now) = (
        cookie::last_epoch(key.clock_ns(monotonic_ns())),
        monotonic_ms().wrapping_add(ahead),
    );
    let hash = |epoch| cookie::hash(&key.key, &segment.tuple, epoch, ts_ecr.is_some());
    let mut check = match cookie::check(hash(epoch), &echo, now, config.nodes) {
        Some(check) => check,
        None => cookie::check(hash(epoch.wrapping_sub(1)), &echo, now, config.nodes)?,
    };
    check.clock = check.clock.wrapping_add(ahead);
    Some(check)
}
