//! Runtime state of hosts, clusters, routes and listeners: their counters, and their known health.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use signalbox_api::hosts::LastCheck;
use signalbox_common::net::seq;
use signalbox_core::limits::connect_retry::ConnectTimes;
use signalbox_core::limits::limit::{self, SourceCells};
use signalbox_core::limits::stats::{Counter, Gauge, Histogram, LabelledCounters};
use signalbox_core::model::{Protocol, Tier};
use signalbox_core::routing::health::Health;
use signalbox_core::routing::obstacle::PeekObstacle;
use tokio::sync::Notify;

use super::handshake::HostHandshake;
use super::outcome::{FlowEnd, Ineligible};
use super::paths::{PathCounts, PathObstacle};
use super::request_stats::{Http2Stats, RequestStats};
use super::route_stats::{RouteLabel, RouteStats};
use super::silent_hosts::{AwayUntil, SilentHosts};
use super::tls::HandshakeStats;
use crate::kernel::cut::table::tick;
use crate::sys::unix_ms;

/// Runtime state of a router host.
#[derive(Debug)]
pub struct HostState {
    pub cluster: String,
    pub name: String,
    pub address: IpAddr,
    /// Current connections, including those being made: least-connections compares these.
    pub active: Gauge,
    pub total: Counter,
    pub refused: Counter,
    pub bytes_in: Counter,
    pub bytes_out: Counter,
    /// True if the last connect to the host has failed.
    pub failing: AtomicBool,
    pub ejected: AtomicBool,
    pub draining: AtomicBool,
    /// True if the host is a listener of this balancer.
    pub is_own_listener: AtomicBool,
    /// Health by which hosts are chosen, once that is in force.
    health: AtomicU8,
    decided_health: AtomicU8,
    health_since_ms: AtomicU64,
    pub last_check: Mutex<Option<LastCheck>>,
    /// Reason why the last TLS handshake of the datapath with the host failed.
    tls_fault: Mutex<Option<String>>,
    /// Whether new connections go to other hosts, because this one was silent.
    away: AwayUntil,
    /// Times in which the host has accepted connections that the kernel has routed.
    pub connect_times: ConnectTimes,
    /// Tick at which the host was last seen to have accepted a connection, 20 ms late at most; 0: never.
    pub accepted_at: AtomicU32,
    /// TCP options of the host, from the last check.
    pub handshake: HostHandshake,
    /// Number of the host in the flow table; 0 until it has one.
    pub number: AtomicU32,
    /// Time at which the host's handshake did not match a client's; 0: never.
    unfit_since_ms: AtomicU64,
}

/// Time for which a host counts as unfit for cut requests, because each attempt costs it a separate connection.
const UNFIT_PERIOD_MS: u64 = 10_000;

impl HostState {
    /// Notes why a flow to the host was not cut, if the host is the reason.
    pub fn note_not_cut(&self, why: Ineligible) {
        if why.is_of_host() {
            self.note_unfit();
        }
    }

    /// Notes that the host's handshake did not match a client's.
    pub fn note_unfit(&self) {
        self.unfit_since_ms.store(unix_ms(), Relaxed);
    }

    /// Whether new connections go to other hosts, because the host was silent.
    #[must_use]
    pub fn is_away(&self, now: u32) -> bool {
        self.away.is_ahead(now)
    }

    /// Whether the host has accepted a connection after a tick.
    #[must_use]
    pub fn has_accepted_since(&self, tick: u32) -> bool {
        let accepted = self.accepted_at.load(Relaxed);
        accepted != 0 && seq::after(accepted, tick)
    }

    /// Whether a flow to the host could not be cut recently.
    #[must_use]
    pub fn is_unfit(&self) -> bool {
        self.was_unfit_within(UNFIT_PERIOD_MS)
    }

    /// Whether a flow to the host could not be cut within the last `period_ms` milliseconds.
    #[must_use]
    pub fn was_unfit_within(&self, period_ms: u64) -> bool {
        let since = self.unfit_since_ms.load(Relaxed);
        since != 0 && unix_ms().wrapping_sub(since) < period_ms
    }

    #[must_use]
    pub fn new(cluster: &str, name: &str, address: IpAddr) -> Self {
        Self {
            cluster: cluster.into(),
            name: name.into(),
            address,
            active: Gauge::default(),
            total: Counter::default(),
            refused: Counter::default(),
            bytes_in: Counter::default(),
            bytes_out: Counter::default(),
            failing: AtomicBool::new(false),
            ejected: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            is_own_listener: AtomicBool::new(false),
            health: AtomicU8::new(0),
            decided_health: AtomicU8::new(0),
            health_since_ms: AtomicU64::new(unix_ms()),
            last_check: Mutex::new(None),
            tls_fault: Mutex::new(None),
            away: AwayUntil::default(),
            connect_times: ConnectTimes::default(),
            accepted_at: AtomicU32::new(0),
            handshake: HostHandshake::default(),
            number: AtomicU32::new(0),
            unfit_since_ms: AtomicU64::new(0),
        }
    }

