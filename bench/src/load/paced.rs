//! Requests at a fixed rate over connections that stay, whether or not the last ones are answered: an open loop.
//!
//! A request is due at a scheduled time and counts from then, even if it cannot be sent because all connections wait
//! for answers. A balancer that stops for a moment delays every request that was due in that time, and the latencies
//! show that. A closed loop would ask nothing in that time and show one slow request.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use signalbox_lab::Ns;

use super::connection::Step;
use super::schedule::Schedule;
use super::slots::{Route, Slots};
use super::{Errors, Window, on_threads};
use crate::histogram::Histogram;
use crate::interrupt;

/// Time after the window in which answers are still waited for.
const GRACE_TIMEOUT: Duration = Duration::from_secs(2);
const THREADS: usize = 2;

/// Plan of an open-loop load.
pub(crate) struct PacedPlan {
    /// Targets of the connections.
    pub(crate) route: Route,
    /// Bytes of a request.
    pub(crate) request: Vec<u8>,
    /// Requests per second, of all connections together.
    pub(crate) rate: f64,
    /// Window of the measurement.
    pub(crate) window: Window,
}

/// Outcome of an open-loop load.
pub(crate) struct PacedOutcome {
    /// Latencies of the requests that were due in the window.
    pub(crate) latency: Histogram,
    /// Answers that came in the window.
    pub(crate) answered: u64,
    /// Failures, in the window, before and after.
    pub(crate) errors: Errors,
}

/// Runs the plan to its end on threads in `ns`; `meanwhile` runs here beside them.
pub(crate) fn run<T>(ns: &Ns, plan: &PacedPlan, meanwhile: impl FnOnce() -> T) -> Result<(PacedOutcome, T)> {
    let origin = Instant::now();
    let worker = |thread| PacedWorker::new(plan, origin, thread)?.run();
    let (outcomes, meanwhile) = on_threads(ns, THREADS, worker, meanwhile)?;
    let mut all = PacedOutcome {
        latency: Histogram::new(),
        answered: 0,
        errors: Errors::default(),
    };
    for outcome in outcomes {
        all.latency.merge(&outcome.latency);
        all.answered += outcome.answered;
        all.errors.merge(&outcome.errors);
    }
    Ok((all, meanwhile))
}

struct PacedWorker<'a> {
    plan: &'a PacedPlan,
    slots: Slots<'a>,
    /// Idle connections, the longest idle first.
    free: VecDeque<usize>,
    schedule: Schedule,
    /// Number of the next request.
    next: u64,
    latency: Histogram,
    answered: u64,
}

impl<'a> PacedWorker<'a> {
    fn new(plan: &'a PacedPlan, origin: Instant, thread: usize) -> Result<Self> {
        // The default timer slack lets us sleep up to 50 µs longer than we asked for: more than an interval.
        nix::sys::prctl::set_timerslack(1)?;
        Ok(Self {
            plan,
            slots: Slots::open_all(&plan.route, thread, THREADS)?,
            free: VecDeque::new(),
            schedule: Schedule {
                origin,
                rate: plan.rate,
                thread,
                threads: THREADS,
            },
            next: 0,
            latency: Histogram::new(),
            answered: 0,
        })
    }

    fn run(mut self) -> Result<PacedOutcome> {
        let end = self.plan.window.end;
        let mut events = vec![EpollEvent::empty(); 512];
        loop {
            let now = Instant::now();
            self.send_due(now);
            if now >= end || interrupt::raised() {
                let left = self.schedule.left(self.next, end) + self.slots.asking();
                if left == 0 || now >= end + GRACE_TIMEOUT || interrupt::raised() {
                    return Ok(self.outcome(left));
                }
            }
            let count = wait(&self.slots.epoll, &mut events, self.pause(now))?;
            for event in &events[..count] {
                self.handle(event.data() as usize, event.events());
            }
            self.slots.tend(now);
        }
    }

