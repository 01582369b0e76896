//! Turns of TLS handshakes at a worker: limits apply to the handshakes in progress, in all and of one source. Later
//! ones wait, in the order of arrival within a source, and turn by turn between sources. A source that stalls keeps no
//! other out.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use crate::limits::limit::source;
use crate::model::HandshakeLimits;

/// Source of a handshake: a /32 of IPv4 or a /64 of IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HandshakeSource([u32; 4]);

impl HandshakeSource {
    /// Source of a client's address.
    #[must_use]
    pub fn new(client: IpAddr) -> Self {
        Self(source(client))
    }
}

/// Reason why a handshake waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeWait {
    /// The worker has reached its limit of handshakes in progress.
    Worker,
    /// The source has.
    Source,
}

/// Handshakes in progress, and waiters for a turn.
#[derive(Debug)]
pub struct HandshakeQueue<W> {
    in_progress: u32,
    sources: BTreeMap<HandshakeSource, SourceTurns<W>>,
    /// Sources that have waiters and room for them, in the order of their turns.
    ready: VecDeque<HandshakeSource>,
}

#[derive(Debug)]
struct SourceTurns<W> {
    in_progress: u32,
    waiting: VecDeque<W>,
    /// Whether the source is in [`HandshakeQueue::ready`].
    is_ready: bool,
}

impl<W> Default for HandshakeQueue<W> {
    fn default() -> Self {
        Self {
            in_progress: 0,
            sources: BTreeMap::new(),
            ready: VecDeque::new(),
        }
    }
}

impl<W> Default for SourceTurns<W> {
    fn default() -> Self {
        Self {
            in_progress: 0,
            waiting: VecDeque::new(),
            is_ready: false,
        }
    }
}

impl<W> HandshakeQueue<W> {
    /// Counts a handshake as in progress, unless it has to wait.
    ///
    /// # Errors
    ///
    /// With the reason for waiting. Waiters with a turn go first.
    pub fn begin(&mut self, source: HandshakeSource, limits: HandshakeLimits) -> Result<(), HandshakeWait> {
        let of_source = self.sources.get(&source).map_or(0, |turns| turns.in_progress);
        if is_reached(of_source, limits.per_source) {
            return Err(HandshakeWait::Source);
        }
        if is_reached(self.in_progress, limits.per_worker) || !self.ready.is_empty() {
            return Err(HandshakeWait::Worker);
        }
        self.count(source);
        Ok(())
    }

    /// Puts a handshake that has to wait at the end of its source's queue.
    pub fn wait(&mut self, source: HandshakeSource, limits: HandshakeLimits, waiter: W) {
        self.sources.entry(source).or_default().waiting.push_back(waiter);
        self.make_ready(source, limits);
    }

    /// Notes that a handshake has ended, successfully or not.
    pub fn end(&mut self, source: HandshakeSource, limits: HandshakeLimits) {
        self.in_progress = self.in_progress.saturating_sub(1);
        if let Some(turns) = self.sources.get_mut(&source) {
            turns.in_progress = turns.in_progress.saturating_sub(1);
        }
        self.make_ready(source, limits);
    }

    /// Takes the next waiter that may begin, and counts its handshake as in progress. Waiters that have given up are
    /// dropped.
    pub fn next(
        &mut self,
        limits: HandshakeLimits,
        mut has_given_up: impl FnMut(&W) -> bool,
    ) -> Option<(HandshakeSource, W)> {
        while !is_reached(self.in_progress, limits.per_worker) {
            let source = self.ready.pop_front()?;
            let turns = self.sources.get_mut(&source)?;
            turns.is_ready = false;
            while turns.waiting.front().is_some_and(&mut has_given_up) {
                turns.waiting.pop_front();
            }
            let waiter = turns.waiting.pop_front();
            if waiter.is_some() {
                self.count(source);
            }
            self.make_ready(source, limits);
            if let Some(waiter) = waiter {
                return Some((source, waiter));
            }
        }
        None
    }

    fn count(&mut self, source: HandshakeSource) {
        self.in_progress += 1;
        self.sources.entry(source).or_default().in_progress += 1;
    }

    /// Lines a source up for a turn if it has waiters and room; forgets it if it has nothing.
    fn make_ready(&mut self, source: HandshakeSource, limits: HandshakeLimits) {
        let Some(turns) = self.sources.get_mut(&source) else {
            return;
        };
        if turns.is_ready {
            return;
        }
        if turns.waiting.is_empty() {
            if turns.in_progress == 0 {
                self.sources.remove(&source);
            }
        } else if !is_reached(turns.in_progress, limits.per_source) {
            turns.is_ready = true;
            self.ready.push_back(source);
        }
    }
}

