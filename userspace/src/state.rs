//! Runtime state: counters that survive configuration changes, and the snapshot from which workers choose.
//!
//! The store writes snapshots and health, workers write counters, and the admin API reads. The accept path loads one
//! pointer and adds to atomics without a lock (the thesis' prototype lost 18 % to one).

pub mod access_log;
pub mod apply_waiting;
pub mod connection_ids;
pub mod counts;
mod entities;
pub mod error_pages;
pub mod filter_verdicts;
pub mod ha;
pub mod handshake;
mod initial;
pub mod outcome;
pub mod paths;
pub mod request_stats;
pub mod route_stats;
pub mod series;
pub mod service_flows;
mod shared;
pub mod shield;
pub mod silent_hosts;
pub mod sync;
pub mod tls;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use foldhash::fast::FixedState;
use parking_lot::Mutex;
use signalbox_api::changes::ChangeEvent;
use signalbox_api::status::LastReload;
use signalbox_core::availability::ha::floating::{FloatingSources, NodeShare};
use signalbox_core::discovered::discovery::Discovered;
use signalbox_core::discovered::expose::ExposeResult;
use signalbox_core::discovered::merge::{TesterOverrides, WeightOverrides};
use signalbox_core::limits::limit::{self, SourceCells};
use signalbox_core::limits::stats::{Counter, Gauge, LabelledCounters};
use signalbox_core::model::shield::ApiPrefixes;
use signalbox_core::model::tls::Termination;
use signalbox_core::model::{Bind, Listener, Model, Protocol, Route};
use signalbox_core::routing::rotation::Rotation;
use signalbox_core::routing::subset::HostOrder;
use signalbox_core::routing::view::RoutingView;
use signalbox_core::wire::hostname::{Hostname, HostnamePattern};
use tokio::sync::broadcast;

use connection_ids::ConnectionIds;
use counts::LimitCounts;
pub use entities::{ClusterState, HostQueue, HostState, ListenerState, RouteState};
use shared::{AppliedChanges, KernelView, ProcessLife, TlsFiles};

use crate::source::SourceStatus;
use crate::state::access_log::AccessLog;
use crate::state::error_pages::ErrorPages;
use crate::state::route_stats::labels::RouteLabels;
use crate::sys::unix_ms;

/// Everything a worker needs for a connection. Immutable; replaced as a whole.
pub struct Snapshot {
    pub model: Arc<Model>,
    /// Model of the configuration file alone.
    pub file: Arc<Model>,
    /// Clusters and names that sources have discovered.
    pub discovered: Arc<Discovered>,
    /// Weights set by operators.
    pub weights: Arc<WeightOverrides>,
    /// Testers of migrations.
    pub testers: Arc<TesterOverrides>,
    /// Shield prefixes set by API.
    pub shield: Arc<ApiPrefixes>,
    /// Services for exposed applications, and applications that are not exposed, with the reason.
    pub exposure: Arc<ExposeResult>,
    /// Subjects that are out of rotation.
    pub rotation: Arc<Rotation>,
    /// Order of hosts for each cluster of which this balancer uses a subset.
    pub subsets: Arc<[Option<HostOrder>]>,
    pub view: RoutingView,
    pub listeners: Vec<Arc<ListenerState>>,
    pub clusters: Vec<Arc<ClusterState>>,
    pub hosts: Vec<Vec<Arc<HostState>>>,
    pub routes: Vec<Arc<RouteState>>,
    /// Hosts that are no longer configured but still have connections.
    pub draining: Vec<Arc<HostState>>,
    pub binds: Binds,
    /// Counters that number the choices for each path of a route.
    pub path_tickets: HashMap<usize, Vec<Arc<Counter>>, FixedState>,
    pub tls: Arc<tls::TlsState>,
    /// Where HTTP/2 is offered.
    pub http2: Arc<tls::Http2Offers>,
    pub idle_timeouts: IdleTimeouts,
    /// Addresses that move between nodes.
    pub floating: FloatingSources,
}

/// Idle times after which flows that are carried as a whole are ended.
#[derive(Debug)]
pub struct IdleTimeouts {
    /// Idle time of flows whose route has none of its own.
    pub common: Duration,
    /// Shortest of all idle times.
    pub least: Duration,
    /// Idle times of routes, by name.
    pub of_routes: HashMap<String, Duration, FixedState>,
}

impl IdleTimeouts {
    #[must_use]
    pub fn new(model: &Model) -> Self {
        let common = model.timeouts.idle;
        let own = |route: &Route| Some((route.hostname.to_string(), route.claimed.as_ref()?.idle?));
        let of_routes: HashMap<_, _, _> = model.routes.iter().filter_map(own).collect();
        Self {
            common,
            least: of_routes.values().copied().fold(common, Duration::min),
            of_routes,
        }
    }
}