    fn send_due(&mut self, now: Instant) {
        loop {
            let due = self.schedule.due(self.next);
            if due > now || self.schedule.left(self.next, self.plan.window.end) == 0 {
                return;
            }
            let Some(slot) = self.free.pop_front() else {
                return;
            };
            // The connection may have been lost since.
            let Some(connection) = self.slots.get(slot).filter(|c| c.is_ready()) else {
                continue;
            };
            self.next += 1;
            if let Step::Failed(what) = connection.ask(&self.plan.request, due) {
                self.slots.fail(slot, what);
            }
        }
    }

    /// Time until the next request is due, if there is a connection for it.
    fn pause(&self, now: Instant) -> Duration {
        let long = Duration::from_millis(20);
        if self.free.is_empty() || self.schedule.left(self.next, self.plan.window.end) == 0 {
            return long;
        }
        self.schedule.due(self.next).saturating_duration_since(now).min(long)
    }

    fn handle(&mut self, slot: usize, flags: EpollFlags) {
        if self.slots.has_connected(slot, flags) {
            self.free.push_back(slot);
        }
        match self.slots.receive(slot, false, flags) {
            Step::Wait => {}
            Step::Answered(due) => {
                let now = Instant::now();
                self.answered += u64::from(self.plan.window.has(now));
                if self.plan.window.has(due) {
                    self.latency.record(now - due);
                }
                self.free.push_back(slot);
            }
            Step::Ended => self.slots.fail(slot, "closed".into()),
            Step::Failed(what) => self.slots.fail(slot, what),
        }
    }

    fn outcome(mut self, left: u64) -> PacedOutcome {
        for _ in 0..left {
            self.slots.errors.add("unanswered at the end");
        }
        PacedOutcome {
            latency: self.latency,
            answered: self.answered,
            errors: self.slots.errors,
        }
    }
}

/// Waits for events, with a timeout finer than `epoll_wait`'s milliseconds, in which many requests are due.
fn wait(epoll: &Epoll, events: &mut [EpollEvent], pause: Duration) -> Result<usize> {
    let pause = nix::sys::time::TimeSpec::from_duration(pause);
    // SAFETY: there are as many events as the length says, and `EpollEvent` is the kernel's `epoll_event`; the time
    // outlives the call; there is no signal mask.
    let count = unsafe {
        libc::epoll_pwait2(
            epoll.0.as_raw_fd(),
            events.as_mut_ptr().cast(),
            i32::try_from(events.len())?,
            pause.as_ref(),
            std::ptr::null(),
        )
    };
    match Errno::result(count) {
        Err(Errno::EINTR) => Ok(0),
        result => Ok(usize::try_from(result?)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prints latencies at a fixed rate, to be compared with those of another tool; docs/benchmarks.md says how.
    #[test]
    #[ignore = "it measures what PACED_NS, PACED_TARGET and PACED_RATE name"]
    fn latencies_to_compare() {
        let given = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
        let plan = PacedPlan {
            route: Route {
                targets: vec![given("PACED_TARGET").parse().unwrap()],
                connections: 10,
                tls: None,
            },
            request: b"GET / HTTP/1.1\r\nHost: app.bench.example\r\n\r\n".to_vec(),
            rate: given("PACED_RATE").parse().unwrap(),
            window: Window::after(Duration::from_millis(500), Duration::from_secs(20)),
        };
        let ns = Ns::open(&given("PACED_NS")).unwrap();
        let (outcome, ()) = run(&ns, &plan, || ()).unwrap();
        let millis = |part| {
            outcome
                .latency
                .quantile(part)
                .map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
        };
        println!(
            "answered {} mean {:.3} p50 {:.3} p90 {:.3} p99 {:.3} p99.9 {:.3} ms, errors: {}",
            outcome.answered,
            outcome.latency.mean().unwrap_or_default().as_secs_f64() * 1e3,
            millis(0.5),
            millis(0.9),
            millis(0.99),
            millis(0.999),
            outcome.errors
        );
    }
}
