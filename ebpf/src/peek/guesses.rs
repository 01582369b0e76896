//! Wrong cookies, counted by source. A cookie without timestamps is found by 2^28 guesses, so such cookies of a source
//! that guesses are not accepted. During that time its SYNs without timestamps are left to the kernel's own handshake.

use signalbox_common::{
    Reason,
    net::{atomic, seq::is_ahead},
    peek::abi::{MAX_WRONG_COOKIES_PER_SECOND, PeekGuesses},
};

use super::{PASS, exit, maps::PEEK_GUESSES, segment::Segment};
use crate::cut::skb::{Family, tick};

/// Ticks of a second, as a power of two.
const SECOND_SHIFT: u32 = 10;
/// Seconds for which a source counts as guessing. During that time none of its SYNs is answered by a cookie that would
/// not be accepted when the data comes.
const GUESSING_SECONDS: u32 = 8;

/// Source that guesses count against: an owner of an IPv6 address has all addresses of its network.
#[inline(always)]
const fn source<F: Family>(segment: &Segment) -> [u32; 4] {
    let [a, b, c, d] = segment.tuple.source;
    if F::VERSION == 4 { [a, b, c, d] } else { [a, b, 0, 0] }
}

/// Counts a segment that has neither a socket nor an accepted cookie, and leaves it to the kernel, which answers with a
/// reset.
#[inline(never)]
pub fn on_wrong<F: Family>(segment: &Segment) -> i32 {
    let source = source::<F>(segment);
    let second = tick() >> SECOND_SHIFT;
    match PEEK_GUESSES.get_ptr_mut(&source) {
        Some(guesses) => {
            // SAFETY: an element of the map, whose numbers are written whole. A second that two CPUs begin loses a count.
            let guesses = unsafe { &mut *guesses };
            if guesses.second == second {
                atomic::add(&mut guesses.count, 1);
            } else {
                (guesses.second, guesses.count) = (second, 1);
            }
            if guesses.count >= MAX_WRONG_COOKIES_PER_SECOND {
                guesses.until = second + GUESSING_SECONDS;
            }
        }
        None => {
            let first = PeekGuesses {
                second,
                until: second,
                count: 1,
            };
            let _ = PEEK_GUESSES.insert(&source, &first, 0);
        }
    }
    exit(Reason::PeekCookieWrong, PASS)
}

/// Whether a segment's source has sent too many wrong cookies recently.
#[inline(never)]
pub fn is_guessing<F: Family>(segment: &Segment) -> u32 {
    // SAFETY: the value is copied at once.
    let guesses = unsafe { PEEK_GUESSES.get(&source::<F>(segment)) }.copied();
    u32::from(guesses.is_some_and(|guesses| is_ahead(guesses.until, tick() >> SECOND_SHIFT, GUESSING_SECONDS)))
}
