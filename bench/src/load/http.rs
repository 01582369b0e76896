//! HTTP at a fixed number of connections: each sends its next request as soon as the last is answered.
//!
//! Load from one or two threads, each with its own epoll. Closed loop: the rate is the most that the system can bear,
//! and latency at that rate says how long requests queue. For the latency of a lone request there is [`super::paced`].

use std::time::Instant;

use anyhow::{Context, Result};
use nix::sys::epoll::{EpollEvent, EpollFlags, EpollTimeout};
use signalbox_lab::Ns;

use super::connection::Step;
use super::slots::{Route, Slots};
use super::{Errors, Window, on_threads};
use crate::histogram::Histogram;
use crate::interrupt;

/// Plan of a closed-loop load.
pub(crate) struct HttpPlan {
    /// Targets of the connections.
    pub(crate) route: Route,
    /// Bytes of a request.
    pub(crate) request: Vec<u8>,
    /// Whether a connection ends with its response.
    pub(crate) once: bool,
    /// Window of the measurement.
    pub(crate) window: Window,
}

/// Outcome of a closed-loop load.
pub(crate) struct HttpOutcome {
    /// Latencies of the responses in the window.
    pub(crate) latency: Histogram,
    /// Failures, in the window or before.
    pub(crate) errors: Errors,
}

/// Runs the plan to its end on threads in `ns`; `meanwhile` runs here beside them.
pub(crate) fn run<T>(ns: &Ns, plan: &HttpPlan, meanwhile: impl FnOnce() -> T) -> Result<(HttpOutcome, T)> {
    let threads = plan.route.connections.min(2);
    let worker = |thread| HttpWorker::new(plan, thread, threads)?.run();
    let (outcomes, meanwhile) = on_threads(ns, threads, worker, meanwhile)?;
    let mut all = HttpOutcome {
        latency: Histogram::new(),
        errors: Errors::default(),
    };
    for outcome in outcomes {
        all.latency.merge(&outcome.latency);
        all.errors.merge(&outcome.errors);
    }
    Ok((all, meanwhile))
}

struct HttpWorker<'a> {
    plan: &'a HttpPlan,
    slots: Slots<'a>,
    latency: Histogram,
}

impl<'a> HttpWorker<'a> {
    /// Worker number `thread` of `threads`, with its share of the connections.
    fn new(plan: &'a HttpPlan, thread: usize, threads: usize) -> Result<Self> {
        Ok(Self {
            plan,
            slots: Slots::open_all(&plan.route, thread, threads)?,
            latency: Histogram::new(),
        })
    }

    fn run(mut self) -> Result<HttpOutcome> {
        let mut events = vec![EpollEvent::empty(); 512];
        loop {
            let timeout = EpollTimeout::try_from(20).context("a timeout of 20 ms")?;
            let count = match self.slots.epoll.wait(&mut events, timeout) {
                Err(nix::errno::Errno::EINTR) => 0,
                result => result?,
            };
            for event in &events[..count] {
                self.handle(event.data() as usize, event.events());
            }
            let now = Instant::now();
            if now >= self.plan.window.end || interrupt::raised() {
                self.slots.blame_stalled(self.plan.window);
                return Ok(HttpOutcome {
                    latency: self.latency,
                    errors: self.slots.errors,
                });
            }
            self.slots.tend(now);
        }
    }

    fn handle(&mut self, slot: usize, flags: EpollFlags) {
        if self.slots.has_connected(slot, flags) {
            // Connecting is part of the first request's time.
            self.ask(slot, None);
        }
        let mut step = self.slots.receive(slot, self.plan.once, flags);
        if let Step::Answered(began) = step {
            let now = Instant::now();
            if self.plan.window.has(now) {
                self.latency.record(now - began);
                self.slots.check_resumed(slot);
            }
            step = if !self.plan.once {
                return self.ask(slot, Some(now));
            } else if flags.contains(EpollFlags::EPOLLRDHUP) {
                self.slots.receive(slot, true, flags)
            } else {
                Step::Wait
            };
        }
        match step {
            Step::Wait | Step::Answered(_) => {}
            Step::Ended => self.slots.open(slot),
            Step::Failed(what) => self.slots.fail(slot, what),
        }
    }

    fn ask(&mut self, slot: usize, now: Option<Instant>) {
        let Some(connection) = self.slots.get(slot) else {
            return;
        };
        let began = now.unwrap_or_else(|| connection.began());
        if let Step::Failed(what) = connection.ask(&self.plan.request, began) {
            self.slots.fail(slot, what);
        }
    }
}
