//! Row of the results: one contender's rounds in one scenario, summarised alone and compared with the others'.

use serde::Serialize;

use crate::campaign::Series;
use crate::contender::{BASELINE, REFERENCE};
use crate::load::Errors;
use crate::load::anatomy::PARTS;
use crate::measure::Sample;
use crate::scenario::Scenario;
use crate::stats::{Spread, paired};

/// Results of one contender in one scenario.
#[derive(Serialize)]
pub(super) struct Row {
    pub(super) scenario: Scenario,
    pub(super) contender: String,
    pub(super) threads: usize,
    pub(super) summary: Summary,
    pub(super) errors: Errors,
    /// Why the contender did not take part: not installed, or not supported.
    pub(super) absence: Option<String>,
    /// Number of rounds in which others used the machine, too.
    pub(super) disturbed: usize,
    pub(super) samples: Vec<Sample>,
}

/// Spreads over the rounds. µs for times, bytes for memory.
#[derive(Serialize)]
pub(super) struct Summary {
    pub(super) work: Option<Spread>,
    pub(super) rate: Option<Spread>,
    pub(super) gbit: Option<Spread>,
    pub(super) offered: Option<Spread>,
    /// Ratio to HAProxy with as many threads in the same round: of rates, of p99 where the rate is fixed, of resident
    /// memory where there is none, of the time until all new names answered.
    pub(super) ratio: Option<Spread>,
    pub(super) mean: Option<Spread>,
    pub(super) p50: Option<Spread>,
    pub(super) p99: Option<Spread>,
    pub(super) p999: Option<Spread>,
    pub(super) slowest: Option<Spread>,
    pub(super) cpu: Option<Spread>,
    /// CPU time beyond that of plain forwarding in the same round.
    pub(super) added_cpu: Option<Spread>,
    /// Ratio of the median of `added_cpu` to that of HAProxy with as many threads.
    pub(super) added_ratio: Option<f64>,
    pub(super) own_cpu: Option<Spread>,
    pub(super) resident: Option<Spread>,
    /// Kernel memory beyond that of plain forwarding.
    pub(super) added_kernel: Option<Spread>,
    /// Flows per second that a second node received, and bytes for each.
    pub(super) replicated: Option<Spread>,
    pub(super) replicated_bytes: Option<Spread>,
    pub(super) mean_lag: Option<Spread>,
    pub(super) p99_lag: Option<Spread>,
    /// Time until all new names answered, longest latency and failed requests until then, resident memory afterwards.
    pub(super) until_all: Option<Spread>,
    pub(super) worst: Option<Spread>,
    pub(super) failed: Option<Spread>,
    pub(super) resident_after: Option<Spread>,
    /// Percentage of connections without an answer.
    pub(super) lost: Option<Spread>,
    /// Parts of a connection.
    pub(super) anatomy: [Option<Spread>; PARTS],
}

