//! Listening sockets: the addresses, and the sockets for them.
//!
//! With `sk_lookup`, a few sockets serve every address, and an address is an entry of a map. Without it, each address
//! has its own sockets. Workers share sockets in groups.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::TcpListener;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use signalbox_common::steer::{MAX_BINDINGS, SLOT_V4, SLOT_V6};
use signalbox_core::availability::ha::floating::FloatingSources;
use signalbox_core::model::{Bind, Listener, Model};
use signalbox_core::routing::plan;

use crate::datapath::accept::StopMode;
use crate::datapath::listen::{self, ListenError};
use crate::datapath::worker::{ListenSocketKey, WorkerCommand, WorkerHandle};
use crate::kernel::Cut;
use crate::kernel::steer::{SteerError, Steering};

/// Listening sockets that one process hands to another.
pub struct Offer {
    /// True if connections are steered by `sk_lookup`.
    pub steered: bool,
    pub binds: Vec<Bind>,
    pub sockets: Vec<(ListenSocketKey, Vec<TcpListener>)>,
    /// Link of the program that steers to these sockets, if it stays attached without its process.
    pub link: Option<OwnedFd>,
}

pub struct ListenerSet {
    workers: Vec<WorkerHandle>,
    /// The attached `sk_lookup` program. `None` if sockets are bound to addresses instead.
    steering: Option<Steering>,
    /// Tier `cut`, whose programs must know the listening addresses.
    cut: Option<Arc<Cut>>,
    /// Duplicates of the workers' listening sockets, to be handed to another process.
    sockets: HashMap<ListenSocketKey, Vec<TcpListener>>,
    binds: HashSet<Bind>,
    /// Link of the earlier process' program, which steers until this process' program does.
    former_link: Option<OwnedFd>,
    /// True once the workers have been given the sockets.
    accepting: bool,
}

/// Sockets for the addresses added by a new configuration.
#[derive(Default)]
pub struct PreparedSockets {
    sockets: Vec<(ListenSocketKey, Vec<TcpListener>)>,
}

/// Maximum number of workers that accept from one socket. An idle worker then accepts connections that would wait for a
/// busy one: with a queue per worker, filled by the hash of SO_REUSEPORT, the 99th percentile of 500 clients was half
/// as long again with two workers. Each connection wakes all sleeping workers of a group, so groups are small.
const MAX_WORKERS_PER_SOCKET: usize = 8;

/// Returns the number of sockets for `workers`. It is the smallest that gives each socket the same number of workers,
/// because the kernel gives each socket the same number of connections.
fn socket_count(workers: usize) -> usize {
    (1..=workers)
        .find(|groups| workers.is_multiple_of(*groups) && workers / groups <= MAX_WORKERS_PER_SOCKET)
        .unwrap_or(1)
}

/// Returns the workers that accept from the socket of this number.
fn workers_of_socket(socket: usize, workers: usize) -> Range<usize> {
    let groups = socket_count(workers);
    let (group, size) = (socket % groups, workers / groups);
    group * size..(group + 1) * size
}

impl ListenerSet {
    /// Makes the listener set, with inherited or new sockets.
    pub fn new(
        workers: Vec<WorkerHandle>,
        steering: Option<Steering>,
        cut: Option<Arc<Cut>>,
        inherited: Option<Offer>,
    ) -> io::Result<Self> {
        let mut set = Self {
            workers,
            steering,
            cut,
            sockets: HashMap::new(),
            binds: HashSet::new(),
            former_link: None,
            accepting: false,
        };
        // No worker accepts yet: without an active configuration a connection could not be served.
        match (inherited, &set.steering) {
            (Some(offer), _) => {
                set.binds.extend(offer.binds);
                set.sockets.extend(offer.sockets);
                set.former_link = offer.link;
                for listeners in set.sockets.values() {
                    // The queues get the length that the machine allows now.
                    listen::listen_all(listeners)?;
                }
                set.add_sockets()?;
            }
            (None, Some(_)) => {
                let sockets = listen::open_steered(socket_count(set.workers.len()))?
                    .into_iter()
                    .enumerate();
                set.sockets
                    .extend(sockets.map(|(index, socket)| (ListenSocketKey::Steered(index), vec![socket])));
            }
            (None, None) => {}
        }
        if let Some(steering) = &set.steering {
            for (socket, listeners) in &set.sockets {
                let (ListenSocketKey::Steered(_), Some(listener)) = (socket, listeners.first()) else {
                    continue;
                };
                let slot = if listener.local_addr()?.is_ipv4() {
                    SLOT_V4
                } else {
                    SLOT_V6
                };
                steering.set_listener(slot, listener)?;
            }
        }
        Ok(set)
    }

