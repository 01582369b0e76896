//! Order of 32-bit sequence numbers, which wrap (RFC 9293, section 3.4).

/// Whether `a` comes after `b`.
#[inline(always)]
#[must_use]
pub const fn after(a: u32, b: u32) -> bool {
    (b.wrapping_sub(a) as i32) < 0
}

/// Whether `a` is `b` or comes after it.
#[inline(always)]
#[must_use]
pub const fn reaches(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) >= 0
}

/// The later of the two.
#[inline(always)]
#[must_use]
pub const fn later(a: u32, b: u32) -> u32 {
    if after(a, b) { a } else { b }
}

/// Whether a tick is in the future, by at most `most`. A tick that passed long ago seems to be in the future after ticks
/// have wrapped.
#[inline(always)]
#[must_use]
pub const fn is_ahead(until: u32, now: u32, most: u32) -> bool {
    until.wrapping_sub(now).wrapping_sub(1) < most
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn order_holds_across_the_wrap(base: u32, ahead in 1u32..0x8000_0000) {
            let next = base.wrapping_add(ahead);
            prop_assert!(after(next, base) && !after(base, next) && reaches(base, base));
            prop_assert_eq!(later(base, next), next);
            prop_assert_eq!(later(next, base), next);
        }
    }
}