    /// Reason why the last TLS handshake of the datapath with the host failed.
    #[must_use]
    pub fn tls_fault(&self) -> Option<String> {
        self.tls_fault.lock().clone()
    }

    /// Has its connections counted by a gauge, whose word programs may change, too.
    #[must_use]
    pub fn counted_by(mut self, active: Gauge) -> Self {
        self.active = active;
        self
    }

    pub fn set_tls_fault(&self, fault: Option<String>) {
        *self.tls_fault.lock() = fault;
    }

    #[must_use]
    pub fn health(&self) -> (Health, u64) {
        (health_of(&self.health), self.health_since_ms.load(Relaxed))
    }

    /// Health that the next snapshot goes by.
    #[must_use]
    pub fn decided_health(&self) -> Health {
        health_of(&self.decided_health)
    }

    /// Decides the health of the next snapshot.
    pub fn decide_health(&self, health: Health) {
        self.decided_health.store(health as u8, Relaxed);
    }

    /// Notes that the decided health is in force.
    pub fn put_health_in_force(&self) {
        let decided = self.decided_health.load(Relaxed);
        if self.health.load(Relaxed) != decided {
            self.health_since_ms.store(unix_ms(), Relaxed);
            self.health.store(decided, Relaxed);
        }
    }

    /// Decides a health, and puts it in force.
    pub fn set_health(&self, health: Health) {
        self.decide_health(health);
        self.put_health_in_force();
    }
}

fn health_of(number: &AtomicU8) -> Health {
    match number.load(Relaxed) {
        0 => Health::Unknown,
        1 => Health::Healthy,
        _ => Health::Unhealthy,
    }
}

/// Runtime state of a cluster.
#[derive(Debug, Default)]
pub struct ClusterState {
    pub name: String,
    /// Counter that numbers the choices of a host.
    pub ticket: Counter,
    pub opened: [Counter; Tier::ALL.len()],
    pub active: [Gauge; Tier::ALL.len()],
    /// Flows ended, by [`FlowEnd`].
    pub closed: [Counter; FlowEnd::ALL.len()],
    pub connect_failures: LabelledCounters,
    /// SYNs that were sent to a host again, and connections that went to another host because the first did not answer.
    pub connect_retries: Counter,
    /// See `connect_retries`.
    pub redispatches: Counter,
    pub silent: SilentHosts,
    pub checks_ok: Counter,
    pub checks_failed: Counter,
    pub bytes_in: Counter,
    pub bytes_out: Counter,
    pub connect_seconds: Histogram,
    /// Requests that were sent again, because the host's connection ended without a byte of an answer.
    pub retries: Counter,
    /// Answers that were repaired (`answers: lenient`).
    pub repaired_answers: Counter,
    /// Duration of requests, from the end of their heads to the end of their answers.
    pub request_seconds: Histogram,
    /// Connections to hosts that wait for a request (`routing: request`).
    pub pool_idle: Gauge,
    /// Connections to hosts that carry a request (`routing: request`).
    pub pool_active: Gauge,
    /// HTTP/2 to its hosts.
    pub http2: Http2Stats,
    /// Requests and connections that wait until a host has room.
    pub queue: HostQueue,
}

/// Queue for the hosts of a cluster, if they have a connection limit.
#[derive(Debug, Default)]
pub struct HostQueue {
    pub waiting: Gauge,
    /// Waits that ended without a host.
    pub timeouts: Counter,
    /// Waits that ended because the client had left.
    pub abandoned: Counter,
    /// Signals of the waiting connections, in order. Locked only while a connection waits.
    order: Mutex<VecDeque<Arc<Notify>>>,
}

impl HostQueue {
    /// An empty queue whose places are counted by a gauge.
    #[must_use]
    pub fn counted_by(waiting: Gauge) -> Self {
        Self {
            waiting,
            ..Self::default()
        }
    }

    /// Takes the last place and returns its signal. The first connection in the queue, when signalled, checks for room.
    pub fn enter(&self) -> Arc<Notify> {
        let signal = Arc::<Notify>::default();
        self.order.lock().push_back(Arc::clone(&signal));
        self.waiting.enter();
        signal
    }

