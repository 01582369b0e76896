//! Eligibility: whether this node may have addresses now.

use std::time::{Duration, Instant};

use signalbox_core::model::HighAvailability;
use signalbox_core::model::ha::Preemption;

use crate::follow::Condition;

/// Eligibility of this node, with the memory that the decision needs.
#[derive(Debug, Default)]
pub(crate) struct Eligibility {
    is_eligible: bool,
    /// Time since which a signalbox that was ready is not.
    unready_since: Option<Instant>,
}

impl Eligibility {
    /// Decides anew. The answer's second part is the time after which it must be asked again though nothing changes.
    pub(crate) fn decide(
        &mut self,
        ha: &HighAvailability,
        condition: &Condition,
        is_well: bool,
        now: Instant,
    ) -> (bool, Option<Duration>) {
        let (is_ready, again) = self.is_ready(ha, condition, now);
        let waits = ha.preemption == Preemption::WhenSynced && ha.sync.is_some() && !condition.may_preempt;
        // Who has addresses keeps them: flows that it does not know yet are nobody else's either.
        self.is_eligible = is_ready && is_well && (self.is_eligible || !waits);
        (self.is_eligible, again)
    }

    /// Whether signalbox is ready. One that was, and is alive, has an interval to become so again: a new process that
    /// takes over has not checked all hosts yet.
    fn is_ready(&mut self, ha: &HighAvailability, condition: &Condition, now: Instant) -> (bool, Option<Duration>) {
        if !ha.watch.ready || condition.ready {
            self.unready_since = None;
            return (true, None);
        }
        if condition.pid == 0 || condition.stopping || !self.is_eligible {
            return (false, None);
        }
        let since = *self.unready_since.get_or_insert(now);
        let left = ha.watch.interval.saturating_sub(now.duration_since(since));
        (!left.is_zero(), (!left.is_zero()).then_some(left))
    }
}