    pub fn is_steered(&self) -> bool {
        self.steering.is_some()
    }

    /// Opens more sockets if the predecessor had fewer sockets than there are groups of workers.
    fn add_sockets(&mut self) -> io::Result<()> {
        let wanted = socket_count(self.workers.len());
        for (socket, listeners) in &mut self.sockets {
            while matches!(socket, ListenSocketKey::Bound(_)) && listeners.len() < wanted {
                let another = listen::open_sibling(&listeners[0])?;
                listeners.push(another);
            }
        }
        if self.steering.is_none() {
            return Ok(());
        }
        let inherited = self.sockets.drain().flat_map(|(_, listeners)| listeners).collect();
        let numbered = listen::complete_steered(inherited, wanted)?.into_iter().enumerate();
        self.sockets
            .extend(numbered.map(|(index, socket)| (ListenSocketKey::Steered(index), vec![socket])));
        Ok(())
    }

    /// Gives sockets to workers: each socket to one group of workers, groups in turn.
    fn listen(&self, socket: ListenSocketKey, listeners: &[TcpListener]) -> io::Result<()> {
        let first = match socket {
            ListenSocketKey::Steered(index) => index,
            ListenSocketKey::Bound(_) => 0,
        };
        for (index, listener) in listeners.iter().enumerate() {
            for worker in &self.workers[workers_of_socket(first + index, self.workers.len())] {
                worker.send(WorkerCommand::Listen(socket, listener.try_clone()?));
            }
        }
        Ok(())
    }

