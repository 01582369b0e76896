//! Times as a histogram, for percentiles of sums over names and balancers.

use serde::{Deserialize, Serialize};

/// Number of buckets.
pub const BUCKETS: usize = 84;
/// Bits of a time below which all times are in the first bucket: 128 µs.
const FIRST_BITS: u32 = 7;

/// Returns the bucket of a time. Four buckets for each power of two: a bucket is at most a quarter wide.
#[must_use]
pub const fn bucket_of(micros: u64) -> usize {
    let bits = u64::BITS - micros.leading_zeros();
    if bits <= FIRST_BITS {
        return 0;
    }
    let quarter = (micros >> (bits - 3)) & 3;
    let bucket = 1 + (bits - FIRST_BITS - 1) as usize * 4 + quarter as usize;
    if bucket < BUCKETS { bucket } else { BUCKETS - 1 }
}

/// Returns the shortest time of a bucket, in microseconds.
#[must_use]
pub const fn start_of(bucket: usize) -> u64 {
    if bucket == 0 {
        return 0;
    }
    let (power, quarter) = ((bucket - 1) / 4, (bucket - 1) % 4);
    (4 + quarter as u64) << (power as u32 + FIRST_BITS - 2)
}

/// Numbers of times, as pairs of a bucket and its number. The bucket with number 0 has times below 128 µs; bucket n
/// begins at `(4 + (n - 1) % 4) * 2^((n - 1) / 4 + 5)` µs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Times(Vec<(u8, u64)>);

impl Times {
    /// Takes the number of each bucket.
    #[must_use]
    pub fn new(numbers: impl Iterator<Item = u64>) -> Self {
        let pairs = numbers.take(BUCKETS).enumerate();
        Self(
            pairs
                .filter(|(_, number)| *number > 0)
                .map(|(bucket, number)| (bucket as u8, number))
                .collect(),
        )
    }

    /// Whether there are no times.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Applies a function to the numbers of each bucket.
    #[must_use]
    pub fn zip(&self, other: &Self, with: impl Fn(u64, u64) -> u64) -> Self {
        if self.is_empty() && other.is_empty() {
            return Self::default();
        }
        let of = |times: &Self| {
            let mut numbers = [0; BUCKETS];
            for (bucket, number) in &times.0 {
                // Another version's balancer may know more buckets.
                let at = usize::from(*bucket).min(BUCKETS - 1);
                numbers[at] += number;
            }
            numbers
        };
        let pairs = of(self).into_iter().zip(of(other));
        Self::new(pairs.map(|(a, b)| with(a, b)))
    }

    /// Returns the number of times.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().map(|(_, number)| number).sum()
    }

    /// Returns a time in microseconds that a share of all times, in percent, does not exceed: the end of a bucket.
    /// `None` without times.
    #[must_use]
    pub fn percentile(&self, percent: u64) -> Option<u64> {
        let wanted = (self.count() * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let found = self.0.iter().find(|(_, number)| {
            seen += number;
            seen >= wanted
        });
        found.map(|(bucket, _)| start_of(usize::from(*bucket) + 1))
    }

    /// Returns the number of times in the buckets that begin at `micros` or later.
    #[must_use]
    pub fn at_least(&self, micros: u64) -> u64 {
        let later = self
            .0
            .iter()
            .filter(|(bucket, _)| start_of(usize::from(*bucket)) >= micros);
        later.map(|(_, number)| number).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_bucket_that_begins_before_it() {
        for micros in (0..100_000).chain([1 << 20, (1 << 27) - 1]) {
            let bucket = bucket_of(micros);
            assert!(start_of(bucket) <= micros && micros < start_of(bucket + 1), "{micros}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert!(start_of(BUCKETS - 1) > 100_000_000, "more than 100 s");
    }

    #[test]
    fn percentiles_are_ends_of_buckets() {
        let mut numbers = [0; BUCKETS];
        for micros in (0..100).map(|number| number * 1000) {
            numbers[bucket_of(micros)] += 1;
        }
        let times = Times::new(numbers.into_iter());
        assert_eq!(times.count(), 100);
        let (median, late) = (times.percentile(50).unwrap(), times.percentile(95).unwrap());
        assert!((49_000..=62_500).contains(&median), "{median}");
        assert!((95_000..=120_000).contains(&late), "{late}");
        assert!(times.at_least(late) <= 5);
        assert_eq!(Times::default().percentile(50), None);
        assert_eq!(times.zip(&times, u64::saturating_sub), Times::default());
        assert_eq!(times.zip(&times, |a, b| a + b).count(), 200);
    }
}
