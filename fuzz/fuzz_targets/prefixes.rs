//! The property of every peek parser: how the bytes were cut into reads never changes the outcome.

use std::fmt::Debug;

/// Prefixes of an input that are looked at, at most: the parsers read from the start each time.
const MAX_PREFIXES: usize = 512;

/// Once a prefix of `bytes` has a final outcome, every longer prefix, and the whole, has the same.
pub fn agree<T: PartialEq + Debug>(bytes: &[u8], peek: impl Fn(&[u8]) -> T, incomplete: &T) {
    let whole = peek(bytes);
    let step = bytes.len() / MAX_PREFIXES + 1;
    for len in (0..bytes.len()).step_by(step) {
        let outcome = peek(&bytes[..len]);
        // The whole being equal to each final outcome makes them equal to one another.
        if outcome != *incomplete {
            assert_eq!(
                outcome,
                whole,
                "final after {len} of {} bytes, then another",
                bytes.len()
            );
        }
    }
}
