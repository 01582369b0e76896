//! Whether hosts answer what the program begins. A program of somebody else that stands before ours may take the hosts'
//! SYN-ACKs: then each connection waits for a time-out, and nothing but the missing answers shows it.
//!
//! No client can cause it. A connection counts as begun when the client has sent data, after its handshake: a flood of SYNs
//! from forged addresses begins none, and clients with real addresses reach hosts that answer. A SYN-ACK of any host is
//! an answer, and begins the window again. Resets are not counted: a connection that is given up after three SYNs counts
//! as refused, too. A dead host answers nothing either, until its checks have failed: the window is longer than that
//! takes, begins again when the health of any host changes, and says nothing while a host has not been checked.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use signalbox_common::Reason;

use super::KernelPeek;
use crate::state::Snapshot;
use signalbox_core::routing::health::Health;

/// Number of connections of a window that must have begun.
const MIN_BEGUN: u64 = 20;
/// Time for which connections are left to userspace, the first time in a row, and the most.
const FIRST_FALLBACK_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_FALLBACK_TIMEOUT: Duration = Duration::from_secs(960);

/// Figures of one look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct AnswerCounts {
    begun: u64,
    answered: u64,
}

/// State of the hosts at a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HostsSeen {
    /// A number that changes with the health of any host.
    health: u64,
    /// Time after which checks have taken a dead host out; `None` where some host has not been checked yet.
    patience: Option<Duration>,
}

/// Looks at the answers of hosts.
pub(super) struct Answers {
    /// Figures at the beginning of the window.
    base: AnswerCounts,
    health: u64,
    /// Time of the first connection that began in the window.
    silent_since: Option<Instant>,
    pause: Duration,
    /// Time until which connections are left to userspace.
    gives_way_until: Option<Instant>,
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            base: AnswerCounts::default(),
            health: 0,
            silent_since: None,
            pause: FIRST_FALLBACK_TIMEOUT,
            gives_way_until: None,
        }
    }
}

impl Answers {
    /// Takes the figures of a look. Returns whether connections are left to userspace.
    fn look(&mut self, counts: AnswerCounts, hosts: HostsSeen, now: Instant) -> bool {
        if self.gives_way_until.is_some_and(|until| now < until) {
            return true;
        }
        let is_answered = counts.answered != self.base.answered;
        if is_answered {
            self.pause = FIRST_FALLBACK_TIMEOUT;
        }
        let patience = hosts.patience.filter(|_| hosts.health == self.health);
        let (false, None, Some(patience)) = (is_answered, self.gives_way_until.take(), patience) else {
            self.base = counts;
            self.health = hosts.health;
            self.silent_since = None;
            return false;
        };
        let begun = counts.begun - self.base.begun;
        if begun > 0 {
            let silent_since = *self.silent_since.get_or_insert(now);
            if begun >= MIN_BEGUN && now.duration_since(silent_since) >= patience {
                self.gives_way_until = Some(now + self.pause);
                self.pause = (self.pause * 2).min(MAX_FALLBACK_TIMEOUT);
            }
        }
        self.gives_way_until.is_some()
    }
}

impl HostsSeen {
    fn of(snapshot: &Snapshot) -> Self {
        let mut hasher = DefaultHasher::new();
        let mut is_checked = true;
        for host in snapshot.hosts.iter().flatten() {
            let health = host.health();
            is_checked &= health.0 != Health::Unknown;
            (health.0 as u8, health.1).hash(&mut hasher);
        }
        let checks = snapshot.model.clusters.iter().map(|cluster| &cluster.health);
        // Twice the time: a check that is under way when the host dies may succeed.
        let until_out = checks
            .map(|check| (check.interval * check.fall + check.timeout) * 2)
            .max();
        Self {
            health: hasher.finish(),
            patience: until_out.filter(|_| is_checked),
        }
    }
}

