//! Latencies, in an HDR histogram: at most 1 % wrong at any size.

use std::time::Duration;

/// Longest latency that is distinguished from longer ones.
const MAX_LATENCY_NANOS: u64 = 3_600_000_000_000;

/// Counts of durations.
#[derive(Clone)]
pub(crate) struct Histogram(hdrhistogram::Histogram<u64>);

impl Histogram {
    /// An empty histogram.
    pub(crate) fn new() -> Self {
        const SIGNIFICANT_DIGITS: u8 = 2;
        let counts = hdrhistogram::Histogram::new_with_bounds(1, MAX_LATENCY_NANOS, SIGNIFICANT_DIGITS);
        Self(counts.expect("the bounds are fit for each other"))
    }

    /// Adds a duration.
    pub(crate) fn record(&mut self, value: Duration) {
        self.0.saturating_record(nanos(value));
    }

    /// Adds all durations of another histogram.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all histograms have the same bounds");
    }

    /// Number of durations added.
    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// Mean of the durations; `None` without any.
    pub(crate) fn mean(&self) -> Option<Duration> {
        (!self.0.is_empty()).then(|| Duration::from_nanos(self.0.mean() as u64))
    }

    /// Quantile: the duration that `part` of all, 0 to 1, does not exceed.
    pub(crate) fn quantile(&self, part: f64) -> Option<Duration> {
        (!self.0.is_empty()).then(|| Duration::from_nanos(self.0.value_at_quantile(part)))
    }
}

fn nanos(value: Duration) -> u64 {
    u64::try_from(value.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_mean() {
        let mut histogram = Histogram::new();
        assert_eq!((histogram.quantile(0.5), histogram.mean()), (None, None));
        for millis in 1..=100 {
            histogram.record(Duration::from_millis(millis));
        }
        let millis = |part| histogram.quantile(part).unwrap().as_secs_f64() * 1e3;
        assert!((millis(0.5) - 50.0).abs() < 1.0 && (millis(0.99) - 99.0).abs() < 1.6 && millis(0.0) < 1.1);
        let mean = histogram.mean().unwrap().as_secs_f64() * 1e3;
        assert!((mean - 50.5).abs() < 0.5, "{mean}");
    }

    #[test]
    fn merging_adds_and_what_is_too_long_is_the_longest() {
        let (mut one, mut two) = (Histogram::new(), Histogram::new());
        one.record(Duration::from_secs(1));
        two.record(Duration::from_nanos(2 * MAX_LATENCY_NANOS));
        one.merge(&two);
        assert_eq!(one.count(), 2);
        assert!(one.quantile(1.0).unwrap() >= Duration::from_nanos(MAX_LATENCY_NANOS));
    }
}
