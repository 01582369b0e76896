//! Latencies in buckets that grow with the value, as HdrHistogram has them: at most 1.6 % wrong at any size, and
//! recording costs one addition, however many requests there are.

use std::time::Duration;

/// Buckets for each power of two.
const SUB: u32 = 64;
const SUB_BITS: u32 = SUB.ilog2();

/// Counts of durations.
#[derive(Clone)]
pub(crate) struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    sum: u128,
}

impl Histogram {
    /// An empty histogram.
    pub(crate) fn new() -> Self {
        Self {
            buckets: vec![0; (SUB * (65 - SUB_BITS)) as usize],
            count: 0,
            sum: 0,
        }
    }

    /// Adds a duration.
    pub(crate) fn record(&mut self, value: Duration) {
        let nanos = u64::try_from(value.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(nanos)] += 1;
        self.count += 1;
        self.sum += u128::from(nanos);
    }

    /// Adds all durations of another histogram.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum += other.sum;
    }

    /// Number of durations added.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Mean of the durations, exact; `None` without any.
    pub(crate) fn mean(&self) -> Option<Duration> {
        let mean = self.sum.checked_div(u128::from(self.count))?;
        Some(Duration::from_nanos(u64::try_from(mean).unwrap_or(u64::MAX)))
    }

    /// Quantile: the duration that `part` of all, 0 to 1, does not exceed.
    pub(crate) fn quantile(&self, part: f64) -> Option<Duration> {
        let wanted = ((part * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        let index = self.buckets.iter().position(|n| {
            seen += n;
            seen >= wanted
        })?;
        Some(Duration::from_nanos(middle(index)))
    }
}

/// Bucket of a value: exact up to `SUB`, then `SUB` buckets for each doubling.
fn bucket(nanos: u64) -> usize {
    let shift = nanos.max(1).ilog2().saturating_sub(SUB_BITS);
    (u64::from(shift * SUB) + (nanos >> shift)) as usize
}

/// Middle of a bucket's range.
fn middle(index: usize) -> u64 {
    let sub = SUB as usize;
    let shift = (index / sub).saturating_sub(1);
    let low = ((index - shift * sub) as u64) << shift;
    low + (1 << shift) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_found_within_its_precision() {
        for value in (0..64)
            .flat_map(|bit| [1 << bit, (1 << bit) + 1, u64::MAX >> (63 - bit)])
            .chain([0, u64::MAX])
        {
            let found = middle(bucket(value));
            assert!(
                found.abs_diff(value) as f64 <= value as f64 * 0.016,
                "{value} is found as {found}"
            );
        }
    }

    #[test]
    fn larger_values_are_never_in_smaller_buckets() {
        let mut last = 0;
        for value in 0..100_000 {
            assert!(bucket(value) >= last);
            last = bucket(value);
        }
    }

    #[test]
    fn quantiles_and_mean() {
        let mut histogram = Histogram::new();
        assert_eq!((histogram.quantile(0.5), histogram.mean()), (None, None));
        for millis in 1..=100 {
            histogram.record(Duration::from_millis(millis));
        }
        let millis = |part| histogram.quantile(part).unwrap().as_secs_f64() * 1e3;
        assert!((millis(0.5) - 50.0).abs() < 1.0 && (millis(0.99) - 99.0).abs() < 1.6 && millis(0.0) < 1.1);
        assert_eq!(histogram.mean(), Some(Duration::from_micros(50_500)));
    }

    #[test]
    fn merging_adds() {
        let (mut one, mut two) = (Histogram::new(), Histogram::new());
        one.record(Duration::from_secs(1));
        two.record(Duration::from_secs(3));
        one.merge(&two);
        assert_eq!((one.count(), one.mean()), (2, Some(Duration::from_secs(2))));
    }
}
