//! Change of routes under light load: the time until all new names answer, and its effect on clients of the others.

use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::run;
use super::{Bench, Scenario};
use crate::contender::request;
use crate::hosts::NAME;
use crate::load::Window;
use crate::load::idle::probe;
use crate::load::openings::{self, OpeningsPlan};
use crate::measure::{Change, Sample};
use crate::{interrupt, process};

/// New connections per second during the change, each with a request.
const RATE: u32 = 200;
/// Length of the load, of which a part is before the change.
const LOAD_INTERVAL: Duration = Duration::from_secs(6);
const BEFORE_INTERVAL: Duration = Duration::from_millis(500);
/// Time that all names have to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after a name that does not answer yet.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// Time in which processes with the former routes end.
const SETTLE_INTERVAL: Duration = Duration::from_millis(700);

/// Runs the load, and gives the contender further routes during it.
pub(super) fn run(bench: &Bench<'_>, scenario: &Scenario, count: usize) -> Result<Sample> {
    let names: Vec<_> = (0..count)
        .map(|number| format!("route-{number}.bench.example"))
        .collect();
    let target = *bench.running.targets(80).first().context("no target")?;
    let window = Window::after(Duration::ZERO, LOAD_INTERVAL);
    let plan = OpeningsPlan {
        answer_timeout: run::ANSWER_TIMEOUT,
        target,
        request: request(NAME, "/", false),
        rate: f64::from(RATE),
        keep: Duration::ZERO,
        window,
    };
    let watch = || -> Result<Duration> {
        interrupt::sleep_until(window.start + BEFORE_INTERVAL)?;
        let (began, answered) = std::thread::scope(|scope| {
            let change = scope.spawn(|| bench.running.change(bench.lab, scenario, &names));
            let answered = bench.lab.client.run(|| wait_for_all(target, &names));
            let began = change.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            anyhow::Ok((began?, answered?))
        })?;
        Ok(answered.saturating_duration_since(began))
    };
    let (outcome, until_all) = openings::run(&bench.lab.client, &plan, watch)?;
    let until_all = until_all?;
    interrupt::sleep_until(Instant::now() + SETTLE_INTERVAL)?;
    let worst = outcome.latency.quantile(1.0).context("no answer at all")?;
    let mut sample = Sample::failed(String::new());
    sample.errors = Default::default();
    sample.work = count as f64;
    sample.change = Some(Change {
        until_all: until_all.as_secs_f64() * 1e6,
        worst: worst.as_secs_f64() * 1e6,
        failed: outcome.errors.total() as f64,
        resident: process::resident(&bench.running.pids()) as f64,
    });
    if !outcome.errors.is_empty() {
        eprintln!("{:<13} meanwhile: {}", scenario.name, outcome.errors);
    }
    Ok(sample)
}

/// Asks each name until it answers, and all of them once more: the moment from which all have answered.
fn wait_for_all(target: SocketAddrV4, names: &[String]) -> Result<Instant> {
    let began = Instant::now();
    loop {
        let mut answered = None;
        for name in names {
            loop {
                interrupt::check()?;
                match probe(target, &request(name, "/", true)) {
                    Ok(_) => break,
                    Err(error) if began.elapsed() > ANSWER_TIMEOUT => bail!("{name} does not answer: {error:#}"),
                    Err(_) => {}
                }
                std::thread::sleep(RETRY_INTERVAL);
                answered = None;
            }
            answered = answered.or_else(|| Some(Instant::now()));
        }
        // An old process may still have taken some of these connections.
        let Some(answered) = answered else { continue };
        let is_there = |name: &String| probe(target, &request(name, "/", true)).is_ok();
        if names.iter().all(is_there) {
            return Ok(answered);
        }
    }
}
