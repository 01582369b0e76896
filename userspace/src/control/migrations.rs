//! Running and ended migrations of this balancer. The store writes them to disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use signalbox_core::availability::migration::guard::GuardKind;
use signalbox_core::availability::migration::{Migration, MigrationState, StepWatch};
use signalbox_core::discovered::merge::TesterOverrides;
use signalbox_core::limits::stats::{Counter, Histogram};

use super::migration_step::PeerCounts;
use super::probe_rounds::{NameProbes, ProbePace};

use crate::sys::unix_ms;

/// Number of ended migrations to keep.
const MAX_ENDED_MIGRATIONS: usize = 50;

/// Time for which the testers of another balancer's migration stay active without a new order.
const TESTERS_TTL: Duration = Duration::from_secs(60);

/// A migration, and the observations of its current step.
#[derive(Clone, Debug)]
pub struct WatchedMigration {
    pub migration: Migration,
    pub watch: StepWatch,
    /// Counts of this balancer.
    pub own: PeerCounts,
    /// Counts of the other balancers of the set, by their URLs.
    pub peers: BTreeMap<String, PeerCounts>,
    /// Rounds of probes.
    pub probes: Arc<NameProbes>,
}

/// Migrations of this balancer, by number, and testers of other balancers' migrations that it follows.
pub struct Migrations {
    own: Mutex<BTreeMap<u64, WatchedMigration>>,
    /// Testers of other balancers' migrations, by number, with the time of each one's last order.
    followed: Mutex<BTreeMap<u64, (TesterOverrides, Instant)>>,
    /// Number of this process, for balancers that add up its counts.
    process: u64,
    counters: MigrationCounters,
    pace: ProbePace,
}

/// Counters of migrations since the start of the process.
#[derive(Debug, Default)]
pub struct MigrationCounters {
    /// Migrations that have ended, in the order of [`MigrationCounters::OUTCOMES`].
    ended: [Counter; 3],
    /// Guards that have failed, in the order of [`GuardKind::ALL`].
    failed: [Counter; GuardKind::ALL.len()],
    /// Time from a failed guard, or an abort, until the earlier weights are active on all balancers.
    pub going_back: Histogram,
}

impl MigrationCounters {
    /// States in which a migration has ended.
    pub const OUTCOMES: [MigrationState; 3] = [
        MigrationState::Completed,
        MigrationState::RolledBack,
        MigrationState::Aborted,
    ];

    /// Returns the number of migrations by outcome.
    pub fn ended(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.ended.iter().map(Counter::get);
        Self::OUTCOMES.into_iter().map(MigrationState::as_str).zip(counts)
    }

    /// Returns the number of failures of each guard.
    pub fn failed(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.failed.iter().map(Counter::get);
        GuardKind::ALL.into_iter().map(GuardKind::as_str).zip(counts)
    }
}

impl Default for Migrations {
    fn default() -> Self {
        Self {
            own: Mutex::default(),
            followed: Mutex::default(),
            process: unix_ms(),
            counters: MigrationCounters::default(),
            pace: ProbePace::default(),
        }
    }
}

