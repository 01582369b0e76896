//! Files outside packaging/ that lints compare with its contents.

pub(super) const METRICS: &str = "docs/metrics.md";
pub(super) const RUNBOOK: &str = "docs/runbook.md";
pub(super) const KUBERNETES: &str = "docs/kubernetes.md";
pub(super) const CONFIGURATION: &str = "docs/configuration.md";
/// Table of the capabilities that signalbox uses. `signalbox doctor` and the warnings at the start use it.
pub(super) const CAPABILITIES: &str = "userspace/kernel/src/capabilities.rs";
/// Names the place where the sources are published.
pub(super) const MANIFEST: &str = "Cargo.toml";

/// Rules for libraries.
pub(super) const DENY: &str = "deny.toml";
/// Workflow of releases.
pub(super) const RELEASE: &str = ".github/workflows/release.yml";
/// Workflow of changes, and of everything once a week.
pub(super) const CI: &str = ".github/workflows/ci.yml";

pub(super) const ALL: [&str; 9] = [
    METRICS,
    RUNBOOK,
    KUBERNETES,
    CONFIGURATION,
    CAPABILITIES,
    MANIFEST,
    DENY,
    RELEASE,
    CI,
];