    /// Opens or checks the addresses that a configuration adds. Changes nothing, and reports all errors together.
    pub fn prepare(&self, model: &Model) -> Result<PreparedSockets, Vec<ListenError>> {
        let (mut prepared, mut errors) = (PreparedSockets::default(), Vec::new());
        let floating = FloatingSources::new(model.ha.as_ref());
        let count = model.listeners.iter().map(|l| l.listen.len()).sum();
        if count > MAX_BINDINGS as usize {
            return Err(vec![ListenError::TooMany { count }]);
        }
        for bind in model
            .listeners
            .iter()
            .flat_map(|l| &l.listen)
            .filter(|bind| !self.binds.contains(bind))
        {
            let outcome = if self.is_steered() {
                listen::check_free(bind)
            } else {
                listen::bind_all(bind, socket_count(self.workers.len()))
                    .map(|sockets| prepared.sockets.push((ListenSocketKey::Bound(*bind), sockets)))
            };
            match outcome {
                Ok(()) => {}
                // keepalived may add the address later. The kernel steers it then.
                Err(ListenError::NotLocal { addr }) if self.is_steered() && floating.moves(addr.ip()) => {}
                Err(ListenError::NotLocal { addr }) if self.is_steered() => {
                    tracing::warn!(%addr, "A listen address is not on this machine: it is served as soon as it is added.");
                }
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(prepared) } else { Err(errors) }
    }

    /// Listens on the addresses of the configuration, and on no others. Returns the number of addresses.
    pub fn commit(&mut self, model: &Model, ids: &[u32], prepared: PreparedSockets) -> Result<usize, SteerError> {
        let wanted: HashSet<Bind> = model.listeners.iter().flat_map(|l| &l.listen).copied().collect();
        let failed = |source| SteerError { done: 0, of: 1, source };
        if !std::mem::replace(&mut self.accepting, true) {
            for (socket, listeners) in &self.sockets {
                self.listen(*socket, listeners).map_err(failed)?;
            }
        }
        if let Some(cut) = &self.cut {
            let fit = |listener: &&Listener| listener.datapath.cut && listener.datapath.tier.is_none();
            let fit = model.listeners.iter().filter(fit).map(|listener| (listener, 0));
            cut.set_bindings(&plan::bindings(fit)).map_err(failed)?;
        }
        if let Some(steering) = &mut self.steering {
            let bindings = plan::bindings(model.listeners.iter().zip(ids.iter().copied()));
            steering.apply(bindings)?;
        } else {
            for (socket, listeners) in prepared.sockets {
                listen::listen_all(&listeners).map_err(failed)?;
                self.listen(socket, &listeners).map_err(failed)?;
                self.sockets.insert(socket, listeners);
            }
            let gone: Vec<Bind> = self.binds.difference(&wanted).copied().collect();
            for bind in gone {
                self.sockets.remove(&ListenSocketKey::Bound(bind));
                for worker in &self.workers {
                    worker.send(WorkerCommand::Unlisten(ListenSocketKey::Bound(bind)));
                }
            }
        }
        self.former_link = None;
        self.binds = wanted;
        Ok(self.binds.len())
    }

    /// Stops listening: later connections do not reach this process.
    pub async fn stop(&mut self, how: StopMode) {
        // Detached first: a connection steered to a closed socket would be dropped, not refused.
        self.steering = None;
        self.stop_workers(how).await;
    }

    async fn stop_workers(&mut self, how: StopMode) {
        // All workers stop at the same time: a socket that still listens would get the others' connections.
        let told: Vec<_> = self.workers.iter().map(|worker| worker.stop(how)).collect();
        for stopped in told {
            // A worker with a closed channel has logged why.
            let _ = stopped.await;
        }
        self.sockets.clear();
    }

    /// Returns duplicates of all listening sockets for another process, which will listen instead of this one.
    pub fn offer(&self) -> Offer {
        let duplicate = |listeners: &Vec<TcpListener>| listeners.iter().filter_map(|l| l.try_clone().ok()).collect();
        Offer {
            steered: self.is_steered(),
            binds: self.binds.iter().copied().collect(),
            sockets: self
                .sockets
                .iter()
                .map(|(socket, listeners)| (*socket, duplicate(listeners)))
                .collect(),
            link: None,
        }
    }

    /// Returns duplicates of all listening sockets and of the link. They keep the sockets open, and the program that
    /// steers to them attached.
    pub fn duplicates(&self) -> io::Result<Offer> {
        let mut offer = self.offer();
        let duplicated: usize = offer.sockets.iter().map(|(_, all)| all.len()).sum();
        let open: usize = self.sockets.values().map(Vec::len).sum();
        if duplicated < open {
            return Err(io::Error::other(
                "there are too few descriptors left to duplicate the sockets",
            ));
        }
        offer.link = self.steering.as_ref().map(Steering::link).transpose()?;
        Ok(offer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_has_one_socket_and_every_socket_as_many_workers() {
        for workers in 1..=130 {
            let groups: Vec<_> = (0..socket_count(workers))
                .map(|socket| workers_of_socket(socket, workers))
                .collect();
            let size = groups[0].len();
            assert!(
                size <= MAX_WORKERS_PER_SOCKET && groups.iter().all(|group| group.len() == size),
                "{workers}"
            );
            let all: Vec<_> = groups.into_iter().flatten().collect();
            assert_eq!(all, (0..workers).collect::<Vec<_>>());
            // The second half of the steered sockets is IPv6.
            assert_eq!(
                workers_of_socket(workers / size, workers),
                workers_of_socket(0, workers)
            );
        }
        assert_eq!([1, 2, 5, 8, 10, 11, 64].map(socket_count), [1, 1, 1, 1, 2, 11, 8]);
    }
}