impl Snapshot {
    /// Returns the number of a choice for a path of a route.
    #[must_use]
    pub fn path_ticket(&self, route: usize, path: usize) -> u64 {
        let tickets = self.path_tickets.get(&route).and_then(|paths| paths.get(path));
        tickets.map_or(0, |tickets| tickets.ticket())
    }

    /// Returns the route of a name, in or out of rotation.
    #[must_use]
    pub fn route(&self, name: Option<&Hostname>) -> Option<&Route> {
        self.model.routes.get(self.view.table.find(name?)?)
    }

    /// Returns the cluster that a route's `prefer` gives this client before all others, if it has a usable host.
    #[must_use]
    pub fn preferred(&self, route: usize, protocol: Protocol, client: IpAddr) -> Option<usize> {
        let has_host = |cluster: &usize| !self.view.usable(*cluster, protocol).is_empty();
        self.model
            .routes
            .get(route)?
            .preferred(client.to_canonical())
            .find(has_host)
    }
}

/// Map from a local address to the listener that is bound to it.
#[derive(Debug, Default)]
pub struct Binds(HashMap<u16, Vec<(Bind, usize)>, FixedState>);

impl Binds {
    pub fn new(model: &Model) -> Self {
        let mut binds = Self::default();
        for (index, listener) in model.listeners.iter().enumerate() {
            for bind in &listener.listen {
                binds.0.entry(bind.port).or_default().push((*bind, index));
            }
        }
        for by_port in binds.0.values_mut() {
            by_port.sort_by_key(|(bind, _)| std::cmp::Reverse(bind.prefix.prefix_len()));
        }
        binds
    }

    /// Returns the listener of a local address: the longest prefix wins, as in the kernel.
    #[must_use]
    pub fn find(&self, local: SocketAddr) -> Option<usize> {
        let at = local.ip().to_canonical();
        self.0
            .get(&local.port())?
            .iter()
            .find(|(bind, _)| bind.prefix.contains(&at))
            .map(|(_, index)| *index)
    }
}

/// A bounded queue of sources over their connection limit, from workers, which do not wait, to the shield.
pub struct OverLimit {
    sender: tokio::sync::mpsc::Sender<(Arc<ListenerState>, std::net::IpAddr)>,
    receiver: Mutex<tokio::sync::mpsc::Receiver<(Arc<ListenerState>, std::net::IpAddr)>>,
}

impl Default for OverLimit {
    fn default() -> Self {
        let (tell, told) = tokio::sync::mpsc::channel(1024);
        Self {
            sender: tell,
            receiver: Mutex::new(told),
        }
    }
}

impl OverLimit {
    /// Queues a source that was refused at a listener. Dropped if the queue is full.
    pub fn report(&self, listener: &Arc<ListenerState>, source: std::net::IpAddr) {
        let _ = self.sender.try_send((Arc::clone(listener), source));
    }

    /// Drains the queue of sources that have reached their connection limit.
    pub fn drain(&self, mut each: impl FnMut(&ListenerState, std::net::IpAddr)) {
        let mut told = self.receiver.lock();
        while let Ok((listener, source)) = told.try_recv() {
            each(&listener, source);
        }
    }
}

/// State that all threads of the process share.
pub struct Shared {
    pub snapshot: ArcSwap<Snapshot>,
    /// Function called when a new snapshot is active, before the change is answered, to update kernel tables.
    pub snapshot_follower: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Secret of this process, for random choices and the cells of the limiter.
    pub seed: u64,
    pub life: ProcessLife,
    pub totals: Totals,
    /// Counter that numbers the choices among all hosts (`unmatched: any`).
    pub any_ticket: Counter,
    /// Counter that numbers requests with an id.
    pub request_ids: Counter,
    pub connection_ids: ConnectionIds,
    pub limits: LimitCounts,
    /// Active error pages.
    pub error_pages: ArcSwap<ErrorPages>,
    /// The access log.
    pub log: Arc<AccessLog>,
    /// Labels of routes in `/metrics`, and the figures of removed routes.
    pub route_labels: RouteLabels,
    /// Figures of the last two minutes.
    pub series: series::Series,
    pub tls: TlsFiles,
    pub kernel: KernelView,
    pub applied: AppliedChanges,
    /// Status of the sources other than the file.
    pub sources: Mutex<Vec<Arc<SourceStatus>>>,
    /// Channel of changes, for all subscribers.
    pub changes: broadcast::Sender<Arc<ChangeEvent>>,
    /// Counts of the admin API's own connections.
    pub admin: AdminStats,
    /// Groups of virtual addresses.
    pub ha: Arc<ha::HaGroups>,
    /// Replication of flows to other nodes.
    pub sync: sync::SyncState,
    /// Share of this node in what all nodes of a set divide among them.
    pub node: NodeShare,
}

