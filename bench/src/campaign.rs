//! A whole run: every scenario, round by round, every contender in its turn.

use std::time::Instant;

use anyhow::Result;

use crate::args::Plan;
use crate::contender::Setup;
use crate::hosts::Hosts;
use crate::interrupt;
use crate::lab::Lab;
use crate::measure::Sample;
use crate::order::turns;
use crate::scenario::{Bench, Scenario};

/// What a contender gave in a scenario, by round.
pub(crate) struct Series {
    pub(crate) scenario: Scenario,
    pub(crate) setup: Setup,
    pub(crate) samples: Vec<(usize, Sample)>,
}

/// Runs it all. Only what nobody is to blame for ends it early; a contender that fails has that as its result.
pub(crate) fn run(plan: &Plan) -> Result<Vec<Series>> {
    let lab = Lab::new()?;
    let hosts = Hosts::start(&lab)?;
    let mut all = Vec::new();
    for scenario in &plan.scenarios {
        let series = |setup: &Setup| Series {
            scenario: *scenario,
            setup: setup.clone(),
            samples: Vec::new(),
        };
        let mut table: Vec<_> = plan.setups.iter().map(series).collect();
        for round in 0..plan.rounds_of(scenario) {
            for turn in turns(plan.setups.len(), round) {
                interrupt::check()?;
                let began = Instant::now();
                let sample = measure(plan, scenario, &plan.setups[turn], &lab, &hosts);
                interrupt::check()?;
                tell(scenario, round, &plan.setups[turn], &sample, began);
                table[turn].samples.push((round, sample));
            }
        }
        all.append(&mut table);
    }
    Ok(all)
}

fn measure(plan: &Plan, scenario: &Scenario, setup: &Setup, lab: &Lab, hosts: &Hosts) -> Sample {
    let mut running = match setup.start(lab) {
        Ok(running) => running,
        Err(e) => return Sample::failed(format!("start: {e:#}")),
    };
    let bench = Bench {
        lab,
        hosts,
        running: &running,
        warm_up: plan.warm_up,
        length: plan.length,
    };
    let mut sample = scenario
        .run(&bench)
        .unwrap_or_else(|e| Sample::failed(format!("{e:#}")));
    if let Some(words) = running.death() {
        sample.errors.add(format!("it ended: {words}"));
    }
    sample
}

fn tell(scenario: &Scenario, round: usize, setup: &Setup, sample: &Sample, began: Instant) {
    let what = match sample.memory {
        Some(memory) => format!("{:.1} KiB", memory.resident / 1024.0),
        None => format!("{:.1}/s", sample.rate),
    };
    let errors = if sample.errors.total() > 0 {
        format!("  ERRORS: {}", sample.errors)
    } else {
        String::new()
    };
    let disturbed = if sample.is_disturbed() { "  (disturbed)" } else { "" };
    eprintln!(
        "{:<11} round {round}  {:<19} {:>2}  {what:>12}{disturbed}{errors}  [{:.1} s]",
        scenario.name,
        setup.contender.to_string(),
        setup.threads,
        began.elapsed().as_secs_f64()
    );
}