impl Row {
    /// Row of a series; `all` are there to be compared with.
    pub(super) fn new(series: &Series, all: &[Series]) -> Self {
        let samples = &series.samples;
        let of = |value: &dyn Fn(&Sample) -> Option<f64>| Spread::of(samples.iter().filter_map(|(_, s)| value(s)));
        // Forwarding has no threads: it is compared with the series that has most.
        let other = |name: &str, threads: usize| -> &[(usize, Sample)] {
            let fits = all.iter().filter(|other| {
                other.scenario == series.scenario
                    && (other.setup.threads == threads || threads == 0)
                    && other.setup.contender.to_string() == name
            });
            let found = fits.max_by_key(|other| other.setup.threads);
            found.map_or(&[], |other| &other.samples)
        };
        let (reference, baseline) = (other(REFERENCE, series.setup.threads), other(BASELINE, 0));
        let added = |samples: &[_]| paired(samples, baseline, |mine: &Sample, base| Some(mine.cpu - base.cpu));
        let main = |s: &Sample| match (s.memory, s.offered, s.latency) {
            _ if s.change.is_some() => s.change.map_or(f64::NAN, |change| change.until_all),
            (Some(memory), ..) => memory.resident,
            (None, Some(_), Some(latency)) => latency.p99,
            _ => s.rate,
        };
        let mut errors = Errors::default();
        samples.iter().for_each(|(_, s)| errors.merge(&s.errors));
        // A socket of the client and one of a host are there without a balancer too.
        let kernel = |s: &Sample| s.memory.map(|memory| memory.kernel);
        let summary = Summary {
            work: of(&|s| Some(s.work)),
            rate: of(&|s| Some(s.rate)),
            gbit: of(&|s| Some(s.gbit)),
            offered: of(&|s| s.offered),
            ratio: paired(samples, reference, |mine, theirs| Some(main(mine) / main(theirs))),
            mean: of(&|s| Some(s.latency?.mean)),
            p50: of(&|s| Some(s.latency?.p50)),
            p99: of(&|s| Some(s.latency?.p99)),
            p999: of(&|s| Some(s.latency?.p999)),
            slowest: of(&|s| Some(s.latency?.slowest)),
            cpu: of(&|s| Some(s.cpu)),
            added_cpu: added(samples),
            added_ratio: quotient(added(samples), added(reference)),
            own_cpu: of(&|s| Some(s.own_cpu)),
            resident: of(&|s| Some(s.memory?.resident)),
            added_kernel: paired(samples, baseline, |mine, base| Some(kernel(mine)? - kernel(base)?)),
            replicated: of(&|s| Some(s.replication?.flows)),
            replicated_bytes: of(&|s| Some(s.replication?.bytes)),
            mean_lag: of(&|s| Some(s.replication?.mean_lag)),
            p99_lag: of(&|s| Some(s.replication?.p99_lag)),
            until_all: of(&|s| Some(s.change?.until_all)),
            worst: of(&|s| Some(s.change?.worst)),
            failed: of(&|s| Some(s.change?.failed)),
            resident_after: of(&|s| Some(s.change?.resident)),
            lost: of(&|s| s.lost),
            anatomy: std::array::from_fn(|part| of(&|s| s.anatomy?[part])),
        };
        Self {
            scenario: series.scenario,
            contender: series.setup.contender.to_string(),
            threads: series.setup.threads,
            summary,
            errors,
            absence: series.absence.clone(),
            disturbed: samples.iter().filter(|(_, s)| s.is_disturbed()).count(),
            samples: samples.iter().map(|(_, s)| s.clone()).collect(),
        }
    }
}

/// Ratio of medians, not of rounds: a difference may be nearly zero, and a quotient by that could be anything.
fn quotient(mine: Option<Spread>, theirs: Option<Spread>) -> Option<f64> {
    let theirs = theirs?.median;
    (theirs > 0.0).then_some(mine?.median / theirs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    #[test]
    fn added_cost_excludes_forwarding_and_is_relative_to_haproxy() {
        let rows = fixture::rows();
        let row = |name: &str, threads: usize| {
            let is = |r: &&Row| (r.contender.as_str(), r.threads) == (name, threads) && r.scenario.name == "unique-100";
            &rows.iter().find(is).unwrap().summary
        };
        let added = |name: &str, threads| {
            (
                row(name, threads).added_cpu.unwrap().median,
                row(name, threads).added_ratio,
            )
        };
        assert_eq!(added("direct", 0), (0.0, Some(0.0)));
        assert_eq!(added("haproxy", 1), (40.0, Some(1.0)));
        assert_eq!(added("signalbox-auto", 1), (10.0, Some(0.25)));
        assert_eq!(added("signalbox-auto", 2), (10.0, Some(0.125)));
        assert_eq!(row("signalbox-auto", 2).ratio.unwrap().median, 1.5);
        assert_eq!(row("direct", 0).ratio.unwrap().median, 2.0);
    }

    #[test]
    fn a_ratio_compares_the_figure_that_its_scenario_measures() {
        let rows = fixture::rows();
        let ratio = |scenario: &str| {
            let is = |r: &&Row| r.contender == "signalbox-auto" && r.threads == 2 && r.scenario.name == scenario;
            rows.iter().find(is).unwrap().summary.ratio.unwrap().median
        };
        assert_eq!(
            (ratio("tls-100"), ratio("bulk-4"), ratio("idle-plain-9000")),
            (1.5, 1.5, 1.5)
        );
        // The p99 of half as long a latency again is two thirds.
        assert!((ratio("latency-half") - 2.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn nothing_is_divided_by_nothing() {
        let of = |value| Spread::of([value]);
        assert_eq!(quotient(of(1.0), of(-1.0)), None);
        assert_eq!(quotient(of(1.0), None), None);
        assert_eq!(quotient(of(-1.0), of(2.0)), Some(-0.5));
    }
}
