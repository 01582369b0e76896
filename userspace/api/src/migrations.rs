//! Migrations of names from one cluster to another.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use signalbox_core::availability::migration::Migration;
use signalbox_core::availability::migration::guard::GuardLimits;
use signalbox_core::availability::migration::probe::ProbePlan;

/// Answers about one migration.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MigrationAnswer {
    pub migration: Migration,
}

/// `GET /api/v1/migrations`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MigrationsAnswer {
    #[serde(default, deserialize_with = "readable")]
    pub migrations: Vec<Migration>,
}

/// A migration, or one of another version that this version cannot read.
#[derive(Deserialize)]
#[serde(untagged)]
enum ListedMigration {
    Known(Box<Migration>),
    Unknown(IgnoredAny),
}

fn readable<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Migration>, D::Error> {
    let all = Vec::<ListedMigration>::deserialize(from)?;
    let known = all.into_iter().filter_map(|one| match one {
        ListedMigration::Known(migration) => Some(*migration),
        ListedMigration::Unknown(_) => None,
    });
    Ok(known.collect())
}

/// Body of `POST /api/v1/migrations`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MigrationBody {
    pub from: String,
    pub to: String,
    #[serde(default)]
    pub names: Vec<String>,
    #[serde(default)]
    pub namespaces: Vec<String>,
    #[serde(default)]
    pub selectors: Vec<String>,
    /// True for all names of the old cluster that the new one serves too.
    #[serde(default)]
    pub all: bool,
    /// Addresses or prefixes of clients that get the new cluster first, in a separate step.
    #[serde(default)]
    pub testers: Vec<String>,
    #[serde(default = "default_steps")]
    pub steps: Vec<u32>,
    /// Time that each step is held.
    #[serde(default = "default_hold")]
    pub hold: f64,
    /// Share of faults in percent by which the new cluster may exceed the old one.
    #[serde(default = "default_max_errors")]
    pub max_errors: f64,
    /// Multiple of the old cluster's median and 95th percentile that a time may reach; 0: no limit.
    #[serde(default = "default_max_latency")]
    pub max_latency: f64,
    #[serde(default = "default_min_samples")]
    pub min_samples: u64,
    /// False: names are not asked for through hosts of both clusters.
    #[serde(default = "is_default")]
    pub probe: bool,
    /// Path of the probes.
    #[serde(default = "default_probe_path")]
    pub probe_path: String,
    /// Time from one round of probes to the next, in seconds.
    #[serde(default = "default_probe_every")]
    pub probe_every: f64,
    /// Time for an answer to a probe, in seconds.
    #[serde(default = "default_probe_timeout")]
    pub probe_timeout: f64,
    /// True to leave the other balancers of the set unchanged.
    #[serde(default)]
    pub only_here: bool,
    #[serde(default)]
    pub dry_run: bool,
}

const fn is_default() -> bool {
    true
}

fn default_probe_path() -> String {
    ProbePlan::default().path
}

fn default_probe_every() -> f64 {
    ProbePlan::default().every_ms as f64 / 1000.0
}

fn default_probe_timeout() -> f64 {
    ProbePlan::default().timeout_ms as f64 / 1000.0
}

fn default_steps() -> Vec<u32> {
    vec![5, 25, 50, 100]
}

const fn default_hold() -> f64 {
    60.0
}

fn default_max_errors() -> f64 {
    GuardLimits::default().max_error_permille as f64 / 10.0
}

fn default_max_latency() -> f64 {
    GuardLimits::default().max_latency_percent as f64 / 100.0
}

fn default_min_samples() -> u64 {
    GuardLimits::default().min_samples
}

/// Answer to `POST /api/v1/migrations/follow`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "StepAnswer"))]
pub struct StepAnswer<R> {
    pub report: R,
}