impl Shared {
    /// Returns the connections of a source at a listener that counts them.
    #[must_use]
    pub fn connections_of(&self, listener: &str, source: std::net::IpAddr) -> u32 {
        let snapshot = self.snapshot.load();
        let state = snapshot.listeners.iter().find(|state| state.name == listener);
        let source = state.and_then(|state| state.source(self.seed, source));
        source.map_or(0, |source| self.limits.sources.open_connections(source))
    }

    /// Source of a client's connections for a name, for the limits of the name's route.
    #[must_use]
    pub fn route_source(&self, hostname: &HostnamePattern, client: IpAddr) -> SourceCells {
        // No path is empty, so requests are counted separately.
        SourceCells::new(limit::seed_of_path(self.seed, hostname, ""), client)
    }

    /// Where TLS ends at a listener for a client that asks for this name.
    #[must_use]
    pub fn termination(&self, snapshot: &Snapshot, listener: &Listener, name: Option<&Hostname>) -> Termination {
        let route = snapshot.route(name);
        let termination = listener.termination(route);
        if !listener.needs_certificate(route) {
            return termination;
        }
        let has_certificate = |name| self.tls.certificates.load().named(name).next().is_some();
        let reaches_hosts = termination != Termination::Reencrypt || snapshot.tls.reencrypts();
        if reaches_hosts && name.is_some_and(has_certificate) {
            termination
        } else {
            Termination::Passthrough
        }
    }

    /// Announces a change to all listeners.
    pub fn announce(&self, change: ChangeEvent) {
        // A missing listener is no error.
        let _ = self.changes.send(Arc::new(change));
    }

    /// Returns the status of a source, created on the first call.
    pub fn source(&self, name: &str, kind: &'static str) -> Arc<SourceStatus> {
        let mut sources = self.sources.lock();
        if let Some(known) = sources.iter().find(|source| source.name == name) {
            return Arc::clone(known);
        }
        let new = SourceStatus::new(name, kind);
        sources.push(Arc::clone(&new));
        new
    }

    /// Adds a source that maintains its own status.
    pub fn add_source(&self, standing: Arc<SourceStatus>) {
        self.forget_source(&standing.name);
        self.sources.lock().push(standing);
    }

    /// Removes a source.
    pub fn forget_source(&self, name: &str) {
        let mut sources = self.sources.lock();
        sources.retain(|source| source.name != name);
    }

    /// Returns the status of all sources.
    #[must_use]
    pub fn sources(&self) -> Vec<Arc<SourceStatus>> {
        let sources = self.sources.lock();
        sources.clone()
    }
}

/// Counts of connections of the whole process.
#[derive(Debug, Default)]
pub struct Totals {
    /// Current connections, including cut flows.
    pub current: Gauge,
    /// Connections with sockets in this process. They count against limits, and the process ends when there are none.
    pub with_sockets: Gauge,
    /// Sockets to hosts for streams, beyond the one that each client's connection is given.
    pub stream_sockets: Gauge,
    pub total: Counter,
    /// Connections that the kernel peek has routed.
    pub in_kernel: Counter,
    pub refused: Counter,
    /// Counter of times that accepting paused, by the limit that caused it.
    pub paused: LabelledCounters,
    /// Connections that the kernel peek has passed up without a socket: those that got one here, and those that did not
    /// at first, by cause.
    pub repaired: Counter,
    /// See `repaired`.
    pub not_repaired: LabelledCounters,
    /// Connections without their entry in connection tracking.
    pub not_tracked: Counter,
}

/// Counts of the admin API's connections.
#[derive(Debug, Default)]
pub struct AdminStats {
    pub tcp: Gauge,
    pub unix: Gauge,
    /// Connections and requests ended by a limit, by limit.
    pub refused: LabelledCounters,
    /// Counter of changes over TCP that were refused.
    pub denied: Counter,
}

/// Results of changes of the configuration.
#[derive(Debug, Default)]
pub struct Reloads {
    pub ok: Counter,
    pub failed: Counter,
    pub last: Mutex<Option<LastReload>>,
}

impl Reloads {
    pub fn record(&self, source: &str, error: Option<String>) {
        if error.is_none() {
            self.ok.inc();
        } else {
            self.failed.inc();
        }
        let last = LastReload {
            ok: error.is_none(),
            source: source.into(),
            at: unix_ms() / 1000,
            error,
        };
        *self.last.lock() = Some(last);
    }
}
