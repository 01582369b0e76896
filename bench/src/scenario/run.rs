//! Runs of each kind of scenario, and their samples.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::failure::FailingHost;
use super::{Bench, Condition, Entry, FLOOD_RATE, Failure, Scenario};
use crate::contender::request;
use crate::hosts::{HUGE, LARGE, NAME, REENCRYPTED_NAME, RSA_NAME, WEBSOCKET_PATH};
use crate::load::openings::{self, OpeningsPlan};
use crate::load::slots::Route;
use crate::load::tunnels::{self, Tunnels};
use crate::load::{Errors, Window, anatomy, bulk, flood, h2load, http, idle::Idle, paced};
use crate::measure::{Latency, Memory, Meter, Sample};
use crate::{interrupt, machine, process};

/// Time for which a connection is kept open after its answer.
const KEEP_INTERVAL: Duration = Duration::from_millis(500);

/// Time after the measurement in which answers are waited for; with a failing host as long as balancers wait for it.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const FAILED_ANSWER_TIMEOUT: Duration = Duration::from_secs(12);

/// Time in which an access log is written to its file.
const LOG_INTERVAL: Duration = Duration::from_millis(1500);

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

    fn route(&self, entry: Entry, connections: usize) -> Result<Route> {
        let tls = |name, resumes| self.hosts.tls(name, resumes).map(Some);
        let (port, tls) = match entry {
            Entry::Plain => (80, None),
            Entry::Tls | Entry::Http2 => (443, tls(NAME, false)?),
            Entry::RsaTls => (443, tls(RSA_NAME, false)?),
            Entry::ResumedTls => (443, tls(NAME, true)?),
            Entry::Reencrypted => (443, tls(REENCRYPTED_NAME, false)?),
        };
        Ok(Route {
            targets: self.running.targets(port),
            connections,
            tls,
        })
    }
}

