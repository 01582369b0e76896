//! Metrics of migrations.

use std::fmt;

use signalbox_core::availability::migration::MigrationState;

use super::{MetricWriter, Scrape};

/// States of migrations that have not ended.
const RUNNING: [MigrationState; 4] = [
    MigrationState::Running,
    MigrationState::Paused,
    MigrationState::RollingBack,
    MigrationState::Aborting,
];

impl Scrape {
    pub(super) fn migrations(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let migrations = &self.0.migrations;
        let running = migrations.running();
        let count = |state| running.iter().filter(|known| known.migration.state == state).count();
        out.gauge(
            "migrations",
            "Migrations that have not ended",
            RUNNING.map(|state| (vec![("state", state.as_str())], count(state) as f64)),
        )?;
        let names: usize = running.iter().map(|known| known.migration.names.len()).sum();
        out.gauge(
            "migration_names",
            "Names that migrations move now",
            [(Vec::new(), names as f64)],
        )?;
        let waiting = running.iter().filter(|known| !known.migration.waits_for.is_empty());
        out.gauge(
            "migrations_waiting",
            "Migrations that wait for another balancer",
            [(Vec::new(), waiting.count() as f64)],
        )?;
        let counters = migrations.counters();
        let ended = counters.ended().map(|(outcome, n)| (vec![("outcome", outcome)], n));
        out.counter("migrations_ended", "Migrations that have ended", ended)?;
        let failed = counters.failed().map(|(guard, n)| (vec![("guard", guard)], n));
        out.counter(
            "migration_guard_failures",
            "Guards whose failure has rolled a migration back",
            failed,
        )?;
        out.seconds(
            "migration_going_back",
            "Time from a failed guard or an abort until the weights from before were restored",
            [(Vec::new(), &counters.going_back)],
        )
    }
}
