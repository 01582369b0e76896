//! Rate for `latency-half` and `edge-latency`: half of the slowest contender's rate, so that it is the same for all and
//! too much for none.

use std::time::Duration;

use anyhow::{Context, Result};

use super::{Run, Series};
use crate::contender::Setup;
use crate::interrupt;
use crate::measure::Sample;
use crate::scenario::{ALL, HTTP, Scenario};
use crate::stats::Spread;

/// Computes the rate from the results so far; a contender that has none is measured briefly. NaN if none bears
/// anything.
pub(super) fn half_rate(run: &Run<'_>, paced: &Scenario, known: &[Series], setups: &[Setup]) -> Result<f64> {
    let mut rates = Vec::new();
    for setup in setups.iter().filter(|setup| setup.absence(paced).is_none()) {
        let series = |s: &&Series| s.scenario.name == paced.closed_loop() && s.setup == *setup;
        rates.push(match known.iter().find(series) {
            Some(series) => clean_rate(series.samples.iter().map(|(_, sample)| sample)),
            None => clean_rate([&calibrate(run, paced, setup)?]),
        });
    }
    Ok(half_of_slowest(rates))
}

fn calibrate(run: &Run<'_>, paced: &Scenario, setup: &Setup) -> Result<Sample> {
    let mut all = ALL.iter().chain(&HTTP);
    let scenario = all.find(|s| s.name == paced.closed_loop());
    let scenario = scenario.context("there is such a scenario")?;
    let (warm_up, length) = (Duration::from_millis(250), Duration::from_millis(500));
    let (sample, _) = run.measure(scenario, setup, warm_up, length, f64::NAN);
    interrupt::check()?;
    eprintln!(
        "{:<13} briefly  {setup:<22} {:>12.1}/s  {}",
        scenario.name, sample.rate, sample.errors
    );
    Ok(sample)
}

/// Median rate of the rounds without errors: the rate of others is worth nothing.
fn clean_rate<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> Option<f64> {
    let clean = samples.into_iter().filter(|s| s.errors.total() == 0);
    Spread::of(clean.map(|s| s.rate)).map(|spread| spread.median)
}

fn half_of_slowest(rates: impl IntoIterator<Item = Option<f64>>) -> f64 {
    rates.into_iter().flatten().fold(f64::NAN, f64::min) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_samples_do_not_lower_the_offered_rate() {
        assert_eq!(half_of_slowest([Some(100.0), None, Some(80.0)]), 40.0);
        assert!(half_of_slowest([None]).is_nan());
        let (good, bad) = (
            Sample {
                rate: 5.0,
                ..Sample::failed("x".into())
            },
            Sample::failed("y".into()),
        );
        assert_eq!(clean_rate([&good, &bad]), None);
    }
}