impl Migrations {
    /// Returns the number of this process.
    #[must_use]
    pub const fn process(&self) -> u64 {
        self.process
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> &MigrationCounters {
        &self.counters
    }

    /// Whether the names of a migration are still moving.
    #[must_use]
    pub fn is_moving(&self, id: u64) -> bool {
        let is_moving = |state| matches!(state, MigrationState::Running | MigrationState::Paused);
        self.own
            .lock()
            .get(&id)
            .is_some_and(|known| is_moving(known.migration.state))
    }

    /// Returns the pace of all probes.
    #[must_use]
    pub const fn pace(&self) -> &ProbePace {
        &self.pace
    }

    /// Counts a change of a migration.
    pub fn count(&self, migration: &Migration) {
        let outcome = MigrationCounters::OUTCOMES
            .iter()
            .position(|outcome| *outcome == migration.state);
        if let Some(at) = outcome {
            self.counters.ended[at].inc();
        }
        let guard = migration
            .failed_guard
            .filter(|_| migration.state == MigrationState::RollingBack || migration.steps.is_empty());
        if let Some(at) = GuardKind::ALL.iter().position(|known| Some(*known) == guard) {
            self.counters.failed[at].inc();
        }
        if let (Some(began), Some(ended)) = (migration.went_back_at, migration.ended) {
            let took = Duration::from_millis(ended.saturating_sub(began));
            self.counters.going_back.observe(took);
        }
    }

    /// Remembers the testers of another balancer's migration.
    pub fn follow_testers(&self, migration: u64, testers: TesterOverrides) {
        let mut followed = self.followed.lock();
        if testers.is_empty() {
            followed.remove(&migration);
        } else {
            followed.insert(migration, (testers, Instant::now()));
        }
    }

    /// Returns all testers to apply. Those of this balancer's own migrations take precedence.
    #[must_use]
    pub fn testers(&self) -> TesterOverrides {
        let mut followed = self.followed.lock();
        followed.retain(|_, (_, heard)| heard.elapsed() < TESTERS_TTL);
        let mut all = TesterOverrides::new();
        for (testers, _) in followed.values() {
            all.extend(testers.clone());
        }
        drop(followed);
        for known in self.own.lock().values() {
            all.extend(known.migration.testers());
        }
        all
    }

    /// Adds the migration that `make` returns for its number, unless it refuses. `make` gets the running ones.
    pub fn begin(
        &self,
        make: impl FnOnce(u64, &[&Migration]) -> Result<Migration, String>,
    ) -> Result<Migration, String> {
        let mut all = self.own.lock();
        let last = all.last_key_value().map_or(0, |(id, _)| *id);
        let running: Vec<_> = all
            .values()
            .map(|known| &known.migration)
            .filter(|m| !m.state.is_ended())
            .collect();
        let migration = make(unix_ms().max(last + 1), &running)?;
        all.insert(migration.id, watched(migration.clone()));
        Ok(migration)
    }

    /// Adds a migration of an earlier process, unless it is known.
    pub fn restore(&self, migration: Migration) {
        self.own
            .lock()
            .entry(migration.id)
            .or_insert_with(|| watched(migration));
    }

    /// Forgets a migration that could not be written.
    pub fn forget(&self, id: u64) {
        self.own.lock().remove(&id);
    }

    /// Forgets the oldest ended migrations beyond the number to keep, and returns their numbers.
    pub fn forget_old(&self) -> Vec<u64> {
        let mut all = self.own.lock();
        let ended: Vec<_> = all
            .values()
            .filter(|m| m.migration.state.is_ended())
            .map(|m| m.migration.id)
            .collect();
        let old = ended[..ended.len().saturating_sub(MAX_ENDED_MIGRATIONS)].to_vec();
        for id in &old {
            all.remove(id);
        }
        old
    }

    #[must_use]
    pub fn get(&self, id: u64) -> Option<Migration> {
        self.own.lock().get(&id).map(|known| known.migration.clone())
    }

    #[must_use]
    pub fn all(&self) -> Vec<Migration> {
        self.own.lock().values().map(|known| known.migration.clone()).collect()
    }

    /// Returns the running migrations.
    #[must_use]
    pub fn running(&self) -> Vec<WatchedMigration> {
        self.own
            .lock()
            .values()
            .filter(|known| !known.migration.state.is_ended())
            .cloned()
            .collect()
    }

    /// Changes a migration. `None`: no migration has this number.
    pub fn change<T>(&self, id: u64, change: impl FnOnce(&mut WatchedMigration) -> T) -> Option<T> {
        self.own.lock().get_mut(&id).map(change)
    }

    /// Leaves all running migrations to another process.
    pub fn hand_over(&self) {
        self.own.lock().retain(|_, known| known.migration.state.is_ended());
    }
}

fn watched(migration: Migration) -> WatchedMigration {
    WatchedMigration {
        migration,
        watch: StepWatch::default(),
        own: PeerCounts::default(),
        peers: BTreeMap::new(),
        probes: Arc::default(),
    }
}
