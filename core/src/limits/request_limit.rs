//! Limits of a route's requests by source, without a lock: a count-min sketch as in [`crate::limits::limit`].
//!
//! Rates are buckets by the generic cell rate algorithm (ITU-T I.371): a cell holds the time at which its bucket will
//! be full again. Routes of different rates may share a cell: each sees the other's requests, and never too few.

use std::sync::atomic::Ordering;
use std::time::Duration;

use signalbox_common::sketch::{excess, use_period};

use crate::limits::limit::{self, SketchCells, SourceCells};
use crate::limits::stats::CountWords;
use crate::model::http::{PeriodRate, RequestLimits};

/// Reason for refusing a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestLimitExceeded {
    /// Too many requests of this source in a time; the bucket has room for another one after this.
    Rate(Duration),
    /// Too many requests of this source at once.
    Concurrent,
}

/// Sketch of the sources of requests, shared by all workers, and by the kernel peek's program where its memory is.
pub struct RequestLimiter {
    /// Times at which buckets are full again, in ns of `CLOCK_MONOTONIC`.
    full_at: CountWords,
    in_flight: CountWords,
}

impl Default for RequestLimiter {
    fn default() -> Self {
        Self::new(CountWords::own(limit::CELLS), CountWords::own(limit::CELLS))
    }
}

impl RequestLimiter {
    /// A limiter whose buckets and counts are in the given memory.
    #[must_use]
    pub const fn new(full_at: CountWords, in_flight: CountWords) -> Self {
        Self { full_at, in_flight }
    }

    /// Admits a request, which is then counted as in flight if the route limits these, or refuses it.
    pub fn admit(
        &self,
        source: SourceCells,
        limits: &RequestLimits,
        now: Duration,
    ) -> Result<(), RequestLimitExceeded> {
        if limits.concurrent > 0 && !self.in_flight.increment_below(source, limits.concurrent) {
            return Err(RequestLimitExceeded::Concurrent);
        }
        let taken = limits.requests.map_or(Ok(()), |rate| self.take(source, rate, now));
        if taken.is_err() && limits.concurrent > 0 {
            self.in_flight.decrement(source);
        }
        taken.map_err(RequestLimitExceeded::Rate)
    }

    /// Notes that a request has ended that was counted as in flight.
    pub fn ended(&self, source: SourceCells) {
        self.in_flight.decrement(source);
    }

    /// Takes a token, or says how long to wait for one.
    ///
    /// Cells are raised first and lowered again on refusal, so that the count is exact under races.
    fn take(&self, source: SourceCells, limit: PeriodRate, now: Duration) -> Result<(), Duration> {
        let now = nanoseconds(now);
        let (cost, most) = cost_and_depth(limit);
        let mut least = u64::MAX;
        for cell in source.cells(&self.full_at) {
            let (relaxed, raise) = (Ordering::Relaxed, |old| Some(use_period(old, now, cost)));
            let old = cell.fetch_update(relaxed, relaxed, raise).unwrap_or_else(|old| old);
            least = least.min(use_period(old, now, cost));
        }
        let excess = excess(least, now, most);
        if excess == 0 {
            return Ok(());
        }
        for cell in source.cells(&self.full_at) {
            cell.fetch_sub(cost, Ordering::Relaxed);
        }
        Err(Duration::from_nanos(excess))
    }
}

