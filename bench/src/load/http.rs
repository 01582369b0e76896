//! HTTP at a fixed number of connections: each sends its next request as soon as the last is answered.
//!
//! One or two threads, each with an epoll of its own. Closed loop: the rate is what the system can bear, and latency
//! at that rate says how long requests queue, not how long a lone one takes.

use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::connection::{Connection, Step};
use super::{Errors, Window};
use crate::histogram::Histogram;
use crate::interrupt;
use crate::lab::Ns;

/// After this a request counts as lost.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is asked, and how.
pub(crate) struct Plan {
    /// Where to, in turns.
    pub(crate) targets: Vec<SocketAddrV4>,
    /// How many connections at a time.
    pub(crate) connections: usize,
    /// The bytes of a request.
    pub(crate) request: Vec<u8>,
    /// Whether a connection ends with its response.
    pub(crate) once: bool,
    /// When it counts.
    pub(crate) window: Window,
}

/// What came of it.
pub(crate) struct Outcome {
    /// The latency of each response in the window.
    pub(crate) latency: Histogram,
    /// What failed, in the window or before.
    pub(crate) errors: Errors,
}

/// Runs it to its end on threads in `ns`; `meanwhile` runs here beside them.
pub(crate) fn run<T>(ns: &Ns, plan: &Plan, meanwhile: impl FnOnce() -> T) -> Result<(Outcome, T)> {
    let threads = plan.connections.min(2);
    let mut all = Outcome {
        latency: Histogram::new(),
        errors: Errors::default(),
    };
    let meanwhile = std::thread::scope(|scope| {
        let start = |thread| scope.spawn(move || ns.enter().and_then(|()| Worker::new(plan, thread, threads)?.run()));
        let workers: Vec<_> = (0..threads).map(start).collect();
        let meanwhile = meanwhile();
        for worker in workers {
            let outcome = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            all.latency.merge(&outcome.latency);
            all.errors.merge(&outcome.errors);
        }
        anyhow::Ok(meanwhile)
    })?;
    Ok((all, meanwhile))
}

struct Worker<'a> {
    plan: &'a Plan,
    epoll: Epoll,
    slots: Vec<Option<Connection>>,
    next_target: usize,
    outcome: Outcome,
    buffer: Vec<u8>,
}

impl<'a> Worker<'a> {
    /// The `thread`-th of so many, with its share of the connections.
    fn new(plan: &'a Plan, thread: usize, threads: usize) -> Result<Self> {
        let share = (plan.connections + thread) / threads;
        Ok(Self {
            plan,
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            slots: (0..share).map(|_| None).collect(),
            next_target: thread,
            outcome: Outcome {
                latency: Histogram::new(),
                errors: Errors::default(),
            },
            buffer: vec![0; 256 * 1024],
        })
    }

    fn run(mut self) -> Result<Outcome> {
        for slot in 0..self.slots.len() {
            self.open(slot);
        }
        let mut events = vec![EpollEvent::empty(); 512];
        let mut look_again = Instant::now() + Duration::from_millis(100);
        loop {
            let timeout = EpollTimeout::try_from(20).context("a timeout of 20 ms")?;
            let count = match self.epoll.wait(&mut events, timeout) {
                Err(nix::errno::Errno::EINTR) => 0,
                result => result?,
            };
            for event in &events[..count] {
                self.handle(event.data() as usize, event.events());
            }
            let now = Instant::now();
            if now >= self.plan.window.end || interrupt::raised() {
                self.blame_stalled();
                return Ok(self.outcome);
            }
            if now >= look_again {
                self.give_up_on_late(now);
                look_again = now + Duration::from_millis(100);
            }
        }
    }

    /// Puts a new connection into a slot. Edge-triggered and for everything at once: one call for its whole life.
    fn open(&mut self, slot: usize) {
        let target = self.plan.targets[self.next_target % self.plan.targets.len()];
        self.next_target += 1;
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        let opened = Connection::open(target).and_then(|connection| {
            self.epoll
                .add(connection.socket(), EpollEvent::new(flags, slot as u64))?;
            Ok(connection)
        });
        // A slot that could not be filled is tried again with the next look at what is late.
        self.slots[slot] = opened
            .map_err(|e| self.outcome.errors.add(format!("open: {}", e.kind())))
            .ok();
    }

    fn handle(&mut self, slot: usize, flags: EpollFlags) {
        let Some(connection) = &mut self.slots[slot] else {
            return;
        };
        if connection.is_connecting() && flags.intersects(EpollFlags::EPOLLOUT | EpollFlags::EPOLLERR) {
            if let Ok(Some(e)) = connection.socket().take_error() {
                return self.fail(slot, format!("connect: {}", e.kind()));
            }
            if let Step::Failed(what) = connection.ask(&self.plan.request, Instant::now()) {
                return self.fail(slot, what);
            }
        }
        if !flags.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP)
        {
            return;
        }
        let to_the_end = flags.contains(EpollFlags::EPOLLRDHUP);
        let mut step = connection.receive(&mut self.buffer, self.plan.once, to_the_end);
        if let Step::Answered(began) = step {
            let now = Instant::now();
            if self.plan.window.has(now) {
                self.outcome.latency.record(now - began);
            }
            step = if !self.plan.once {
                connection.ask(&self.plan.request, now)
            } else if to_the_end {
                connection.receive(&mut self.buffer, true, true)
            } else {
                Step::Wait
            };
        }
        match step {
            Step::Wait | Step::Answered(_) => {}
            Step::Ended => self.open(slot),
            Step::Failed(what) => self.fail(slot, what),
        }
    }

    fn fail(&mut self, slot: usize, what: String) {
        self.outcome.errors.add(what);
        // Not opened again at once: a balancer that refuses everything must not keep us too busy to stop.
        self.slots[slot] = None;
    }

    fn give_up_on_late(&mut self, now: Instant) {
        for slot in 0..self.slots.len() {
            match &self.slots[slot] {
                None => self.open(slot),
                Some(connection) if now.saturating_duration_since(connection.began()) > PATIENCE => {
                    let stage = connection.stage();
                    self.outcome.errors.add(format!("timeout: {stage}"));
                    self.open(slot);
                }
                Some(_) => {}
            }
        }
    }

    /// What has not moved during a whole window is lost, even if the window was shorter than our patience.
    fn blame_stalled(&mut self) {
        let Window { start, end } = self.plan.window;
        if end - start < Duration::from_secs(1) {
            return;
        }
        for connection in self.slots.iter().flatten().filter(|c| c.began() < start) {
            self.outcome.errors.add(format!("stalled: {}", connection.stage()));
        }
    }
}
