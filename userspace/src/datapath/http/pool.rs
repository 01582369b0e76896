//! Connections to hosts that wait for their next request: of one worker, by host, last in first out.
//!
//! A connection that failed the look at its socket, that has waited for too long, or whose host takes no new requests,
//! is closed within [`SWEEP_INTERVAL`].

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;
use signalbox_core::model::Protocol;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::datapath::choose::Lease;
use crate::state::{ClusterState, HostState, Snapshot};
use crate::sys;

/// Interval at which kept connections are looked at.
pub(in crate::datapath) const SWEEP_INTERVAL: Duration = Duration::from_millis(500);

/// Most idle connections to a host that a worker keeps.
const MAX_IDLE: usize = 64;

/// Time that a connection waits for its next request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// A host by the address of its state, which the pool keeps alive, and the address that is connected to.
type PoolKey = (usize, SocketAddr);

/// Kept connections of a worker.
#[derive(Default)]
pub(in crate::datapath) struct HostPool {
    hosts: RefCell<HashMap<PoolKey, KeptHost, FixedState>>,
}

struct KeptHost {
    /// Keeps the address in [`PoolKey`] from being another host's.
    _host: Arc<HostState>,
    cluster: Arc<ClusterState>,
    idle: VecDeque<Idle>,
}

struct Idle {
    stream: TcpStream,
    since: Instant,
}

/// Count of a connection to a host that carries a request, in its cluster's figures.
pub(super) struct ActiveConnection(Arc<ClusterState>);

impl ActiveConnection {
    pub(super) fn new(cluster: &Arc<ClusterState>) -> Self {
        cluster.pool_active.enter();
        Self(Arc::clone(cluster))
    }
}

impl Drop for ActiveConnection {
    fn drop(&mut self) {
        self.0.pool_active.leave();
    }
}

impl HostPool {
    /// Takes the connection of a lease's host that was used last and is still good.
    pub(super) fn take(&self, lease: &Lease) -> Option<TcpStream> {
        let mut hosts = self.hosts.borrow_mut();
        let kept = hosts.get_mut(&key(&lease.host, lease.backend))?;
        while let Some(idle) = kept.idle.pop_back() {
            kept.cluster.pool_idle.leave();
            // tokio may not have seen yet that the host has closed it.
            if is_quiet(&sys::recv(idle.stream.as_raw_fd(), &mut [0], libc::MSG_PEEK)) {
                return Some(idle.stream);
            }
        }
        None
    }

    /// Keeps a connection for another request to the lease's host.
    pub(super) fn put(&self, lease: &Lease, stream: TcpStream) {
        let mut hosts = self.hosts.borrow_mut();
        let kept = hosts
            .entry(key(&lease.host, lease.backend))
            .or_insert_with(|| KeptHost {
                _host: Arc::clone(&lease.host),
                cluster: Arc::clone(&lease.cluster),
                idle: VecDeque::new(),
            });
        if kept.idle.len() == MAX_IDLE {
            kept.idle.pop_front();
        } else {
            kept.cluster.pool_idle.enter();
        }
        let since = Instant::now();
        kept.idle.push_back(Idle { stream, since });
    }

    /// Closes what is not to be used again.
    pub(in crate::datapath) fn sweep(&self, snapshot: &Snapshot) {
        let mut hosts = self.hosts.borrow_mut();
        if hosts.is_empty() {
            return;
        }
        let usable = usable_hosts(snapshot);
        hosts.retain(|at, kept| {
            let before = kept.idle.len();
            kept.idle
                .retain(|idle| usable.contains(at) && idle.since.elapsed() < IDLE_TIMEOUT && is_open(&idle.stream));
            (kept.idle.len()..before).for_each(|_| kept.cluster.pool_idle.leave());
            !kept.idle.is_empty()
        });
    }
}

fn key(host: &Arc<HostState>, backend: SocketAddr) -> PoolKey {
    (Arc::as_ptr(host) as usize, backend)
}

/// Hosts that take new requests.
fn usable_hosts(snapshot: &Snapshot) -> HashSet<PoolKey, FixedState> {
    let clusters = snapshot.model.clusters.iter().zip(&snapshot.hosts).enumerate();
    let of = |(at, (cluster, states)): (usize, (&signalbox_core::model::Cluster, &Vec<Arc<HostState>>))| {
        let usable = snapshot.view.usable(at, Protocol::Http).iter();
        let keys = usable.filter_map(|(host, _)| {
            let configured = cluster.hosts.get(usize::from(*host))?;
            let backend = SocketAddr::new(configured.address, configured.port(Protocol::Http)?);
            Some(key(states.get(usize::from(*host))?, backend))
        });
        keys.collect::<Vec<_>>()
    };
    clusters.flat_map(of).collect()
}

/// Whether the host has neither closed a kept connection nor sent a byte. Costs no system call unless tokio has seen
/// an event.
fn is_open(stream: &TcpStream) -> bool {
    is_quiet(&stream.try_io(Interest::READABLE, || {
        sys::recv(stream.as_raw_fd(), &mut [0], libc::MSG_PEEK)
    }))
}

fn is_quiet(read: &io::Result<usize>) -> bool {
    read.as_ref()
        .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Signal that the worker's listeners are stopped, for connections that wait for a request.
#[derive(Default)]
pub(in crate::datapath) struct DrainSignal {
    is_draining: Cell<bool>,
    notify: Notify,
}

impl DrainSignal {
    pub(in crate::datapath) fn set(&self) {
        self.is_draining.set(true);
        self.notify.notify_waiters();
    }

    pub(super) fn is_set(&self) -> bool {
        self.is_draining.get()
    }

    pub(super) async fn wait(&self) {
        if !self.is_set() {
            self.notify.notified().await;
        }
    }
}
