//! Limits per source address without a lock: a count-min sketch of connections and token buckets.
//!
//! Memory does not grow with the number of sources. An estimate is never too low; it is too high only where all three
//! cells of a source are shared with busier sources.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use signalbox_common::hash;
use signalbox_common::sketch::{self, ROWS, use_token};

use crate::limits::stats::CountWords;
use crate::model::PerSource;
use crate::wire::address::ipv4_mapped;
use crate::wire::hostname::HostnamePattern;

/// Cells of a sketch.
pub(crate) const CELLS: usize = sketch::CELLS as usize;

/// Cells of a source in the sketch. A source is a /32 of IPv4 or a /64 of IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceCells([usize; ROWS]);

impl SourceCells {
    /// Cells of an address under a secret seed, so that no client can aim at another source's cells.
    #[must_use]
    pub fn new(seed: u64, addr: IpAddr) -> Self {
        Self::of(seed, &source(addr))
    }

    /// Cells of the leading bits of an address; `(v4, v6)` are the numbers of bits.
    #[must_use]
    pub fn with_prefix(seed: u64, addr: IpAddr, (v4, v6): (u32, u32)) -> Self {
        let bits = if addr.is_ipv4() { 96 + v4.min(32) } else { v6.min(128) };
        Self::of(seed, &sketch::prefix(&words(ipv4_mapped(addr)), bits))
    }

    /// The source's cells of a sketch.
    pub(crate) fn cells<T>(self, sketch: &[T]) -> impl Iterator<Item = &T> {
        self.0.into_iter().filter_map(|cell| sketch.get(cell))
    }

    fn of(seed: u64, source: &[u32; 4]) -> Self {
        Self(std::array::from_fn(|row| {
            sketch::cell(row as u32, seed, source) as usize
        }))
    }
}

/// Returns an address as a source: a /32 of IPv4 or a /64 of IPv6.
pub(crate) fn source(addr: IpAddr) -> [u32; 4] {
    sketch::source(&words(ipv4_mapped(addr)))
}

/// An address in the words of programs.
fn words(bytes: [u8; 16]) -> [u32; 4] {
    let (words, _) = bytes.as_chunks::<4>();
    std::array::from_fn(|at| words.get(at).map_or(0, |word| u32::from_be_bytes(*word)))
}

/// Mixes the name of a listener or route into a seed, so that each has its own sources.
#[must_use]
pub fn seed_of(seed: u64, name: &str) -> u64 {
    hash::bytes(seed, name.as_bytes())
}

/// Mixes the name of a route, and one of its paths, into a seed, so that each has its own sources.
#[must_use]
pub fn seed_of_path(seed: u64, name: &HostnamePattern, path: &str) -> u64 {
    let of_name = match name {
        HostnamePattern::Exact(name) => seed_of(seed, name.as_str()),
        HostnamePattern::Wildcard(suffix) => seed_of(!seed, suffix.as_str()),
    };
    seed_of(of_name, path)
}

/// Reason for refusing a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitExceeded {
    /// Too many connections of this source at once.
    Concurrent,
    /// Too many connections of this source being peeked at.
    Peeking,
    /// Too many new connections of this source in a second.
    Rate,
}

/// Sketch of all sources, shared by all workers, and by the kernel peek's program where its memory is.
pub struct Limiter {
    concurrent: CountWords,
    peeking: CountWords,
    /// Token buckets: [`use_token`].
    buckets: CountWords,
}

impl Default for Limiter {
    fn default() -> Self {
        Self::new(CountWords::own(CELLS), CountWords::own(CELLS))
    }
}

impl Limiter {
    /// A limiter whose counts of connections and whose token buckets are in the given memory.
    #[must_use]
    pub const fn new(concurrent: CountWords, buckets: CountWords) -> Self {
        Self {
            concurrent,
            peeking: CountWords::own(CELLS),
            buckets,
        }
    }

    /// Admits a new connection, which is then counted as open and as being peeked at, or refuses it. `now`: time of
    /// `CLOCK_MONOTONIC`.
    pub fn admit(&self, source: SourceCells, limits: &PerSource, now: Duration) -> Result<(), LimitExceeded> {
        if limits.per_second > 0 && !self.take_token(source, limits.per_second, now) {
            return Err(LimitExceeded::Rate);
        }
        if !self.concurrent.increment_below(source, limits.concurrent) {
            return Err(LimitExceeded::Concurrent);
        }
        if !self.peeking.increment_below(source, limits.peeking) {
            self.concurrent.decrement(source);
            return Err(LimitExceeded::Peeking);
        }
        Ok(())
    }

    /// Counts a connection as open unless its source is at the limit.
    pub fn try_acquire(&self, source: SourceCells, limit: u32) -> Result<(), LimitExceeded> {
        if self.concurrent.increment_below(source, limit) {
            Ok(())
        } else {
            Err(LimitExceeded::Concurrent)
        }
    }

