//! Pauses before trying again.

use std::time::Duration;

use signalbox_common::hash;

use signalbox_sys::unix_ms;

/// Exponential back-off with jitter: a pause doubles from one failure to the next, and is shortened by up to a half at
/// random. Feeds and balancers that lost the server together do not come back together.
pub struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
    seed: u64,
}

impl Backoff {
    pub fn new(first: Duration, max: Duration, name: &str) -> Self {
        let here = u64::from(std::process::id());
        Self {
            min: first,
            max,
            next: first,
            seed: hash::mix(hash::bytes(unix_ms() ^ here << 32, name.as_bytes())),
        }
    }

    /// Resets the pause to the first one, after a success.
    pub fn reset(&mut self) {
        self.next = self.min;
    }

    /// Returns the pause after a failure.
    pub fn pause(&mut self) -> Duration {
        let whole = self.next.min(self.max);
        self.next = (whole * 2).min(self.max);
        self.seed = hash::mix(self.seed.wrapping_add(1));
        whole - self.jitter(whole)
    }

    /// Returns the random part by which a pause is shortened: up to a half.
    fn jitter(&self, whole: Duration) -> Duration {
        whole / 2 * (self.seed % 1000) as u32 / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_cap_and_begin_anew_when_all_is_well() {
        let (first, most) = (Duration::from_millis(250), Duration::from_secs(30));
        let mut backoff = Backoff::new(first, most, "east routes");
        let mut whole = first;
        for _ in 0..12 {
            let wait = backoff.pause();
            assert!(wait <= whole && wait > whole / 2, "{wait:?} of {whole:?}");
            whole = (whole * 2).min(most);
        }
        assert_eq!(whole, most);
        backoff.reset();
        assert!(backoff.pause() <= first);
    }

    #[test]
    fn two_that_fail_together_do_not_try_again_together() {
        let (first, most) = (Duration::from_secs(1), Duration::from_secs(30));
        let waits = |name| {
            let mut backoff = Backoff::new(first, most, name);
            (0..8).map(|_| backoff.pause()).collect::<Vec<_>>()
        };
        assert_ne!(waits("a"), waits("b"));
    }
}