    /// Gives a place up. The new first one then checks: there may be room for more than one.
    pub fn leave(&self, place: &Arc<Notify>) {
        self.order.lock().retain(|signal| !Arc::ptr_eq(signal, place));
        self.waiting.leave();
        self.wake_first();
    }

    #[must_use]
    pub fn is_first(&self, place: &Arc<Notify>) -> bool {
        self.order
            .lock()
            .front()
            .is_some_and(|signal| Arc::ptr_eq(signal, place))
    }

    fn wake_first(&self) {
        if let Some(signal) = self.order.lock().front() {
            signal.notify_one();
        }
    }
}

impl ClusterState {
    /// Notes that a host did not answer: new connections go to others for about a second.
    pub fn note_silent(&self, host: &HostState) {
        let now = tick();
        host.away.begin(now);
        self.silent.away.begin(now);
    }

    /// Whether a host may be away.
    #[must_use]
    pub fn has_away_hosts(&self, now: u32) -> bool {
        self.silent.away.is_ahead(now)
    }

    /// Whether one more connection may leave its host, which does not answer, for another one: one in twenty may.
    pub fn may_redispatch(&self) -> bool {
        let opened = self.opened.iter().map(Counter::get).sum();
        self.silent.take(opened)
    }

    /// Counts one connection less for a host.
    pub fn leave_host(&self, host: &HostState) {
        host.active.leave();
        self.wake_waiting();
    }

    /// Has the first connection that waits for a host look for room.
    pub fn wake_waiting(&self) {
        if self.queue.waiting.get() > 0 {
            self.queue.wake_first();
        }
    }
}

/// Runtime state of a route.
#[derive(Debug, Default)]
pub struct RouteState {
    pub hostname: String,
    /// Counter that numbers connections, and thereby draws each one's cluster.
    pub total: Counter,
    /// Counter of connections that the kernel peek has routed. It draws with a separate counter.
    pub peeked: Counter,
    pub stats: RouteStats,
    pub label: RouteLabel,
    /// Number of the route in the flow table; 0 until it has one.
    pub number: AtomicU32,
    /// Why workers route its connections, by protocol: `http` and `tls`.
    pub left_to_workers: [PathObstacle; 2],
}

impl RouteState {
    /// Returns how many connections the route has had.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.total.get() + self.peeked.get()
    }

    /// Returns why workers route its connections at listeners of a protocol; `None` where the kernel routes them.
    #[must_use]
    pub fn obstacle(&self, protocol: Protocol) -> Option<PeekObstacle> {
        let [of_http, of_tls] = &self.left_to_workers;
        match protocol {
            Protocol::Http => of_http.get(),
            Protocol::Tls => of_tls.get(),
            Protocol::Tcp => None,
        }
    }
}

/// Runtime state of a listener.
#[derive(Debug, Default)]
pub struct ListenerState {
    pub name: String,
    /// Number of the listener in the kernel's counters.
    pub id: u32,
    pub total: Counter,
    pub active: Gauge,
    pub named: Counter,
    pub peek: LabelledCounters,
    pub refused: LabelledCounters,
    pub peek_seconds: Histogram,
    /// Requests of a listener with `routing: request`, by cluster and class of the status code.
    pub requests: RequestStats,
    /// Requests that the balancer itself answered or gave up, by reason.
    pub request_refused: LabelledCounters,
    /// TLS handshakes of a listener with `protocol: https`.
    pub handshakes: HandshakeStats,
    /// HTTP/2 of clients whose requests are routed one by one.
    pub http2: Http2Stats,
    /// Flows that were not cut, by [`Ineligible`]. Without a lock, because every such connection
    /// counts here.
    pub not_cut: [Counter; Ineligible::LABELS.len()],
    /// WebSockets, by the result of their late cut.
    pub late_cut: LabelledCounters,
    /// Bytes of clients after a cut request, found when their socket was closed: the host has not received them.
    pub bytes_behind_request: Counter,
    /// Number of the listener in the flow table; 0 until it has one.
    pub number: AtomicU32,
    /// Prefix lengths, IPv4 and IPv6, that define a source, if the listener limits connections by source. Set once and
    /// never changed: counts must be given back to the same source.
    pub source_bits: OnceLock<(u32, u32)>,
    pub paths: PathCounts,
    /// Why workers route its connections.
    pub left_to_workers: PathObstacle,
}

impl ListenerState {
    /// Returns the source of an address at this listener; `None` if it does not count by source.
    #[must_use]
    pub fn source(&self, seed: u64, address: IpAddr) -> Option<SourceCells> {
        let bits = *self.source_bits.get()?;
        Some(SourceCells::with_prefix(
            limit::seed_of(seed, &self.name),
            address,
            bits,
        ))
    }
}
