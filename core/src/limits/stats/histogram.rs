//! A histogram of durations that many threads add to without a lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of the buckets in seconds: 0.25 ms, doubling, to 8.192 s. Longer durations are in a last bucket.
const BOUNDS: [f64; 16] = [
    0.000_25, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192,
];

/// Histogram of durations, in buckets by power of two.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    micros: AtomicU64,
}

impl Histogram {
    /// Adds a duration.
    pub fn observe(&self, took: Duration) {
        let micros = took.as_micros() as u64;
        let bucket = (0..BOUNDS.len()).find(|&i| micros <= 250 << i).unwrap_or(BOUNDS.len());
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.micros.fetch_add(micros, Relaxed);
    }

    /// Returns sum in seconds, count, and each bucket's own count (not cumulative).
    #[must_use]
    pub fn read(&self) -> (f64, u64, Vec<(f64, u64)>) {
        let counts: Vec<u64> = self.buckets.iter().map(|b| b.load(Relaxed)).collect();
        let buckets = BOUNDS
            .iter()
            .copied()
            .chain([f64::INFINITY])
            .zip(counts.iter().copied())
            .collect();
        (self.micros.load(Relaxed) as f64 / 1e6, counts.iter().sum(), buckets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_falls_into_the_bucket_whose_bound_is_not_below_it() {
        let histogram = Histogram::default();
        for micros in [250, 251, 9_000_000] {
            histogram.observe(Duration::from_micros(micros));
        }
        let (sum, count, buckets) = histogram.read();
        assert_eq!((count, buckets[0].1, buckets[1].1, buckets[16].1), (3, 1, 1, 1));
        assert!((sum - 9.000_501).abs() < 1e-9);
    }
}
