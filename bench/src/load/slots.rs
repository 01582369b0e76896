//! The connections of one thread of the load, and the epoll that watches them.
//!
//! A slot keeps its place whichever connection is in it. A failure is counted and the slot opened again a little later,
//! not at once: a balancer that refuses everything must not keep us too busy to stop.

use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::connection::{Connection, Step};
use super::{Errors, Window, tls};

/// Time after which a request counts as lost.
const SLOT_TIMEOUT: Duration = Duration::from_secs(5);

/// Targets of connections, and their number.
pub(crate) struct Route {
    /// Addresses, in turns.
    pub(crate) targets: Vec<SocketAddrV4>,
    /// Connections at a time.
    pub(crate) connections: usize,
    /// TLS client, for connections with TLS.
    pub(crate) tls: Option<tls::Client>,
}

/// Connections of one thread.
pub(super) struct Slots<'a> {
    route: &'a Route,
    pub(super) epoll: Epoll,
    slots: Vec<Option<Connection>>,
    next_target: usize,
    look_again: Instant,
    pub(super) errors: Errors,
    buffer: Vec<u8>,
}

impl<'a> Slots<'a> {
    /// Opens the share of thread number `thread` of `threads`.
    pub(super) fn open_all(route: &'a Route, thread: usize, threads: usize) -> Result<Self> {
        let share = (route.connections + thread) / threads;
        let mut slots = Self {
            route,
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            slots: (0..share).map(|_| None).collect(),
            next_target: thread,
            look_again: Instant::now() + Duration::from_millis(100),
            errors: Errors::default(),
            buffer: vec![0; 256 * 1024],
        };
        (0..share).for_each(|slot| slots.open(slot));
        Ok(slots)
    }

    /// Puts a new connection into a slot. Registered edge-triggered and for all events: one call for its whole life.
    pub(super) fn open(&mut self, slot: usize) {
        let target = self.route.targets[self.next_target % self.route.targets.len()];
        self.next_target += 1;
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        let opened = Connection::open(target, self.route.tls.as_ref()).and_then(|connection| {
            self.epoll
                .add(connection.socket(), EpollEvent::new(flags, slot as u64))?;
            Ok(connection)
        });
        self.slots[slot] = opened.map_err(|e| self.errors.add(format!("open: {}", e.kind()))).ok();
    }

    /// The connection in a slot, if there is one at present.
    pub(super) fn get(&mut self, slot: usize) -> Option<&mut Connection> {
        self.slots[slot].as_mut()
    }

    /// Whether the event is that a connection is open now.
    pub(super) fn has_connected(&mut self, slot: usize, flags: EpollFlags) -> bool {
        let Some(connection) = self.slots[slot].as_mut().filter(|c| c.is_connecting()) else {
            return false;
        };
        if !flags.intersects(EpollFlags::EPOLLOUT | EpollFlags::EPOLLERR) {
            return false;
        }
        let connected = connection.connected();
        connected.map_err(|what| self.fail(slot, what)).is_ok()
    }

    /// Reads from a slot's connection, if the event says that it is readable: the outcome.
    pub(super) fn receive(&mut self, slot: usize, once: bool, flags: EpollFlags) -> Step {
        let end = EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP;
        match &mut self.slots[slot] {
            Some(connection) if flags.intersects(EpollFlags::EPOLLIN | end) => {
                connection.receive(&mut self.buffer, once, flags.contains(EpollFlags::EPOLLRDHUP))
            }
            _ => Step::Wait,
        }
    }

    /// Counts a full handshake as a failure if a session should have been resumed.
    pub(super) fn check_resumed(&mut self, slot: usize) {
        let is_full = self.slots[slot].as_ref().is_some_and(Connection::was_full_handshake);
        if is_full && self.route.tls.as_ref().is_some_and(|tls| tls.resumes) {
            self.errors.add("full handshake instead of a resumed session");
        }
    }

    /// Counts a failure and leaves the slot empty for now.
    pub(super) fn fail(&mut self, slot: usize, what: String) {
        self.errors.add(what);
        self.slots[slot] = None;
    }

    /// Fills empty slots, and drops late requests; to be called often, acts at intervals.
    pub(super) fn tend(&mut self, now: Instant) {
        if now < self.look_again {
            return;
        }
        self.look_again = now + Duration::from_millis(100);
        for slot in 0..self.slots.len() {
            match &self.slots[slot] {
                None => self.open(slot),
                Some(connection) if now.saturating_duration_since(connection.began()) > SLOT_TIMEOUT => {
                    if let Some(what) = connection.waits_for() {
                        self.errors.add(format!("timeout: {what}"));
                        self.open(slot);
                    }
                }
                Some(_) => {}
            }
        }
    }

    /// Counts connections that have waited during the whole window as failed, even if it was shorter than a request's
    /// timeout.
    pub(super) fn blame_stalled(&mut self, Window { start, end }: Window) {
        if end - start < Duration::from_secs(1) {
            return;
        }
        for connection in self.slots.iter().flatten().filter(|c| c.began() < start) {
            if let Some(what) = connection.waits_for() {
                self.errors.add(format!("stalled: {what}"));
            }
        }
    }

    /// Number of connections that wait for a response.
    pub(super) fn asking(&self) -> u64 {
        let waits = |c: &&Connection| c.waits_for() == Some("response");
        self.slots.iter().flatten().filter(waits).count() as u64
    }
}
