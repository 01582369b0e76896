//! From samples to what is read: a summary of each series, as JSON and as Markdown.

mod markdown;

use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use crate::campaign::Series;
use crate::contender::{BASELINE, REFERENCE};
use crate::facts::Facts;
use crate::load::Errors;
use crate::measure::Sample;
use crate::scenario::Scenario;
use crate::stats::{Spread, paired};

/// Everything, as in `latest.json`.
#[derive(Serialize)]
pub(crate) struct Report {
    facts: Facts,
    seconds_taken: f64,
    rows: Vec<Row>,
}

/// One contender in one scenario.
#[derive(Serialize)]
struct Row {
    scenario: Scenario,
    contender: String,
    threads: usize,
    summary: Summary,
    errors: Errors,
    /// In how many rounds others used the machine too.
    disturbed: usize,
    samples: Vec<Sample>,
}

/// Over the rounds. µs for times, bytes for memory.
#[derive(Serialize)]
struct Summary {
    work: Option<Spread>,
    rate: Option<Spread>,
    gbit: Option<Spread>,
    /// Rate (or resident memory) by that of HAProxy with as many threads in the same round.
    ratio: Option<Spread>,
    mean: Option<Spread>,
    p50: Option<Spread>,
    p99: Option<Spread>,
    cpu: Option<Spread>,
    /// CPU less that of plain forwarding in the same round.
    added_cpu: Option<Spread>,
    own_cpu: Option<Spread>,
    resident: Option<Spread>,
    /// Kernel memory less that of plain forwarding.
    added_kernel: Option<Spread>,
}

impl Report {
    /// Makes it.
    pub(crate) fn new(facts: Facts, seconds_taken: f64, all: &[Series]) -> Self {
        Self {
            facts,
            seconds_taken,
            rows: all.iter().map(|series| Row::new(series, all)).collect(),
        }
    }

    /// Writes `latest.json` and `latest.md`; the latter's text.
    pub(crate) fn write(&self, dir: &Path) -> Result<String> {
        let text = markdown::text(self);
        std::fs::create_dir_all(dir)?;
        std::fs::write(dir.join("latest.json"), serde_json::to_string_pretty(self)? + "\n")?;
        std::fs::write(dir.join("latest.md"), &text)?;
        Ok(text)
    }

    /// How many rows have errors.
    pub(crate) fn failed(&self) -> usize {
        self.rows.iter().filter(|row| row.errors.total() > 0).count()
    }
}

impl Row {
    fn new(series: &Series, all: &[Series]) -> Self {
        let samples = &series.samples;
        let of = |value: &dyn Fn(&Sample) -> Option<f64>| Spread::of(samples.iter().filter_map(|(_, s)| value(s)));
        // Forwarding has no threads: it is compared with the first there is.
        let other = |name: &str, threads: usize| -> &[(usize, Sample)] {
            let found = all.iter().find(|other| {
                other.scenario == series.scenario
                    && (other.setup.threads == threads || threads == 0)
                    && other.setup.contender.to_string() == name
            });
            found.map_or(&[], |other| &other.samples)
        };
        let (reference, baseline) = (other(REFERENCE, series.setup.threads), other(BASELINE, 0));
        let main = |s: &Sample| s.memory.map_or(s.rate, |memory| memory.resident);
        let mut errors = Errors::default();
        samples.iter().for_each(|(_, s)| errors.merge(&s.errors));
        // A socket of the client and one of a host are there without a balancer too.
        let kernel = |s: &Sample| s.memory.map(|memory| memory.kernel);
        let summary = Summary {
            work: of(&|s| Some(s.work)),
            rate: of(&|s| Some(s.rate)),
            gbit: of(&|s| Some(s.gbit)),
            ratio: paired(samples, reference, |mine, theirs| Some(main(mine) / main(theirs))),
            mean: of(&|s| Some(s.latency?.mean)),
            p50: of(&|s| Some(s.latency?.p50)),
            p99: of(&|s| Some(s.latency?.p99)),
            cpu: of(&|s| Some(s.cpu)),
            added_cpu: paired(samples, baseline, |mine, base| Some(mine.cpu - base.cpu)),
            own_cpu: of(&|s| Some(s.own_cpu)),
            resident: of(&|s| Some(s.memory?.resident)),
            added_kernel: paired(samples, baseline, |mine, base| Some(kernel(mine)? - kernel(base)?)),
        };
        Self {
            scenario: series.scenario,
            contender: series.setup.contender.to_string(),
            threads: series.setup.threads,
            summary,
            errors,
            disturbed: samples.iter().filter(|(_, s)| s.is_disturbed()).count(),
            samples: samples.iter().map(|(_, s)| s.clone()).collect(),
        }
    }
}
