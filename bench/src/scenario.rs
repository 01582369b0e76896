//! What is measured: a list, and for each kind a function from a running contender to a [`Sample`].

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use crate::contender::{Running, request};
use crate::hosts::{Hosts, LARGE};
use crate::lab::Lab;
use crate::load::{Window, bulk, http, idle::Idle};
use crate::measure::{Latency, Memory, Meter, Sample};
use crate::{interrupt, machine, process};

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Scenario {
    /// For the command line and the results.
    pub(crate) name: &'static str,
    /// For people.
    pub(crate) title: &'static str,
    /// What happens.
    pub(crate) kind: Kind,
}

/// The kinds, with their number of connections at a time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// A connection for each request.
    Unique(usize),
    /// Connections that stay.
    Reused(usize),
    /// Connections that stay, with answers of 1 MiB.
    Large(usize),
    /// Streams to the hosts.
    Bulk(usize),
    /// Connections on which nothing happens.
    Idle(usize),
}

const fn scenario(name: &'static str, title: &'static str, kind: Kind) -> Scenario {
    Scenario { name, title, kind }
}

/// All of them, in the order in which they run.
pub(crate) const ALL: [Scenario; 10] = [
    scenario("unique-1", "Unique connections, 1 at a time", Kind::Unique(1)),
    scenario("unique-100", "Unique connections, 100 at a time", Kind::Unique(100)),
    scenario("unique-500", "Unique connections, 500 at a time", Kind::Unique(500)),
    scenario("reused-1", "Reused connections: 1", Kind::Reused(1)),
    scenario("reused-100", "Reused connections: 100", Kind::Reused(100)),
    scenario("reused-500", "Reused connections: 500", Kind::Reused(500)),
    scenario("large-4", "Answers of 1 MiB over 4 connections", Kind::Large(4)),
    scenario("bulk-1", "Bulk, client to host: 1 stream", Kind::Bulk(1)),
    scenario("bulk-4", "Bulk, client to host: 4 streams", Kind::Bulk(4)),
    scenario("idle-2000", "Memory of 2000 idle connections", Kind::Idle(2000)),
];

/// What a scenario works with.
pub(crate) struct Bench<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) hosts: &'a Hosts,
    pub(crate) running: &'a Running,
    pub(crate) warm_up: Duration,
    pub(crate) length: Duration,
}

impl Scenario {
    /// Whether `--only` with this word means it.
    pub(crate) fn is_meant(&self, word: &str) -> bool {
        self.name == word || self.name.split('-').next() == Some(word)
    }

    /// Whether it takes as long as it is told to; the others take as long as they need.
    pub(crate) fn is_timed(&self) -> bool {
        !matches!(self.kind, Kind::Idle(_))
    }

    /// Runs it once.
    pub(crate) fn run(&self, bench: &Bench<'_>) -> Result<Sample> {
        match self.kind {
            Kind::Unique(connections) => requests(bench, connections, "/", true),
            Kind::Reused(connections) => requests(bench, connections, "/", false),
            Kind::Large(connections) => large(bench, connections),
            Kind::Bulk(streams) => bulk_streams(bench, streams),
            Kind::Idle(connections) => idle(bench, connections),
        }
    }
}

impl Bench<'_> {
    fn meter(&self) -> Meter {
        Meter {
            balancer: self.running.pids(),
            hosts: self.hosts.pids(),
        }
    }
}

fn requests(bench: &Bench<'_>, connections: usize, path: &str, once: bool) -> Result<Sample> {
    let meter = bench.meter();
    let window = Window::after(bench.warm_up, bench.length);
    let plan = http::Plan {
        targets: bench.running.targets(80),
        connections,
        request: request(path, once),
        once,
        window,
    };
    let (outcome, watched) = http::run(&bench.lab.client, &plan, || meter.watch(window, || 0))?;
    let mut sample = Sample::of(outcome.latency.count() as f64, &watched?.0);
    sample.latency = Latency::of(&outcome.latency);
    sample.errors = outcome.errors;
    if outcome.latency.count() == 0 {
        sample.errors.add("no response at all");
    }
    Ok(sample)
}

/// The rate stays that of responses; the cost is that of a GB.
fn large(bench: &Bench<'_>, connections: usize) -> Result<Sample> {
    let mut sample = requests(bench, connections, "/1m", false)?;
    let gigabytes = LARGE as f64 / 1e9;
    sample.gbit = sample.rate * gigabytes * 8.0;
    sample.cpu /= gigabytes;
    sample.own_cpu /= gigabytes;
    Ok(sample)
}

/// Counted where it arrives: what a balancer has swallowed is not yet carried.
fn bulk_streams(bench: &Bench<'_>, streams: usize) -> Result<Sample> {
    let meter = bench.meter();
    let received = || bench.hosts.sinks.iter().map(bulk::Sink::received).sum();
    let window = Window::after(bench.warm_up, bench.length);
    let targets = bench.running.targets(bulk::PORT);
    let watch = || meter.watch(window, received);
    let (errors, watched) = bulk::run(&bench.lab.client, &targets, streams, window, watch)?;
    let (spent, bytes) = watched?;
    let mut sample = Sample::of(bytes as f64 / 1e9, &spent);
    sample.rate *= 8.0;
    sample.gbit = sample.rate;
    sample.errors = errors;
    Ok(sample)
}

fn idle(bench: &Bench<'_>, connections: usize) -> Result<Sample> {
    let pids = bench.running.pids();
    let targets = bench.running.targets(80);
    let request = request("/", false);
    let before = (process::resident(&pids), machine::slab());
    let idle = bench.lab.client.run(|| Idle::open(&targets, connections, &request))?;
    // Time for whoever hands connections over to the kernel to let go of them.
    interrupt::sleep_until(std::time::Instant::now() + Duration::from_millis(700))?;
    let each = |before: u64, after: u64| (after as f64 - before as f64) / connections as f64;
    let memory = Memory {
        resident: each(before.0, process::resident(&pids)),
        kernel: each(before.1, machine::slab()),
    };
    let mut sample = Sample {
        memory: Some(memory),
        ..Sample::failed(String::new())
    };
    sample.work = connections as f64;
    sample.errors = idle.check(&request);
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_takes_a_scenario_or_a_family() {
        let meant = |word: &str| ALL.iter().filter(|s| s.is_meant(word)).count();
        assert_eq!(
            (meant("unique"), meant("unique-1"), meant("idle"), meant("nothing")),
            (3, 1, 1, 0)
        );
    }
}
