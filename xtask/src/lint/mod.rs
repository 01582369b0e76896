//! `lint`: checks the files in packaging/ that operators get beside the program, and the release's workflows, by the
//! tools that read them.
//!
//! Before the real files each lint is given broken ones: a mistake that it misses there would go unnoticed here.

mod alerts;
mod broken;
mod deny;
mod files;
mod grafana;
pub(crate) mod k8s;
pub(crate) mod kube_tools;
mod metrics;
mod promql;
mod release;
mod units;

use std::path::Path;

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::{exec::find_program, root::root};
use broken::Broken;
pub(crate) use k8s::OVERLAYS;
pub(crate) use kube_tools::kustomize;

#[derive(Default, clap::Args)]
pub(crate) struct LintArgs {
    /// Parts to check; all of them if none is named
    what: Vec<Subject>,
    /// Write the files that are made of others: the rules of Prometheus as an object of Kubernetes
    #[arg(long)]
    update: bool,
}

/// Part of packaging/ that has a lint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Subject {
    /// Units of systemd: their exposure, their keys, their capabilities
    Units,
    /// Alerts and recording rules of Prometheus, and the runbook
    Alerts,
    /// Dashboards of Grafana
    Grafana,
    /// Manifests for Kubernetes and OpenShift
    K8s,
    /// Licences and sources of libraries, by cargo-deny
    Deny,
    /// The workflow of releases
    Release,
}

/// Lint of one part.
struct Lint {
    /// Programs that it runs.
    tools: &'static [&'static str],
    /// Installs tools that no package of Debian 12 has.
    prepare: fn() -> Result<()>,
    /// Returns the mistakes in the files under a root.
    check: fn(&Path) -> Result<Vec<String>>,
    broken: &'static [Broken],
}

impl Subject {
    fn lint(self) -> Lint {
        match self {
            Self::Units => units::LINT,
            Self::Alerts => alerts::LINT,
            Self::Grafana => grafana::LINT,
            Self::K8s => k8s::LINT,
            Self::Deny => deny::LINT,
            Self::Release => release::LINT,
        }
    }

    fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

impl Lint {
    /// Fails where a tool is missing.
    fn ready(&self) -> Result<()> {
        if let Some(missing) = self.tools.iter().find(|tool| find_program(tool).is_none()) {
            bail!("`{missing}` is missing; `cargo xtask test --only install` installs it");
        }
        (self.prepare)()
    }
}

/// Installs tools that lints need beside Debian's packages; reports those that are not available.
pub(crate) fn install() {
    for subject in Subject::value_variants() {
        if let Err(why) = subject.lint().ready() {
            println!("lint {} will skip: {why:#}", subject.name());
        }
    }
}

pub(crate) fn run(args: &LintArgs) -> Result<()> {
    run_with(args, &mut |line| println!("{line}"))
}

/// Runs lints; each line of output goes to `say`.
pub(crate) fn run_with(args: &LintArgs, say: &mut dyn FnMut(&str)) -> Result<()> {
    let root = root()?;
    if args.update {
        k8s::update(&root)?;
    }
    let mut problems = Vec::new();
    for subject in Subject::value_variants() {
        if !args.what.is_empty() && !args.what.contains(subject) {
            continue;
        }
        let (name, lint) = (subject.name(), subject.lint());
        if let Err(why) = lint.ready() {
            if std::env::var("REQUIRE_PRIVILEGED_TESTS").is_ok_and(|value| value == "1") {
                return Err(why);
            }
            say(&format!("SKIP lint {name}: {why:#}"));
            continue;
        }
        broken::notices_all(&root, &name, &lint)?;
        let found = (lint.check)(&root)?;
        if found.is_empty() {
            say(&format!(
                "lint {name}: ok, and notices {} broken files",
                lint.broken.len()
            ));
        }
        problems.extend(found);
    }
    if problems.is_empty() {
        return Ok(());
    }
    for problem in &problems {
        eprintln!("{problem}");
    }
    bail!("{} problems in what is packaged", problems.len())
}
