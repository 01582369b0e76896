//! Connections to hosts that wait for their next request: per worker and host, last in first out.
//!
//! A connection is closed within [`SWEEP_INTERVAL`] if the check of its socket failed, if it has waited too long, or if
//! its host takes no new requests.

mod streams;

pub(in crate::datapath::http) use streams::StreamOrDial;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;
use signalbox_core::model::Protocol;
use signalbox_tls::client::HostIdentity;

use super::tls::HostSession;
use crate::datapath::choose::Lease;
use crate::datapath::http::host_room::HostRoomGuard;
use crate::datapath::http::leg::Leg;
use crate::datapath::http::leg::http2::SharedHost;
use crate::state::tls::HostTls;
use crate::state::{ClusterState, HostState, Snapshot};
use streams::Dial;

/// Interval of checks of kept connections.
pub(in crate::datapath) const SWEEP_INTERVAL: Duration = Duration::from_millis(500);

/// Maximum number of idle connections per host and worker. A few HTTP/2 clients have hundreds of requests under way:
/// all the host connections that they soon need again must fit.
const MAX_IDLE: usize = 512;

/// Maximum number of idle connections per worker, and the number always allowed if descriptors are few.
const MAX_IDLE_OF_WORKER: usize = 4096;
const MIN_IDLE_OF_WORKER: usize = 64;

/// Time that a connection waits for its next request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// A host by the address of its state, which the pool keeps alive, and the address to connect to.
type HostAddress = (usize, SocketAddr);

/// Key of interchangeable connections: the host, and for TLS the address of its configuration, which the pool keeps
/// alive, and the name to ask for.
type PoolKey = (HostAddress, Option<(usize, HostIdentity)>);

/// Kept connections of a worker.
pub(in crate::datapath) struct HostPool {
    hosts: RefCell<HashMap<PoolKey, KeptHost, FixedState>>,
    /// Number of idle connections to all hosts.
    idle: Cell<usize>,
    max_idle: usize,
}

struct KeptHost {
    /// Keeps the address in [`PoolKey`] from being reused for another host.
    _host: Arc<HostState>,
    cluster: Arc<ClusterState>,
    tls: Option<Arc<HostTls>>,
    idle: VecDeque<Idle>,
    /// HTTP/2 connections, which requests share.
    shared: Vec<Rc<SharedHost>>,
    /// Connection in the making, for requests to share.
    dial: Weak<Dial>,
    /// Whether the host chose HTTP/1.1 last time.
    chooses_http1: bool,
}

struct Idle {
    stream: Leg,
    since: Instant,
}

/// Count of a host connection that carries a request, in its cluster's figures.
pub(in crate::datapath::http) struct ActiveConnection {
    cluster: Arc<ClusterState>,
    _room: Option<HostRoomGuard>,
}

impl ActiveConnection {
    /// Counts a connection. `room` is the room that a stream has taken for it.
    pub(super) fn new(cluster: &Arc<ClusterState>, room: Option<HostRoomGuard>) -> Self {
        cluster.pool_active.enter();
        Self {
            cluster: Arc::clone(cluster),
            _room: room,
        }
    }
}

impl Drop for ActiveConnection {
    fn drop(&mut self) {
        self.cluster.pool_active.leave();
    }
}

impl HostPool {
    /// Pool of one of `workers`, in a process with descriptors for `max_connections`. Idle connections may use an
    /// eighth of the descriptors; a connection is given two.
    pub(in crate::datapath) fn new(max_connections: u32, workers: usize) -> Self {
        let share = max_connections as usize / 4 / workers.max(1);
        Self {
            hosts: RefCell::default(),
            idle: Cell::new(0),
            max_idle: share.clamp(MIN_IDLE_OF_WORKER, MAX_IDLE_OF_WORKER),
        }
    }

