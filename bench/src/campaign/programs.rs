//! After everything else: what signalbox' BPF programs cost, in runs of their own.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::Run;
use crate::bpf::{Counting, Program};
use crate::interrupt;
use crate::scenario::CLOSED_LOOP;

/// In which scenarios: many small packets, and few large ones.
const SCENARIOS: [&str; 2] = [CLOSED_LOOP, "bulk-4"];

/// One contender in one of them.
#[derive(Debug, Serialize)]
pub(crate) struct Programs {
    pub(crate) scenario: &'static str,
    pub(crate) contender: String,
    pub(crate) threads: usize,
    pub(crate) programs: Vec<Program>,
}

/// All of them, with the largest number of threads.
pub(super) fn count(run: &Run<'_>) -> Result<Vec<Programs>> {
    let mut all = Vec::new();
    let scenarios = run.plan.scenarios.iter().filter(|s| SCENARIOS.contains(&s.name));
    let turns: Vec<_> = scenarios
        .flat_map(|s| run.plan.with_programs().map(move |setup| (s, setup)))
        .collect();
    if turns.is_empty() {
        return Ok(all);
    }
    let _counting = Counting::start()?;
    for (scenario, setup) in turns {
        let length = run.plan.length.min(LENGTH);
        let (sample, programs) = run.measure(scenario, setup, WARM_UP, length, f64::NAN);
        interrupt::check()?;
        eprintln!("{:<13} programs {setup:<22} {}", scenario.name, sample.errors);
        all.push(Programs {
            scenario: scenario.name,
            contender: setup.contender.to_string(),
            threads: setup.threads,
            programs: programs.into_iter().filter(|p| p.runs > 0).collect(),
        });
    }
    Ok(all)
}

const LENGTH: Duration = Duration::from_secs(1);
const WARM_UP: Duration = Duration::from_millis(250);

/// How long one of them takes, for [`crate::args::Plan::estimate`], and how many scenarios there are of them.
pub(crate) const TIME: (Duration, usize) = (WARM_UP.saturating_add(LENGTH), SCENARIOS.len());
