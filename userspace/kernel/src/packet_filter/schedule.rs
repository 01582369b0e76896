//! When rules are read or judged again, and for how long what was known before holds. Times are given, so that nothing
//! here waits.

use std::time::{Duration, Instant};

/// Interval at which rules are read of whose changes the kernel does not tell: the older iptables' and ipsets.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Pause after a read, in multiples of its cost: so reading takes 2 % of a CPU at most.
const PAUSE_FACTOR: u32 = 50;

/// Longest time for which former rules hold after a change has been noticed.
const STALE_TTL: Duration = Duration::from_secs(2);

/// Longest pause between reads of rules of whose changes the kernel does not tell.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(30);

/// Knowledge of the rules that have been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RulesState {
    /// None have been read.
    Missing { has_failed: bool },
    /// Others have taken their place.
    Changed,
    /// The kernel would not report a change.
    Polled,
    /// The kernel has reported no change.
    Same,
}

/// Action that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Rules that have been read hold.
    Keep,
    /// Rules that have been read are too old, and others are not read yet.
    Distrust,
    /// Rules are to be read.
    Read,
}

/// End of the last attempt to read.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    ended: Instant,
    /// Time from then on in which nothing is read.
    pause: Duration,
    /// Time from its beginning to its end.
    took: Duration,
}

/// Times of reads and changes.
#[derive(Debug, Default)]
pub struct Schedule {
    last: Option<Attempt>,
    /// When a change was noticed that has not been read.
    changed: Option<Instant>,
    /// Whether somebody was told that the change has not been read.
    is_told: bool,
}

impl Schedule {
    /// Returns what is to be done.
    pub fn step(&mut self, now: Instant, state: RulesState) -> Step {
        if state == RulesState::Changed {
            self.changed.get_or_insert(now);
        } else {
            (self.changed, self.is_told) = (None, false);
        }
        let is_late = self.is_late(now, state);
        // Reading takes long itself, while nobody can be told.
        let is_first = is_late && state == RulesState::Changed && !self.is_told;
        if self.is_due(now, state) && !is_first {
            return Step::Read;
        }
        self.is_told |= is_late;
        if is_late { Step::Distrust } else { Step::Keep }
    }

    /// Notes that an attempt to read has ended. `cost`: time of a CPU.
    pub fn has_read(&mut self, begun: Instant, ended: Instant, cost: Duration) {
        self.last = Some(Attempt {
            ended,
            pause: cost * PAUSE_FACTOR,
            took: ended.saturating_duration_since(begun),
        });
        (self.changed, self.is_told) = (None, false);
    }

    /// Counts time that was spent with the rules elsewhere.
    pub fn charge(&mut self, spent: Duration) {
        if let Some(last) = &mut self.last {
            last.pause += spent * PAUSE_FACTOR;
        }
    }

    /// Whether the next read would end too late for rules that have changed, or may have.
    fn is_late(&self, now: Instant, state: RulesState) -> bool {
        let Some(Attempt { ended, pause, took }) = self.last else {
            return false;
        };
        match (state, self.changed) {
            (RulesState::Changed, Some(changed)) => now.max(ended + pause) + took > changed + STALE_TTL,
            (RulesState::Polled, _) => pause > MAX_POLL_INTERVAL,
            _ => false,
        }
    }

