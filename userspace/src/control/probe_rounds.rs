//! Rounds of a migration's probes: when one is due, how fast it goes, and what the last one has found.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use signalbox_core::availability::migration::probe::{ProbePlan, ProbeRound};
use tokio::sync::Semaphore;

/// Time from one request to the next: fifty a second, for all migrations and trials.
const REQUEST_INTERVAL: Duration = Duration::from_millis(20);

/// Time after which a first round that was broken off begins again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Rounds of a migration.
#[derive(Debug, Default)]
pub struct NameProbes {
    rounds: Mutex<Rounds>,
    /// Names of the present round that were asked for.
    done: AtomicUsize,
}

#[derive(Debug, Default)]
struct Rounds {
    /// Time at which the last round began; `None`: none has.
    began: Option<Instant>,
    is_running: bool,
    /// Number of rounds that have begun.
    begun: u64,
    last: Option<ProbeRound>,
    /// Whether the migration has taken the results of the last round.
    is_taken: bool,
}

impl NameProbes {
    /// Results of the last round that the migration has taken, and the number of rounds that have begun.
    #[must_use]
    pub fn last(&self) -> (Option<ProbeRound>, u64) {
        let rounds = self.rounds.lock();
        (rounds.last.clone().filter(|_| rounds.is_taken), rounds.begun)
    }

    /// Takes the results of the last round: once.
    #[must_use]
    pub fn take(&self) -> Option<ProbeRound> {
        let mut rounds = self.rounds.lock();
        let is_new = !std::mem::replace(&mut rounds.is_taken, true);
        rounds.last.clone().filter(|_| is_new)
    }

    /// Number of names of the present round that were asked for.
    #[must_use]
    pub fn done(&self) -> usize {
        self.done.load(Relaxed)
    }

    /// Counts a name that was asked for.
    pub(super) fn count(&self) {
        self.done.fetch_add(1, Relaxed);
    }

    /// Begins a round if one is due. The results of the last one must have been taken.
    pub(super) fn begin(self: &Arc<Self>, plan: &ProbePlan, hold_ms: u64) -> Option<RunningRound> {
        let mut rounds = self.rounds.lock();
        let pause = match rounds.last {
            Some(_) => Duration::from_millis(plan.interval_ms(hold_ms)),
            None => RETRY_INTERVAL,
        };
        let is_early = rounds.began.is_some_and(|began| began.elapsed() < pause);
        if rounds.is_running || is_early || rounds.last.is_some() && !rounds.is_taken {
            return None;
        }
        self.done.store(0, Relaxed);
        (rounds.is_running, rounds.began) = (true, Some(Instant::now()));
        rounds.begun += 1;
        Some(RunningRound {
            of: Arc::clone(self),
            number: rounds.begun,
        })
    }
}

/// A round that runs. Another one may begin once it is dropped.
pub(super) struct RunningRound {
    of: Arc<NameProbes>,
    /// Number of the round, from 1.
    pub(super) number: u64,
}

impl RunningRound {
    /// Counts a name that was asked for.
    pub(super) fn count(&self) {
        self.of.count();
    }

    /// Leaves the results to the migration.
    pub(super) fn end(self, results: ProbeRound) {
        let mut rounds = self.of.rounds.lock();
        (rounds.last, rounds.is_taken) = (Some(results), false);
    }
}

impl Drop for RunningRound {
    fn drop(&mut self) {
        self.of.rounds.lock().is_running = false;
    }
}

/// Pace of all requests of a process, and the one place for a trial.
#[derive(Debug)]
pub struct ProbePace {
    /// Time of the next request.
    next: Mutex<Instant>,
    pub(super) trials: Semaphore,
}

impl Default for ProbePace {
    fn default() -> Self {
        Self {
            next: Mutex::new(Instant::now()),
            trials: Semaphore::new(1),
        }
    }
}

impl ProbePace {
    /// Waits for the next request's time.
    pub(super) async fn turn(&self) {
        let at = {
            let mut next = self.next.lock();
            let at = (*next).max(Instant::now());
            *next = at + REQUEST_INTERVAL;
            at
        };
        tokio::time::sleep_until(at.into()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_waits_until_the_last_one_was_taken() {
        let plan = ProbePlan {
            every_ms: 0,
            ..ProbePlan::default()
        };
        let probes = Arc::<NameProbes>::default();
        assert!(probes.take().is_none());
        let first = probes.begin(&plan, 0).unwrap();
        assert!(probes.begin(&plan, 0).is_none(), "one at a time");
        first.end(ProbeRound::default());
        probes.rounds.lock().began = None;
        assert!(probes.begin(&plan, 0).is_none(), "nobody has seen its results");
        assert!(probes.take().is_some() && probes.take().is_none());
        let second = probes.begin(&plan, 0).unwrap();
        assert_eq!((second.number, probes.last().1), (2, 2));
        // Its task has ended without results.
        drop(second);
        probes.rounds.lock().began = None;
        assert!(probes.begin(&plan, 0).is_some());
    }
}
