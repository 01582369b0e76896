//! Events of the sockets of tier `sockmap`, per worker. They have a separate epoll instance, because tokio's would wake
//! up for every packet.
//!
//! A socket in a socket map becomes "readable" for each segment that the kernel redirects. So only hang-ups are watched
//! here, and, while a credit is exhausted, readability and room to write. Measured: 76-102 us a round trip against
//! 101-162.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::TcpStream;
use std::ops::Range;
use std::rc::Rc;

use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use crate::sys::{self, Epoll};

/// Key of a leg: the index of its credit.
pub type LegKey = u64;

#[derive(Default)]
struct WatchSlot {
    notify: Notify,
    /// Pending events of the client's leg and of the host's.
    events: [Cell<u32>; 2],
}

/// Flows of tier `sockmap` of a worker, and the epoll instance that watches them.
pub struct SockmapWatch {
    epoll: AsyncFd<Epoll>,
    /// Credits come in pairs, one per direction: pair i is credits 2i and 2i+1.
    pairs: Range<u32>,
    free: RefCell<Vec<u32>>,
    unused: Cell<u32>,
    slots: RefCell<Vec<Option<Rc<WatchSlot>>>>,
}

/// A flow's slot and pair of credits; given back on drop.
pub struct WatchedFlow {
    watch: Rc<SockmapWatch>,
    pair: u32,
    slot: Rc<WatchSlot>,
}

impl SockmapWatch {
    /// Makes the watch of a worker that owns `pairs` of credits.
    pub fn new(pairs: Range<u32>) -> io::Result<Rc<Self>> {
        Ok(Rc::new(Self {
            epoll: sys::async_readable(Epoll::new()?)?,
            unused: Cell::new(pairs.start),
            slots: RefCell::default(),
            free: RefCell::default(),
            pairs,
        }))
    }

    /// Registers a flow; `None` when all credits are in use.
    pub fn register(self: &Rc<Self>) -> Option<WatchedFlow> {
        let pair = self.free.borrow_mut().pop().or_else(|| {
            let next = self.unused.get();
            (next < self.pairs.end).then(|| {
                self.unused.set(next + 1);
                self.slots.borrow_mut().push(None);
                next
            })
        })?;
        let slot = Rc::<WatchSlot>::default();
        *self.slots.borrow_mut().get_mut((pair - self.pairs.start) as usize)? = Some(Rc::clone(&slot));
        Some(WatchedFlow {
            watch: Rc::clone(self),
            pair,
            slot,
        })
    }

    pub fn add(&self, socket: &TcpStream, events: u32, key: LegKey) -> io::Result<()> {
        self.epoll.get_ref().add(socket, events, key)
    }

    pub fn rearm(&self, socket: &TcpStream, events: u32, key: LegKey) -> io::Result<()> {
        self.epoll.get_ref().rearm(socket, events, key)
    }

    /// Stops watching a socket that another owner keeps: its events would be taken for those of the credit's next flow.
    pub fn remove(&self, socket: &TcpStream) {
        self.epoll.get_ref().remove(socket);
    }

    /// Wakes the flow of a credit with events.
    pub fn wake(&self, credit: u32, events: u32) {
        let index = (credit / 2).checked_sub(self.pairs.start);
        let slots = self.slots.borrow();
        if let Some(Some(slot)) = index.and_then(|index| slots.get(index as usize)) {
            let leg = &slot.events[credit as usize % 2];
            leg.set(leg.get() | events);
            slot.notify.notify_one();
        }
    }

    /// Passes events to flows, for as long as the worker lives.
    pub async fn run(self: Rc<Self>) -> io::Result<()> {
        let mut events = Vec::new();
        loop {
            let mut guard = self.epoll.readable().await?;
            guard.get_inner().wait(&mut events)?;
            for &(key, what) in &events {
                self.wake(key as u32, what);
            }
            if events.len() < 64 {
                guard.clear_ready();
            } else {
                tokio::task::yield_now().await;
            }
        }
    }
}

impl WatchedFlow {
    /// Returns the credit of the client's bytes (0) or of the host's (1).
    pub fn credit(&self, leg: usize) -> u32 {
        self.pair * 2 + leg as u32
    }

    pub fn key(&self, leg: usize) -> LegKey {
        LegKey::from(self.credit(leg))
    }

    /// Waits for the next event.
    pub async fn next_event(&self) {
        self.slot.notify.notified().await;
    }

    /// Takes the events of a leg since the last call.
    pub fn take_events(&self, leg: usize) -> u32 {
        self.slot.events[leg].take()
    }
}

impl Drop for WatchedFlow {
    fn drop(&mut self) {
        if let Some(slot) = self
            .watch
            .slots
            .borrow_mut()
            .get_mut((self.pair - self.watch.pairs.start) as usize)
        {
            *slot = None;
        }
        self.watch.free.borrow_mut().push(self.pair);
    }
}