impl KernelPeek {
    /// Looks whether hosts answer.
    pub(super) fn look_for_answers(&self) {
        let count = |reason| self.peek.exit_count(reason);
        let answers = [Reason::PeekDelivered, Reason::PeekOverwritten, Reason::PeekChallenged];
        // The answers first: those of connections that begin between the two are not missed.
        let answered = answers.map(count).iter().sum();
        let counts = AnswerCounts {
            answered,
            begun: count(Reason::PeekRouted),
        };
        let hosts = HostsSeen::of(&self.shared.snapshot.load());
        let mut seen = self.answers.lock();
        let gives_way = seen.look(counts, hosts, Instant::now());
        let pause = seen
            .gives_way_until
            .map(|until| until.saturating_duration_since(Instant::now()));
        drop(seen);
        let gave_way = self.has_no_answers.swap(gives_way, Relaxed);
        if gives_way && !gave_way {
            tracing::warn!(
                suspect = SUSPECT,
                again_in_s = pause.unwrap_or_default().as_secs(),
                "No host has answered the kernel peek, though their checks succeed: where `datapath.peek` is `auto`, \
                 connections are left to userspace for a while."
            );
        }
        if !gives_way && gave_way {
            tracing::info!("The kernel peek routes connections again, and looks whether hosts answer.");
        }
    }

    /// Returns what is wrong with the answers of hosts, if anything.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let is_silent = self.has_no_answers.load(Relaxed);
        is_silent.then(|| format!("no host has answered the kernel peek: {SUSPECT}"))
    }
}

const SUSPECT: &str = "a foreign program may take packets before ours (`signalbox doctor` names it): remove it, \
                       have it attached after ours, or set `datapath: { peek: userspace }`";

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTS: HostsSeen = HostsSeen {
        health: 0,
        patience: Some(Duration::from_secs(10)),
    };

    fn after(seconds: u64, begun: u64, answered: u64) -> (u64, AnswerCounts) {
        (seconds, AnswerCounts { begun, answered })
    }

    /// Whether connections are left to userspace after each of these looks.
    fn looks(at: &mut Answers, start: Instant, looks: &[(u64, AnswerCounts)]) -> Vec<bool> {
        let each = looks.iter();
        each.map(|&(seconds, counts)| at.look(counts, HOSTS, start + Duration::from_secs(seconds)))
            .collect()
    }

    #[test]
    fn silence_counts_after_many_connections_and_a_long_time() {
        let start = Instant::now();
        let mut answers = Answers::default();
        let seen = [after(0, 1, 0), after(9, 100, 0), after(11, 100, 0)];
        assert_eq!(looks(&mut answers, start, &seen), [false, false, true]);
        let few = [after(0, 1, 0), after(100, 19, 0)];
        assert_eq!(looks(&mut Answers::default(), start, &few), [false, false]);
        let answered = [after(0, 1, 0), after(11, 100, 1), after(20, 199, 1)];
        assert_eq!(looks(&mut Answers::default(), start, &answered), [false, false, false]);
    }

    #[test]
    fn it_tries_again_and_waits_longer_each_time() {
        let start = Instant::now();
        let mut answers = Answers::default();
        let first = [after(0, 1, 0), after(11, 100, 0), after(70, 100, 0), after(71, 100, 0)];
        assert_eq!(looks(&mut answers, start, &first), [false, true, true, false]);
        let second = [
            after(72, 101, 0),
            after(90, 130, 0),
            after(209, 130, 0),
            after(210, 130, 0),
        ];
        assert_eq!(looks(&mut answers, start, &second), [false, true, true, false]);
        let mended = [
            after(211, 131, 1),
            after(212, 132, 1),
            after(230, 160, 1),
            after(289, 160, 1),
        ];
        assert_eq!(looks(&mut answers, start, &mended), [false, false, true, true]);
        assert_eq!(looks(&mut answers, start, &[after(290, 160, 1)]), [false]);
    }

    #[test]
    fn a_host_that_dies_is_its_checks_business() {
        let start = Instant::now();
        let mut answers = Answers::default();
        looks(&mut answers, start, &[after(0, 1, 0)]);
        let now = start + Duration::from_secs(11);
        let counts = AnswerCounts {
            begun: 100,
            answered: 0,
        };
        let changed = HostsSeen { health: 1, ..HOSTS };
        assert!(!answers.look(counts, changed, now), "its health has changed");
        let unchecked = HostsSeen {
            patience: None,
            ..changed
        };
        let later = AnswerCounts {
            begun: 200,
            answered: 0,
        };
        assert!(!answers.look(later, unchecked, now + Duration::from_secs(100)));
    }
}