const fn is_reached(count: u32, limit: u32) -> bool {
    limit != 0 && count >= limit
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HandshakeLimits = HandshakeLimits {
        per_worker: 4,
        per_source: 2,
    };

    fn source(last: u8) -> HandshakeSource {
        HandshakeSource::new(IpAddr::from([10, 0, 0, last]))
    }

    fn begin_or_wait(queue: &mut HandshakeQueue<u32>, from: u8, waiter: u32) -> Result<(), HandshakeWait> {
        let begun = queue.begin(source(from), LIMITS);
        if begun.is_err() {
            queue.wait(source(from), LIMITS, waiter);
        }
        begun
    }

    fn next(queue: &mut HandshakeQueue<u32>) -> Option<u32> {
        queue.next(LIMITS, |_| false).map(|(_, waiter)| waiter)
    }

    #[test]
    fn a_source_at_its_limit_waits_and_keeps_nobody_out() {
        let mut queue = HandshakeQueue::default();
        assert_eq!(begin_or_wait(&mut queue, 1, 0), Ok(()));
        assert_eq!(begin_or_wait(&mut queue, 1, 0), Ok(()));
        for waiter in [10, 11] {
            assert_eq!(begin_or_wait(&mut queue, 1, waiter), Err(HandshakeWait::Source));
        }
        assert_eq!(next(&mut queue), None, "room at the worker is no room for the source");
        assert_eq!(begin_or_wait(&mut queue, 2, 0), Ok(()));
        queue.end(source(2), LIMITS);
        assert_eq!(next(&mut queue), None);
        queue.end(source(1), LIMITS);
        assert_eq!((next(&mut queue), next(&mut queue)), (Some(10), None));
    }

    #[test]
    fn sources_take_turns_at_a_full_worker() {
        let mut queue = HandshakeQueue::default();
        for from in [1, 1, 2, 2] {
            assert_eq!(begin_or_wait(&mut queue, from, 0), Ok(()));
        }
        for (from, waiter) in [(3, 30), (3, 31), (4, 40), (1, 10)] {
            assert!(begin_or_wait(&mut queue, from, waiter).is_err());
        }
        assert_eq!(next(&mut queue), None);
        queue.end(source(2), LIMITS);
        assert_eq!(next(&mut queue), Some(30));
        queue.end(source(2), LIMITS);
        assert_eq!(next(&mut queue), Some(40), "the other source's turn");
        queue.end(source(1), LIMITS);
        assert_eq!(next(&mut queue), Some(31));
        queue.end(source(4), LIMITS);
        assert_eq!(next(&mut queue), Some(10));
    }

    #[test]
    fn waiters_with_a_turn_go_before_newcomers() {
        let mut queue = HandshakeQueue::default();
        for from in [1, 2, 3, 4] {
            assert_eq!(begin_or_wait(&mut queue, from, 0), Ok(()));
        }
        assert_eq!(begin_or_wait(&mut queue, 5, 50), Err(HandshakeWait::Worker));
        queue.end(source(1), LIMITS);
        assert_eq!(queue.begin(source(6), LIMITS), Err(HandshakeWait::Worker));
        assert_eq!(next(&mut queue), Some(50));
    }

    #[test]
    fn those_who_have_given_up_get_no_turn_and_leave_nothing() {
        let mut queue = HandshakeQueue::default();
        for from in [1, 1, 2, 2] {
            assert_eq!(begin_or_wait(&mut queue, from, 0), Ok(()));
        }
        for (from, waiter) in [(3, 30), (3, 31), (4, 40)] {
            assert!(begin_or_wait(&mut queue, from, waiter).is_err());
        }
        queue.end(source(1), LIMITS);
        let given_up = |waiter: &u32| *waiter < 40;
        assert_eq!(queue.next(LIMITS, given_up).map(|(_, waiter)| waiter), Some(40));
        for from in [1, 2, 2, 4] {
            queue.end(source(from), LIMITS);
        }
        assert!(queue.sources.is_empty() && queue.ready.is_empty() && queue.in_progress == 0);
    }

    #[test]
    fn nothing_waits_without_limits() {
        let mut queue = HandshakeQueue::<u32>::default();
        let none = HandshakeLimits {
            per_worker: 0,
            per_source: 0,
        };
        assert!((0..1000).all(|_| queue.begin(source(1), none).is_ok()));
    }
}