/// Time that one use takes of a bucket of a rate, and that of the whole bucket, in ns.
#[must_use]
pub fn cost_and_depth(rate: PeriodRate) -> (u64, u64) {
    let cost = (nanoseconds(rate.period) / rate.count.max(1)).max(1);
    (cost, cost.saturating_mul(rate.burst.max(1)))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::IpAddr;

    fn source(last: u8) -> SourceCells {
        SourceCells::new(7, IpAddr::from([10, 0, 0, last]))
    }

    fn limits(rate: u64, burst: u64, concurrent: u32) -> RequestLimits {
        let requests = (rate > 0).then_some(PeriodRate {
            count: rate,
            period: Duration::from_secs(1),
            burst,
        });
        RequestLimits { requests, concurrent }
    }

    fn admitted(limiter: &RequestLimiter, limits: &RequestLimits, at_ms: u64) -> usize {
        let at = Duration::from_millis(at_ms);
        let grants = (0..100).filter(|_| limiter.admit(source(1), limits, at).is_ok());
        grants.count()
    }

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let (limiter, limits) = (RequestLimiter::default(), limits(10, 30, 0));
        assert_eq!(admitted(&limiter, &limits, 5000), 30);
        assert_eq!(admitted(&limiter, &limits, 5500), 5);
        assert_eq!(admitted(&limiter, &limits, 5000), 0, "a clock that runs behind");
        assert_eq!(admitted(&limiter, &limits, 60_000), 30, "never more than the burst");
        assert_eq!(
            limiter.admit(source(2), &limits, Duration::from_secs(60)),
            Ok(()),
            "another source"
        );
    }

    #[test]
    fn a_rate_may_be_less_than_one_in_a_second() {
        let rate = PeriodRate {
            count: 2,
            period: Duration::from_secs(10),
            burst: 2,
        };
        let limits = RequestLimits {
            requests: Some(rate),
            concurrent: 0,
        };
        let limiter = RequestLimiter::default();
        let at = |ms| admitted(&limiter, &limits, ms);
        assert_eq!((at(1000), at(5900), at(6000), at(60_000)), (2, 0, 1, 2));
    }

    #[test]
    fn a_rate_limited_request_gets_the_time_to_wait() {
        let (limiter, limits) = (RequestLimiter::default(), limits(2, 1, 0));
        let at = |ms| limiter.admit(source(1), &limits, Duration::from_millis(ms));
        assert_eq!(at(1000), Ok(()));
        let wait = |ms| Err(RequestLimitExceeded::Rate(Duration::from_millis(ms)));
        assert_eq!(at(1000), wait(500));
        assert_eq!(at(1400), wait(100), "a refused request costs nothing");
        assert_eq!(at(1500), Ok(()));
    }

    #[test]
    fn requests_in_flight_are_counted_and_given_back() {
        let (limiter, limits) = (RequestLimiter::default(), limits(0, 0, 2));
        assert_eq!(admitted(&limiter, &limits, 0), 2);
        limiter.ended(source(1));
        assert_eq!(admitted(&limiter, &limits, 0), 1);
    }

    #[test]
    fn a_request_over_the_rate_is_not_in_flight() {
        let (limiter, limits) = (RequestLimiter::default(), limits(1, 1, 2));
        assert_eq!(admitted(&limiter, &limits, 1000), 1);
        assert_eq!(
            admitted(&limiter, &limits, 2000),
            1,
            "one of two was in flight, whatever was refused"
        );
        assert_eq!(
            limiter.admit(source(1), &limits, Duration::from_secs(9)),
            Err(RequestLimitExceeded::Concurrent)
        );
    }

    proptest! {
        /// In any time a source gets its burst and the rate, and not one more.
        #[test]
        fn no_more_than_burst_and_rate(
            rate in 1u64..2000, burst in 1u64..50, gaps in prop::collection::vec(0u64..20_000, 1..300),
        ) {
            let (limiter, limits) = (RequestLimiter::default(), limits(rate, burst, 0));
            let (mut now, mut granted) = (Duration::from_secs(1), 0);
            let began = now;
            for gap in gaps {
                now += Duration::from_micros(gap);
                granted += u64::from(limiter.admit(source(1), &limits, now).is_ok());
                let most = burst as f64 + (now - began).as_secs_f64() * rate as f64;
                // A token's time is rounded down to a nanosecond.
                prop_assert!(granted as f64 <= most * 1.0001 + 1e-6, "{granted} of {most}");
            }
        }

        /// A client that waits as long as it was told is served.
        #[test]
        fn the_wait_is_enough(rate in 1u64..2000, burst in 1u64..20) {
            let (limiter, limits) = (RequestLimiter::default(), limits(rate, burst, 0));
            let mut now = Duration::from_secs(1);
            for _ in 0..100 {
                if let Err(refused) = limiter.admit(source(1), &limits, now) {
                    let RequestLimitExceeded::Rate(wait) = refused else { panic!("{refused:?}") };
                    now += wait;
                    prop_assert_eq!(limiter.admit(source(1), &limits, now), Ok(()));
                }
            }
        }
    }
}
