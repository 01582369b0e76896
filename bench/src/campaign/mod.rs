//! A whole run: every scenario, round by round, every contender in its turn.

mod offered;
pub(crate) mod programs;

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::args::BenchPlan;
use crate::bpf::{self, Program};
use crate::contender::Setup;
use crate::hosts::Hosts;
use crate::interrupt;
use crate::lab::Lab;
use crate::measure::Sample;
use crate::order::turns;
use crate::scenario::{Bench, Ruleset, Scenario, ScenarioKind};
use programs::Programs;

/// Samples of a contender in a scenario, by round.
pub(crate) struct Series {
    pub(crate) scenario: Scenario,
    pub(crate) setup: Setup,
    pub(crate) samples: Vec<(usize, Sample)>,
    /// Why the contender does not take part, if it does not.
    pub(crate) absence: Option<String>,
}

/// Results of a run.
pub(crate) struct Findings {
    pub(crate) series: Vec<Series>,
    pub(crate) programs: Vec<Programs>,
}

/// Runs the plan. Only errors that are no contender's end it early; a contender that fails has that as its result.
pub(crate) fn run(plan: &BenchPlan) -> Result<Findings> {
    let lab = Lab::new()?;
    let run = Run {
        plan,
        hosts: &Hosts::start(&lab)?,
        lab: &lab,
    };
    let mut series = Vec::new();
    for scenario in &plan.scenarios {
        let table = run.scenario(scenario, &series)?;
        series.extend(table);
    }
    let programs = match programs::count(&run) {
        Err(e) if !interrupt::raised() => {
            eprintln!("{e:#}");
            Vec::new()
        }
        result => result?,
    };
    Ok(Findings { series, programs })
}

/// Context of a run: plan, hosts and lab.
struct Run<'a> {
    plan: &'a BenchPlan,
    hosts: &'a Hosts,
    lab: &'a Lab,
}

impl Run<'_> {
    fn scenario(&self, scenario: &Scenario, known: &[Series]) -> Result<Vec<Series>> {
        let setups = self.plan.setups_of(scenario);
        let _ruleset = Ruleset::load(&self.lab.lb, scenario.condition)?;
        let offered = match scenario.kind {
            ScenarioKind::Latency(_) => offered::half_rate(self, scenario, known, &setups)?,
            _ => f64::NAN,
        };
        let series = |setup: &Setup| Series {
            scenario: *scenario,
            setup: setup.clone(),
            samples: Vec::new(),
            absence: setup.absence(scenario),
        };
        let mut table: Vec<_> = setups.iter().map(series).collect();
        for absent in table.iter().filter(|series| series.absence.is_some()) {
            let why = absent.absence.as_deref().unwrap_or_default();
            eprintln!("{:<13} without  {:<22} {why}", scenario.name, absent.setup);
        }
        for round in 0..self.plan.rounds_of(scenario) {
            for turn in turns(setups.len(), round) {
                interrupt::check()?;
                if table[turn].absence.is_some() {
                    continue;
                }
                let began = Instant::now();
                let (warm_up, length) = (self.plan.warm_up, self.plan.length);
                let (sample, _) = self.measure(scenario, &setups[turn], warm_up, length, offered);
                interrupt::check()?;
                tell(scenario, round, &setups[turn], &sample, began);
                table[turn].samples.push((round, sample));
            }
        }
        Ok(table)
    }

    /// Runs one turn of one contender: its sample, and the BPF programs it had at the end.
    fn measure(
        &self,
        scenario: &Scenario,
        setup: &Setup,
        warm_up: Duration,
        length: Duration,
        offered: f64,
    ) -> (Sample, Vec<Program>) {
        let mut running = match setup.start(self.lab, scenario) {
            Ok(running) => running,
            Err(e) => return (Sample::failed(format!("start: {e:#}")), Vec::new()),
        };
        let bench = Bench {
            lab: self.lab,
            hosts: self.hosts,
            running: &running,
            warm_up,
            length,
            offered,
        };
        let mut sample = scenario
            .run(&bench)
            .unwrap_or_else(|e| Sample::failed(format!("{e:#}")));
        let programs = bpf::programs_of(&running.pids());
        if let Some(words) = running.death() {
            sample.errors.add(format!("it ended: {words}"));
        }
        (sample, programs)
    }
}

fn tell(scenario: &Scenario, round: usize, setup: &Setup, sample: &Sample, began: Instant) {
    let what = match (sample.memory, sample.change, sample.anatomy) {
        (Some(memory), ..) => format!("{:.1} KiB", memory.resident / 1024.0),
        (_, Some(change), _) => format!("{:.1} ms", change.until_all / 1e3),
        (.., Some([.., Some(whole)])) => format!("{whole:.1} µs"),
        _ => format!("{:.1}/s", sample.rate),
    };
    let errors = if sample.errors.total() > 0 {
        format!("  ERRORS: {}", sample.errors)
    } else {
        String::new()
    };
    let disturbed = if sample.is_disturbed() { "  (disturbed)" } else { "" };
    eprintln!(
        "{:<13} round {round}  {setup:<22} {what:>12}{disturbed}{errors}  [{:.1} s]",
        scenario.name,
        began.elapsed().as_secs_f64()
    );
}