    /// Number of counted connections of a source: never too low.
    #[must_use]
    pub fn open_connections(&self, source: SourceCells) -> u32 {
        source
            .cells(&self.concurrent)
            .map(|cell| cell.load(Ordering::Relaxed) as u32)
            .min()
            .unwrap_or(0)
    }

    /// Notes that the peek of an admitted connection has ended.
    pub fn peek_ended(&self, source: SourceCells) {
        self.peeking.decrement(source);
    }

    /// Notes that an admitted connection has ended (after its peek).
    pub fn connection_closed(&self, source: SourceCells) {
        self.concurrent.decrement(source);
    }

    /// Takes a token, unless every row's bucket is empty. A bucket holds one second's worth.
    fn take_token(&self, source: SourceCells, rate: u32, now: Duration) -> bool {
        let now_ms = now.as_millis() as u32;
        let mut granted = false;
        for bucket in source.cells(&self.buckets) {
            let relaxed = Ordering::Relaxed;
            let outcome = bucket.fetch_update(relaxed, relaxed, |old| use_token(old, now_ms, rate));
            granted |= outcome.is_ok();
        }
        granted
    }
}

/// Cells that count what a source has in flight.
pub(crate) trait SketchCells {
    /// Adds one unless the estimate is at the limit; 0 means no limit. The cell is raised first and lowered again on
    /// refusal, so that the count is exact under races.
    fn increment_below(&self, source: SourceCells, limit: u32) -> bool;

    fn decrement(&self, source: SourceCells);
}

impl SketchCells for [AtomicU64] {
    fn increment_below(&self, source: SourceCells, limit: u32) -> bool {
        let raised = source.cells(self).map(|cell| cell.fetch_add(1, Ordering::Relaxed));
        let least = raised.min().unwrap_or(0);
        if limit == 0 || least < u64::from(limit) {
            return true;
        }
        self.decrement(source);
        false
    }

    fn decrement(&self, source: SourceCells) {
        for cell in source.cells(self) {
            cell.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(last: u8) -> SourceCells {
        SourceCells::new(7, IpAddr::from([10, 0, 0, last]))
    }

    #[test]
    fn concurrent_and_peeking_are_counted_apart_and_given_back() {
        let limiter = Limiter::default();
        let limits = PerSource {
            concurrent: 3,
            per_second: 0,
            peeking: 2,
        };
        let at = Duration::ZERO;
        assert_eq!(limiter.admit(of(1), &limits, at), Ok(()));
        assert_eq!(limiter.admit(of(1), &limits, at), Ok(()));
        assert_eq!(limiter.admit(of(1), &limits, at), Err(LimitExceeded::Peeking));
        assert_eq!(
            limiter.admit(of(2), &limits, at),
            Ok(()),
            "another source is not touched"
        );
        limiter.peek_ended(of(1));
        assert_eq!(limiter.admit(of(1), &limits, at), Ok(()));
        limiter.peek_ended(of(1));
        assert_eq!(limiter.admit(of(1), &limits, at), Err(LimitExceeded::Concurrent));
        limiter.connection_closed(of(1));
        assert_eq!(limiter.admit(of(1), &limits, at), Ok(()));
    }

    #[test]
    fn a_second_holds_its_rate_and_no_more() {
        let limiter = Limiter::default();
        let limits = PerSource {
            concurrent: 0,
            per_second: 10,
            peeking: 0,
        };
        let burst = (0..50)
            .filter(|_| limiter.admit(of(1), &limits, Duration::from_secs(5)).is_ok())
            .count();
        assert_eq!(burst, 10);
        let later = (0..50)
            .filter(|_| limiter.admit(of(1), &limits, Duration::from_millis(5500)).is_ok())
            .count();
        assert_eq!(later, 5);
    }

    #[test]
    fn a_clock_that_runs_a_moment_behind_gets_no_second_bucket() {
        let limiter = Limiter::default();
        let limits = PerSource {
            concurrent: 0,
            per_second: 10,
            peeking: 0,
        };
        let admitted = |at| {
            (0..50)
                .filter(|_| limiter.admit(of(1), &limits, Duration::from_millis(at)).is_ok())
                .count()
        };
        assert_eq!((admitted(5001), admitted(5000)), (10, 0));
    }

    #[test]
    fn ipv6_counts_by_64() {
        let near = ["2001:db8::1", "2001:db8::ffff"].map(|a| SourceCells::new(1, a.parse().unwrap()));
        assert_eq!(near[0], near[1]);
        assert_ne!(near[0], SourceCells::new(1, "2001:db8:0:1::1".parse().unwrap()));
    }
}
