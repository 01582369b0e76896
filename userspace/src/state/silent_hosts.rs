//! Hosts that did not answer: for about a second, new connections go to others.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use parking_lot::Mutex;
use signalbox_common::net::seq;
use signalbox_common::peek::abi::{AWAY_TICKS, PeekHost};
use signalbox_core::limits::connect_retry::RedispatchBudget;

/// Tick until which a host is away, or one of several is; 0: none has been.
#[derive(Debug, Default)]
pub struct AwayUntil(AtomicU32);

impl AwayUntil {
    /// Notes that a host is away from now on.
    pub fn begin(&self, now: u32) {
        self.0.store(PeekHost::until(now, AWAY_TICKS), Relaxed);
    }

    /// Whether a host is away.
    #[must_use]
    pub fn is_ahead(&self, now: u32) -> bool {
        let until = self.0.load(Relaxed);
        until != 0 && seq::is_ahead(until, now, AWAY_TICKS + 1)
    }
}

/// Hosts of a cluster that did not answer.
#[derive(Debug, Default)]
pub struct SilentHosts {
    /// Whether one of them may be away.
    pub(super) away: AwayUntil,
    /// Connections that may still go to another host. Locked only where a host is silent.
    budget: Mutex<Option<RedispatchBudget>>,
}

impl SilentHosts {
    /// Whether one more connection may leave its host. `opened`: connections of the cluster so far.
    pub(super) fn take(&self, opened: u64) -> bool {
        let mut budget = self.budget.lock();
        budget.get_or_insert_with(|| RedispatchBudget::new(opened)).take(opened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_away_for_about_a_second_and_not_before() {
        let away = AwayUntil::default();
        assert!(!away.is_ahead(0) && !away.is_ahead(u32::MAX));
        // Across the end of the clock's round.
        away.begin(u32::MAX - 10);
        let at = |later: u32| away.is_ahead((u32::MAX - 10).wrapping_add(later));
        assert_eq!([0, 500, AWAY_TICKS - 1].map(at), [true; 3]);
        assert_eq!([AWAY_TICKS + 2, 1 << 20, 1 << 31].map(at), [false; 3]);
    }
}
