//! Cost of signalbox' BPF programs, measured after everything else in separate runs.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::Run;
use crate::bpf::{Counting, Program};
use crate::interrupt;
use crate::scenario::CLOSED_LOOP;

/// Scenarios of the measurement: many small packets, and few large ones.
const SCENARIOS: [&str; 2] = [CLOSED_LOOP, "bulk-4"];

/// BPF programs of one contender in one scenario.
#[derive(Debug, Serialize)]
pub(crate) struct Programs {
    pub(crate) scenario: &'static str,
    pub(crate) contender: String,
    pub(crate) threads: usize,
    pub(crate) programs: Vec<Program>,
}

/// Measures all contenders with BPF programs, with the largest number of threads.
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
        let length = run.plan.length.min(MEASURE_INTERVAL);
        let (sample, programs) = run.measure(scenario, setup, WARM_UP_INTERVAL, length, f64::NAN);
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

const MEASURE_INTERVAL: Duration = Duration::from_secs(1);
const WARM_UP_INTERVAL: Duration = Duration::from_millis(250);

/// Duration of one measurement, for [`crate::args::BenchPlan::estimate`], and the number of scenarios.
pub(crate) const TIME: (Duration, usize) = (WARM_UP_INTERVAL.saturating_add(MEASURE_INTERVAL), SCENARIOS.len());