    /// Takes the most recently used connection of a lease's host that is still good.
    pub(super) fn take(&self, lease: &Lease, session: Option<&HostSession>) -> Option<Leg> {
        let mut hosts = self.hosts.borrow_mut();
        let kept = hosts.get_mut(&pool_key(lease, session))?;
        while let Some(mut idle) = kept.idle.pop_back() {
            kept.cluster.pool_idle.leave();
            self.idle.set(self.idle.get() - 1);
            // tokio may not have seen yet that the host has closed the connection.
            if idle.stream.is_quiet(true) {
                return Some(idle.stream);
            }
        }
        None
    }

    /// Keeps a connection for another request to the lease's host.
    pub(super) fn put(&self, lease: &Lease, session: Option<&HostSession>, stream: Leg) {
        if self.idle.get() >= self.max_idle {
            return;
        }
        let mut hosts = self.hosts.borrow_mut();
        let kept = hosts
            .entry(pool_key(lease, session))
            .or_insert_with(|| KeptHost::new(lease, session));
        if kept.idle.len() == MAX_IDLE {
            kept.idle.pop_front();
        } else {
            kept.cluster.pool_idle.enter();
            self.idle.set(self.idle.get() + 1);
        }
        let since = Instant::now();
        kept.idle.push_back(Idle { stream, since });
    }

    /// Closes connections that will not be used again.
    pub(in crate::datapath) fn sweep(&self, snapshot: &Snapshot) {
        let mut hosts = self.hosts.borrow_mut();
        if hosts.is_empty() {
            return;
        }
        let usable = usable_hosts(snapshot);
        hosts.retain(|at, kept| {
            let before = kept.idle.len();
            let is_current = kept.tls.as_ref().is_none_or(|tls| snapshot.tls.is_current(tls));
            let is_usable = is_current && usable.contains(&at.0);
            let is_good = |idle: &mut Idle| idle.since.elapsed() < IDLE_TIMEOUT && idle.stream.is_quiet(false);
            kept.idle.retain_mut(|idle| is_usable && is_good(idle));
            let closed = before - kept.idle.len();
            self.idle.set(self.idle.get() - closed);
            (0..closed).for_each(|_| kept.cluster.pool_idle.leave());
            kept.shared.retain(|host| is_usable && is_wanted(host));
            !kept.idle.is_empty() || !kept.shared.is_empty() || kept.dial.strong_count() > 0
        });
    }
}

impl KeptHost {
    fn new(lease: &Lease, session: Option<&HostSession>) -> Self {
        Self {
            _host: Arc::clone(&lease.host),
            cluster: Arc::clone(&lease.cluster),
            tls: session.map(|session| Arc::clone(&session.tls)),
            idle: VecDeque::new(),
            shared: Vec::new(),
            dial: Weak::new(),
            chooses_http1: false,
        }
    }
}

/// Whether a shared connection is kept: it is good, and was used lately.
fn is_wanted(host: &Rc<SharedHost>) -> bool {
    host.is_good() && host.idle_since().is_none_or(|since| since.elapsed() < IDLE_TIMEOUT)
}

fn key(host: &Arc<HostState>, backend: SocketAddr) -> HostAddress {
    (Arc::as_ptr(host) as usize, backend)
}

fn pool_key(lease: &Lease, session: Option<&HostSession>) -> PoolKey {
    let tls = session.map(|session| (Arc::as_ptr(&session.tls) as usize, session.host.clone()));
    (key(&lease.host, lease.backend), tls)
}

/// Hosts that take new requests.
fn usable_hosts(snapshot: &Snapshot) -> HashSet<HostAddress, FixedState> {
    let mut usable = HashSet::default();
    for (at, (cluster, states)) in snapshot.model.clusters.iter().zip(&snapshot.hosts).enumerate() {
        for protocol in [Protocol::Http, Protocol::Tls] {
            let keys = snapshot.view.usable(at, protocol).iter().filter_map(|(host, _)| {
                let configured = cluster.hosts.get(usize::from(*host))?;
                let backend = SocketAddr::new(configured.address, configured.port(protocol)?);
                Some(key(states.get(usize::from(*host))?, backend))
            });
            usable.extend(keys);
        }
    }
    usable
}