/// Runs a closed loop: each connection gets its next request as soon as it has answered, or is `once` replaced.
pub(super) fn requests(bench: &Bench<'_>, entry: Entry, connections: usize, path: &str, once: bool) -> Result<Sample> {
    let meter = bench.meter();
    let name = match entry {
        Entry::Reencrypted => REENCRYPTED_NAME,
        Entry::RsaTls => RSA_NAME,
        Entry::Plain | Entry::Tls | Entry::ResumedTls | Entry::Http2 => NAME,
    };
    let plan = http::HttpPlan {
        route: bench.route(entry, connections)?,
        request: request(name, path, once),
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

/// Runs a closed loop of new connections under a condition, and checks that it held.
pub(super) fn conditioned(bench: &Bench<'_>, entry: Entry, connections: usize, condition: Condition) -> Result<Sample> {
    let mut sample = requests(bench, entry, connections, "/", true)?;
    if condition.flags().contains(&"access-log") && !bench.running.pids().is_empty() {
        // Contenders that write their log in blocks do so each second.
        interrupt::sleep_until(Instant::now() + LOG_INTERVAL)?;
        let (logged, wanted) = (bench.running.logged(bench.lab), sample.work as u64);
        if logged < wanted {
            sample
                .errors
                .add(format!("only {logged} of {wanted} requests are in the access log"));
        }
    }
    Ok(sample)
}

/// Runs an open loop at the offered rate, regardless of the answers.
pub(super) fn paced(bench: &Bench<'_>, scenario: &Scenario, connections: usize) -> Result<Sample> {
    ensure!(
        bench.offered > 0.0,
        "no request got through in `{}`",
        scenario.closed_loop()
    );
    let meter = bench.meter();
    let plan = paced::PacedPlan {
        route: bench.route(scenario.entry, connections)?,
        request: request(NAME, "/", false),
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

/// Runs a closed loop of large answers.
pub(super) fn large(bench: &Bench<'_>, entry: Entry, connections: usize, once: bool) -> Result<Sample> {
    files(bench, entry, connections, ("/1m", LARGE), once)
}

/// Runs a closed loop of huge answers, each over a separate connection.
pub(super) fn huge(bench: &Bench<'_>, entry: Entry, connections: usize) -> Result<Sample> {
    files(bench, entry, connections, ("/64m", HUGE), true)
}

/// Runs a closed loop of answers of `bytes` bytes. The rate stays that of responses; the cost is that of a GB.
fn files(
    bench: &Bench<'_>,
    entry: Entry,
    connections: usize,
    (path, bytes): (&str, usize),
    once: bool,
) -> Result<Sample> {
    let mut sample = requests(bench, entry, connections, path, once)?;
    let gigabytes = bytes as f64 / 1e9;
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

/// Takes connections apart.
pub(super) fn anatomy(bench: &Bench<'_>) -> Result<Sample> {
    let targets = bench.running.targets(80);
    let target = *targets.first().context("no target")?;
    let parts = anatomy::run(bench.lab, target, &request(NAME, "/", true), bench.warm_up)?;
    Ok(Sample {
        anatomy: Some(parts),
        errors: Errors::default(),
        ..Sample::failed(String::new())
    })
}

/// Runs h2load: its rate, and the CPU time during the run.
pub(super) fn streams(bench: &Bench<'_>, connections: usize) -> Result<Sample> {
    let run = h2load::H2Load::start(bench.lab, connections, (bench.warm_up, bench.length))?;
    let mut meter = bench.meter();
    // Its time is no other program's.
    meter.hosts.push(run.pid());
    let (spent, _) = meter.watch(bench.window(), || 0)?;
    let outcome = run.finish()?;
    let mut sample = Sample::of(outcome.rate * bench.length.as_secs_f64(), bench.length, &spent);
    sample.errors = outcome.errors;
    Ok(sample)
}

/// Runs a closed loop of echoes in WebSockets.
pub(super) fn tunnels(bench: &Bench<'_>, connections: usize) -> Result<Sample> {
    let (meter, targets) = (bench.meter(), bench.running.targets(80));
    let head = tunnels::upgrade(NAME, WEBSOCKET_PATH);
    let open = || Tunnels::open(&targets, connections, &head);
    let tunnels = bench.lab.client.run(open)?;
    let window = bench.window();
    let (outcome, watched) = tunnels.run(&bench.lab.client, window, || meter.watch(window, || 0))?;
    let mut sample = Sample::of(outcome.latency.count() as f64, bench.length, &watched?.0);
    sample.latency = Latency::of(&outcome.latency);
    sample.errors = outcome.errors;
    Ok(sample)
}

/// Opens connections at a fixed rate, and asks the contender how it has replicated their flows.
pub(super) fn openings(bench: &Bench<'_>, rate: u32) -> Result<Sample> {
    failing(bench, rate, Failure::None)
}

/// Opens connections at a fixed rate, while a host fails from the beginning of the measurement.
pub(super) fn failing(bench: &Bench<'_>, rate: u32, failure: Failure) -> Result<Sample> {
    let targets = bench.running.targets(80);
    let plan = OpeningsPlan {
        target: *targets.first().context("no target")?,
        request: request(NAME, "/", false),
        rate: f64::from(rate),
        keep: KEEP_INTERVAL,
        answer_timeout: match failure {
            Failure::None => ANSWER_TIMEOUT,
            Failure::Refuses | Failure::IsSilent => FAILED_ANSWER_TIMEOUT,
        },
        window: bench.window(),
    };
    let meter = bench.meter();
    let watch = || -> Result<_> {
        interrupt::sleep_until(plan.window.start)?;
        let failing = FailingHost::begin(bench.lab, failure)?;
        let before = bench.running.replicated(bench.lab)?;
        let (spent, _) = meter.watch(plan.window, || 0)?;
        let after = bench.running.replicated(bench.lab)?;
        Ok((spent, before.zip(after), failing))
    };
    let (outcome, watched) = openings::run(&bench.lab.client, &plan, watch)?;
    // The host fails until the last connection has its answer.
    let (spent, counts, _failing) = watched?;
    let mut sample = Sample::of(outcome.latency.count() as f64, bench.length, &spent);
    sample.offered = Some(plan.rate);
    sample.latency = Latency::of(&outcome.latency);
    sample.replication = counts.map(|(before, after)| after.since(&before, bench.length));
    if failure == Failure::None {
        sample.errors = outcome.errors;
    } else {
        let lost = outcome.errors.total() as f64;
        sample.lost = Some(lost / (lost + sample.work) * 100.0);
    }
    Ok(sample)
}

/// Opens connections at a fixed rate, beside a flood of SYNs.
pub(super) fn flooded(bench: &Bench<'_>, rate: u32) -> Result<Sample> {
    let targets = bench.running.targets(80);
    let target = *targets.first().context("no target")?;
    let (sample, sent) = flood::during(&bench.lab.client, target, FLOOD_RATE, || openings(bench, rate))?;
    let mut sample = sample?;
    let wanted = (bench.warm_up + bench.length).as_secs_f64() * f64::from(FLOOD_RATE);
    if (sent as f64) < wanted * 0.9 {
        sample.errors.add("the flood was smaller than it should have been");
    }
    Ok(sample)
}

/// Measures memory before and after connections have been used once.
pub(super) fn idle(bench: &Bench<'_>, entry: Entry, connections: usize) -> Result<Sample> {
    let route = bench.route(entry, connections)?;
    let is_http2 = entry == Entry::Http2;
    let request = request(NAME, "/", false);
    let open = || Idle::open(&route, is_http2, &request);
    let (mut sample, mut idle) = memory_of(bench, connections, open)?;
    sample.errors = idle.check(&request);
    Ok(sample)
}

/// Measures memory before and after WebSockets have been opened.
pub(super) fn idle_tunnels(bench: &Bench<'_>, connections: usize) -> Result<Sample> {
    let (head, targets) = (tunnels::upgrade(NAME, WEBSOCKET_PATH), bench.running.targets(80));
    let (mut sample, tunnels) = memory_of(bench, connections, || Tunnels::open(&targets, connections, &head))?;
    sample.errors = tunnels.check();
    Ok(sample)
}

/// Opens connections in the client's namespace, and measures their memory.
fn memory_of<T: Send>(
    bench: &Bench<'_>,
    connections: usize,
    open: impl FnOnce() -> Result<T> + Send,
) -> Result<(Sample, T)> {
    let pids = bench.running.pids();
    let before = (process::resident(&pids), machine::kernel_memory());
    let opened = bench.lab.client.run(open)?;
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
    sample.errors = Errors::default();
    Ok((sample, opened))
}
