//! Runs of each kind of scenario, and their samples.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::Bench;
use crate::contender::request;
use crate::hosts::LARGE;
use crate::load::slots::Route;
use crate::load::{Window, bulk, http, idle::Idle, paced, tls};
use crate::measure::{Latency, Memory, Meter, Sample};
use crate::{interrupt, machine, process};

impl Bench<'_> {
    fn meter(&self) -> Meter {
        Meter {
            balancer: self.running.pids(),
            hosts: self.hosts.pids(),
        }
    }

    fn window(&self) -> Window {
        Window::after(self.warm_up, self.length)
    }

    fn route(&self, port: u16, connections: usize, tls: Option<tls::Client>) -> Route {
        Route {
            targets: self.running.targets(port),
            connections,
            tls,
        }
    }
}

/// Runs a closed loop over connections without TLS: each gets its next request as soon as it has answered.
pub(super) fn requests(bench: &Bench<'_>, connections: usize, path: &str, once: bool) -> Result<Sample> {
    closed_loop(bench, bench.route(80, connections, None), path, once)
}

/// Runs a closed loop over connections with a full TLS handshake each, one for each request.
pub(super) fn handshakes(bench: &Bench<'_>, connections: usize) -> Result<Sample> {
    let tls = Some(bench.hosts.tls.clone());
    closed_loop(bench, bench.route(443, connections, tls), "/", true)
}

fn closed_loop(bench: &Bench<'_>, route: Route, path: &str, once: bool) -> Result<Sample> {
    let meter = bench.meter();
    let plan = http::HttpPlan {
        route,
        request: request(path, once),
        once,
        window: bench.window(),
    };
    let watch = || meter.watch(plan.window, || 0);
    let (outcome, watched) = http::run(&bench.lab.client, &plan, watch)?;
    let mut sample = Sample::of(outcome.latency.count() as f64, bench.length, &watched?.0);
    sample.latency = Latency::of(&outcome.latency);
    sample.errors = outcome.errors;
    if outcome.latency.count() == 0 {
        sample.errors.add("no response at all");
    }
    Ok(sample)
}

/// Runs an open loop at the offered rate, whatever comes back.
pub(super) fn paced(bench: &Bench<'_>, connections: usize) -> Result<Sample> {
    ensure!(bench.offered > 0.0, "nobody got through `{}`", super::CLOSED_LOOP);
    let meter = bench.meter();
    let plan = paced::PacedPlan {
        route: bench.route(80, connections, None),
        request: request("/", false),
        rate: bench.offered,
        window: bench.window(),
    };
    let watch = || meter.watch(plan.window, || 0);
    let (outcome, watched) = paced::run(&bench.lab.client, &plan, watch)?;
    let mut sample = Sample::of(outcome.answered as f64, bench.length, &watched?.0);
    sample.offered = Some(bench.offered);
    sample.latency = Latency::of(&outcome.latency);
    sample.errors = outcome.errors;
    Ok(sample)
}

/// Runs a closed loop of large answers. The rate stays that of responses; the cost is that of a GB.
pub(super) fn large(bench: &Bench<'_>, connections: usize) -> Result<Sample> {
    let mut sample = requests(bench, connections, "/1m", false)?;
    let gigabytes = LARGE as f64 / 1e9;
    sample.gbit = sample.rate * gigabytes * 8.0;
    sample.cpu /= gigabytes;
    sample.own_cpu /= gigabytes;
    Ok(sample)
}

/// Runs bulk streams, counted where they arrive: bytes that a balancer has swallowed are not yet carried.
pub(super) fn bulk_streams(bench: &Bench<'_>, streams: usize) -> Result<Sample> {
    let meter = bench.meter();
    let received = || bench.hosts.sinks.iter().map(bulk::Sink::received).sum();
    let window = bench.window();
    let targets = bench.running.targets(bulk::PORT);
    let watch = || meter.watch(window, received);
    let (errors, watched) = bulk::run(&bench.lab.client, &targets, streams, window, watch)?;
    let (spent, bytes) = watched?;
    let mut sample = Sample::of(bytes as f64 / 1e9, spent.elapsed, &spent);
    sample.rate *= 8.0;
    sample.gbit = sample.rate;
    sample.errors = errors;
    Ok(sample)
}

/// Measures memory before and after connections have been used once.
pub(super) fn idle(bench: &Bench<'_>, connections: usize) -> Result<Sample> {
    let pids = bench.running.pids();
    let targets = bench.running.targets(80);
    let request = request("/", false);
    let before = (process::resident(&pids), machine::kernel_memory());
    let idle = bench.lab.client.run(|| Idle::open(&targets, connections, &request))?;
    // Time for a balancer that hands connections over to the kernel to let go of them.
    interrupt::sleep_until(Instant::now() + Duration::from_millis(700))?;
    let each = |before: u64, after: u64| (after as f64 - before as f64) / connections as f64;
    let memory = Memory {
        resident: each(before.0, process::resident(&pids)),
        kernel: each(before.1, machine::kernel_memory()),
    };
    let mut sample = Sample {
        memory: Some(memory),
        ..Sample::failed(String::new())
    };
    sample.work = connections as f64;
    sample.errors = idle.check(&request);
    Ok(sample)
}
