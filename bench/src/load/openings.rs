//! New connections at a fixed rate, each with one request and kept for a while after its answer: an open loop.
//!
//! Such flows live long enough to be entered in tables and on other nodes. A closed loop would end them before any
//! other node had heard of them.

use std::collections::VecDeque;
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use signalbox_lab::Ns;

use super::connection::{Connection, Step};
use super::schedule::Schedule;
use super::{Errors, Window, on_threads};
use crate::histogram::Histogram;
use crate::interrupt;

const THREADS: usize = 2;
/// Plan of an open loop of connections.
pub(crate) struct OpeningsPlan {
    pub(crate) target: SocketAddrV4,
    pub(crate) request: Vec<u8>,
    /// New connections per second.
    pub(crate) rate: f64,
    /// Time for which a connection is kept after its answer.
    pub(crate) keep: Duration,
    /// Time after the window's end at which a connection without an answer counts as lost.
    pub(crate) answer_timeout: Duration,
    pub(crate) window: Window,
}

/// Outcome of an open loop of connections.
pub(crate) struct OpeningsOutcome {
    /// Time from when a connection was due until its answer, of those that were due in the window.
    pub(crate) latency: Histogram,
    pub(crate) errors: Errors,
}

/// Runs the plan to its end on threads in `ns`; `meanwhile` runs here beside them.
pub(crate) fn run<T>(ns: &Ns, plan: &OpeningsPlan, meanwhile: impl FnOnce() -> T) -> Result<(OpeningsOutcome, T)> {
    let origin = Instant::now();
    let worker = |thread| OpeningsWorker::new(plan, origin, thread)?.run();
    let (outcomes, meanwhile) = on_threads(ns, THREADS, worker, meanwhile)?;
    let mut all = OpeningsOutcome {
        latency: Histogram::new(),
        errors: Errors::default(),
    };
    for outcome in outcomes {
        all.latency.merge(&outcome.latency);
        all.errors.merge(&outcome.errors);
    }
    Ok((all, meanwhile))
}

struct OpeningsWorker<'a> {
    plan: &'a OpeningsPlan,
    schedule: Schedule,
    /// Number of the next connection.
    next: u64,
    epoll: Epoll,
    slots: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// Answered connections, with the time at which each is closed.
    kept: VecDeque<(Instant, usize)>,
    outcome: OpeningsOutcome,
    buffer: Vec<u8>,
}

impl<'a> OpeningsWorker<'a> {
    fn new(plan: &'a OpeningsPlan, origin: Instant, thread: usize) -> Result<Self> {
        Ok(Self {
            plan,
            schedule: Schedule {
                origin,
                rate: plan.rate,
                thread,
                threads: THREADS,
            },
            next: 0,
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            slots: Vec::new(),
            free: Vec::new(),
            kept: VecDeque::new(),
            outcome: OpeningsOutcome {
                latency: Histogram::new(),
                errors: Errors::default(),
            },
            buffer: vec![0; 64 << 10],
        })
    }

    fn run(mut self) -> Result<OpeningsOutcome> {
        let mut events = vec![EpollEvent::empty(); 512];
        loop {
            let now = Instant::now();
            self.open_due(now);
            self.close_due(now);
            if now >= self.plan.window.end
                && (self.waiting() == 0 || now >= self.plan.window.end + self.plan.answer_timeout)
                || interrupt::raised()
            {
                for _ in 0..self.waiting() {
                    self.outcome.errors.add("no answer");
                }
                return Ok(self.outcome);
            }
            let timeout = EpollTimeout::try_from(1).context("a timeout of 1 ms")?;
            let count = match self.epoll.wait(&mut events, timeout) {
                Err(nix::errno::Errno::EINTR) => 0,
                result => result?,
            };
            for event in &events[..count] {
                self.handle(event.data() as usize, event.events());
            }
        }
    }

    /// Number of connections that have no answer yet.
    fn waiting(&self) -> usize {
        self.slots.iter().flatten().count() - self.kept.len()
    }

    fn open_due(&mut self, now: Instant) {
        while self.schedule.left(self.next, self.plan.window.end) > 0 && self.schedule.due(self.next) <= now {
            let due = self.schedule.due(self.next);
            self.next += 1;
            if let Err(error) = self.open(due) {
                self.outcome.errors.add(format!("open: {error}"));
            }
        }
    }

    fn open(&mut self, due: Instant) -> Result<()> {
        let connection = Connection::open(self.plan.target, None)?.begun_at(due);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        self.epoll
            .add(connection.socket(), EpollEvent::new(flags, slot as u64))?;
        self.slots[slot] = Some(connection);
        Ok(())
    }

    fn close_due(&mut self, now: Instant) {
        while let Some(&(until, slot)) = self.kept.front()
            && until <= now
        {
            self.kept.pop_front();
            self.slots[slot] = None;
            self.free.push(slot);
        }
    }

    fn handle(&mut self, slot: usize, flags: EpollFlags) {
        let Some(connection) = &mut self.slots[slot] else {
            return;
        };
        let mut step = Step::Wait;
        if connection.is_connecting() && flags.intersects(EpollFlags::EPOLLOUT | EpollFlags::EPOLLERR) {
            step = match connection.connected() {
                Ok(()) => connection.ask(&self.plan.request, connection.began()),
                Err(what) => Step::Failed(what),
            };
        }
        if matches!(step, Step::Wait) && flags.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP) {
            step = connection.receive(&mut self.buffer, false, false);
        }
        match step {
            Step::Wait => {}
            Step::Answered(due) => {
                let now = Instant::now();
                if self.plan.window.has(due) {
                    self.outcome.latency.record(now - due);
                }
                self.kept.push_back((now + self.plan.keep, slot));
            }
            Step::Ended => self.fail(slot, "closed".into()),
            Step::Failed(what) => self.fail(slot, what),
        }
    }

    fn fail(&mut self, slot: usize, what: String) {
        self.outcome.errors.add(what);
        self.kept.retain(|(_, kept)| *kept != slot);
        self.slots[slot] = None;
        self.free.push(slot);
    }
}