    /// Whether rules may be read, and are to be.
    fn is_due(&self, now: Instant, state: RulesState) -> bool {
        let Some(last) = self.last else {
            return state != RulesState::Same;
        };
        let passed = now.saturating_duration_since(last.ended);
        let is_polled = passed >= POLL_INTERVAL;
        passed >= last.pause
            && match state {
                RulesState::Changed | RulesState::Missing { has_failed: false } => true,
                RulesState::Polled | RulesState::Missing { has_failed: true } => is_polled,
                RulesState::Same => false,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MISSING: RulesState = RulesState::Missing { has_failed: false };
    const FAILED: RulesState = RulesState::Missing { has_failed: true };

    /// A schedule after a read that took this time of a CPU, and the instant of its end.
    fn after(cost: Duration) -> (Schedule, Instant) {
        let (mut schedule, begun) = (Schedule::default(), Instant::now());
        assert_eq!(schedule.step(begun, MISSING), Step::Read);
        schedule.has_read(begun, begun + cost, cost);
        (schedule, begun + cost)
    }

    #[test]
    fn a_change_is_read_at_once_or_after_a_short_pause() {
        let (mut schedule, ended) = after(SECOND / 100);
        assert_eq!(schedule.step(ended + SECOND / 4, RulesState::Same), Step::Keep);
        // The pause is half a second.
        assert_eq!(schedule.step(ended + SECOND / 4, RulesState::Changed), Step::Keep);
        assert_eq!(schedule.step(ended + SECOND / 2, RulesState::Changed), Step::Read);
        schedule.has_read(ended + SECOND, ended + SECOND, SECOND / 1000);
        assert_eq!(schedule.step(ended + 9 * SECOND, RulesState::Changed), Step::Read);
    }

    #[test]
    fn former_rules_are_not_trusted_for_longer_than_two_seconds() {
        let (mut schedule, ended) = after(SECOND / 10);
        // Five seconds of pause.
        assert_eq!(schedule.step(ended + SECOND, RulesState::Changed), Step::Distrust);
        // Not trusted again shortly before they are read.
        assert_eq!(schedule.step(ended + 4 * SECOND, RulesState::Changed), Step::Distrust);
        assert_eq!(schedule.step(ended + 5 * SECOND, RulesState::Changed), Step::Read);
        schedule.has_read(ended + 5 * SECOND, ended + 5 * SECOND, SECOND / 10);
        assert_eq!(schedule.step(ended + 5 * SECOND, RulesState::Same), Step::Keep);
        // A change close to the end of the pause, or of rules that are the former ones again.
        assert_eq!(schedule.step(ended + 9 * SECOND, RulesState::Changed), Step::Keep);
        assert_eq!(schedule.step(ended + 9 * SECOND, RulesState::Same), Step::Keep);
        schedule.charge(SECOND);
        assert_eq!(schedule.step(ended + 9 * SECOND, RulesState::Changed), Step::Distrust);
    }

    #[test]
    fn rules_that_take_long_to_read_are_not_trusted_meanwhile() {
        let (mut schedule, begun) = (Schedule::default(), Instant::now());
        let ended = begun + 3 * SECOND;
        schedule.has_read(begun, ended, SECOND / 10);
        let later = ended + 100 * SECOND;
        assert_eq!(schedule.step(later, RulesState::Changed), Step::Distrust);
        assert_eq!(schedule.step(later + SECOND / 2, RulesState::Changed), Step::Read);
    }

    #[test]
    fn rules_without_events_are_read_every_two_seconds() {
        let (mut schedule, ended) = after(SECOND / 100);
        assert_eq!(schedule.step(ended + SECOND, RulesState::Polled), Step::Keep);
        assert_eq!(schedule.step(ended + 2 * SECOND, RulesState::Polled), Step::Read);
        let (mut schedule, ended) = after(SECOND);
        assert_eq!(schedule.step(ended, RulesState::Polled), Step::Distrust);
        assert_eq!(schedule.step(ended + 60 * SECOND, RulesState::Polled), Step::Read);
    }

    #[test]
    fn a_failed_read_of_the_rules_is_retried_after_two_seconds() {
        let (mut schedule, ended) = after(SECOND / 100);
        assert_eq!(schedule.step(ended + SECOND, FAILED), Step::Keep);
        assert_eq!(schedule.step(ended + 2 * SECOND, FAILED), Step::Read);
        assert_eq!(Schedule::default().step(ended, FAILED), Step::Read);
    }
}
