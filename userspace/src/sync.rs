//! Replication of flows to the other nodes that share virtual addresses.
//!
//! Each node keeps a connection to each other node, over which it sends the flows that the kernel carries for it
//! ([`send`]); those of the others it enters into its own kernel's flow table as shadows ([`receive`]). When addresses
//! move, the first packet of a flow promotes its shadow: nothing of this module is needed then.
//!
//! Connections of layer-4 services go the same way ([`services`]), into the kernel's table of these.
//!
//! The flow table is the queue: a slow or absent peer costs no memory. Everything runs in one thread.

mod connection;
pub mod hand_over;
mod interfaces;
mod receive;
pub mod reclaim;
mod replicas;
mod send;
mod services;
mod told;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use signalbox_common::cut::flow::state;
use signalbox_core::model::ha::{HaNode, HaSyncServices, HighAvailability};
use signalbox_core::sync::RecordClock;
use signalbox_tls::nodes::NodeFiles;
use tokio::task::LocalSet;
use tokio::time::MissedTickBehavior;

use crate::datapath::cut::gc::FlowGc;
use crate::kernel::Cut;
use crate::kernel::address::from_words;
use crate::kernel::cut::table::{monotonic_ms, tick};
use crate::state::Shared;
use crate::state::sync::PeerState;
use crate::sys;
use replicas::Replicas;
use send::PeerChanges;
use services::ServiceReplicas;
pub use services::ServiceTable;

/// Interval at which changes of the flow table are picked up: a part of the time until another node knows a flow.
const PICK_UP_INTERVAL: Duration = Duration::from_millis(2);

/// Interval at which a first report on groups is looked for.
const REPORT_INTERVAL: Duration = Duration::from_millis(20);

/// Time after which the flows of a node that cannot be reached are not waited for any more.
const ABSENCE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time that a node has to connect again behind a move: it is tried after half a second.
const RECONNECT_TIMEOUT: Duration = Duration::from_millis(800);

/// Time for which a node is taken to be there that has refused this one, or has been refused: it is tried twice a second.
const REFUSAL_TTL: Duration = Duration::from_secs(3);

/// A node and what its tasks share. All of them run in one thread.
struct Node {
    cut: Arc<Cut>,
    flow_gc: Arc<FlowGc>,
    shared: Arc<Shared>,
    listen: SocketAddr,
    files: NodeFiles,
    /// Name of this node, its position and the number of all.
    name: String,
    slot: u8,
    nodes: u8,
    peers: Vec<Peer>,
    replicas: RefCell<Replicas>,
    services: Arc<dyn ServiceTable>,
    service_replicas: RefCell<ServiceReplicas>,
    /// Most flows of other nodes.
    max_replicas: u32,
    /// Groups that are handed over and have not left yet, with how many are at it.
    leaving: RefCell<HashMap<String, u32>>,
    /// Asks for a look at moves that are over.
    sweeps: tokio::sync::Notify,
    /// Held by who changes addresses' entries and routes in another thread.
    kernel_work: tokio::sync::Mutex<()>,
}

/// Another node.
struct Peer {
    name: String,
    slot: u8,
    address: SocketAddr,
    state: Arc<PeerState>,
    queue: PeerChanges,
    /// Time since which nothing is received from it; `None` while something is.
    absent_since: Cell<Option<Instant>>,
    /// Time when it was there last, but with another list of nodes or another version of the protocol.
    refused_at: Cell<Option<Instant>>,
    /// Whether groups are being handed over because it reclaims them.
    is_reclaiming: Cell<bool>,
}

impl Peer {
    /// Whether the node is connected, or was a moment ago: behind a move connections are made anew.
    fn is_there(&self) -> bool {
        let is_recent = |since: Instant| since.elapsed() < RECONNECT_TIMEOUT;
        self.state.is_receiving.load(Relaxed) || self.absent_since.get().is_none_or(is_recent)
    }

    /// Whether the node is there, but does not tell of its flows: its list of nodes or its version is another.
    fn is_refused(&self) -> bool {
        self.refused_at.get().is_some_and(|at| at.elapsed() < REFUSAL_TTL)
    }
}

/// Starts replication in a thread of its own, if the configuration asks for it.
pub fn start(
    ha: Option<&HighAvailability>,
    cut: &Arc<Cut>,
    flow_gc: &Arc<FlowGc>,
    shared: &Arc<Shared>,
    services: Arc<dyn ServiceTable>,
) -> std::io::Result<()> {
    let settings = ha.and_then(|ha| Some((ha, ha.sync.clone()?)));
    let Some((ha, settings)) = settings else {
        flow_gc.drop_shadows();
        hand_over::end_all(cut);
        return Ok(());
    };
    let host_name = sys::host_name();
    let Some(slot) = ha.own_slot(&host_name) else {
        let why = format!("{} is none of the nodes of ha.nodes", ha.own_name(&host_name));
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, why));
    };
    let (own, nodes) = (ha.own_name(&host_name).to_owned(), ha.nodes.clone());
    let (cut, flow_gc, shared) = (Arc::clone(cut), Arc::clone(flow_gc), Arc::clone(shared));
    let states: Vec<_> = nodes.iter().map(|node| peer_state(&node.name)).collect();
    let others = states.iter().filter(|state| state.node != own).map(Arc::clone);
    shared.sync.peers.store(Arc::new(others.collect()));
    if settings.services == HaSyncServices::Tcp {
        services.begin();
    }
    std::thread::Builder::new().name("sync".into()).spawn(move || {
        // Nice value 0, unlike the control plane, which starts this thread: it works for the datapath.
        sys::set_nice(0);
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return tracing::error!(%error, "Flows are not replicated: there is no runtime."),
        };
        let peer = |(at, (node, state)): (usize, (&HaNode, Arc<PeerState>))| Peer {
            name: node.name.clone(),
            slot: at as u8,
            address: SocketAddr::new(node.address, settings.listen.port()),
            state,
            queue: PeerChanges::new(&cut),
            absent_since: Cell::new(Some(Instant::now())),
            refused_at: Cell::new(None),
            is_reclaiming: Cell::new(false),
        };
        let all = nodes.iter().zip(states).enumerate();
        let peers = all.filter(|(at, _)| *at != slot).map(peer).collect();
        let node = Rc::new(Node {
            replicas: RefCell::new(Replicas::new(ha_interface(&shared))),
            cut,
            flow_gc,
            shared,
            listen: settings.listen,
            files: NodeFiles {
                cert: settings.cert,
                key: settings.key,
                ca: settings.ca,
            },
            name: own,
            slot: slot as u8,
            nodes: nodes.len() as u8,
            services,
            service_replicas: RefCell::default(),
            max_replicas: settings.flows,
            leaving: RefCell::default(),
            sweeps: tokio::sync::Notify::new(),
            kernel_work: tokio::sync::Mutex::new(()),
            peers,
        });
        LocalSet::new().block_on(&runtime, node.run());
    })?;
    Ok(())
}

fn peer_state(node: &str) -> Arc<PeerState> {
    Arc::new(PeerState {
        node: node.to_owned(),
        ..PeerState::default()
    })
}

/// Interface that the configuration names for virtual addresses.
fn ha_interface(shared: &Shared) -> Option<String> {
    shared.snapshot.load().model.ha.as_ref()?.interface.clone()
}

impl Node {
    /// Replicates until another process keeps the flow table.
    async fn run(self: Rc<Self>) {
        let receiving = tokio::task::spawn_local(receive::run(Rc::clone(&self)));
        let handing_over = tokio::task::spawn_local(hand_over::run(Rc::clone(&self)));
        let sending: Vec<_> = (0..self.peers.len())
            .map(|at| tokio::task::spawn_local(send::run(Rc::clone(&self), at)))
            .collect();
        let mut ticks = tokio::time::interval(PICK_UP_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut before = Instant::now();
        let mut owned = self.shared.ha.owned();
        while !self.flow_gc.is_retired() {
            ticks.tick().await;
            // Changes since the last look are as old as that at most.
            self.pick_up_changes(before);
            self.pick_up_services();
            before = Instant::now();
            let now = self.shared.ha.owned();
            if !Arc::ptr_eq(&owned, &now) {
                self.service_replicas.borrow_mut().forget_own(&self);
                owned = now;
            }
            self.decide_whether_synced();
        }
        receiving.abort();
        handing_over.abort();
        for task in sending {
            task.abort();
        }
    }

    /// Hands the changes of the flow table to all peers.
    fn pick_up_changes(&self, since: Instant) {
        let table = &self.cut.table;
        let mut has_some = false;
        let mut replicas = self.replicas.borrow_mut();
        table.changes.take(|index| {
            if table.state(index) == state::CUT {
                table.announced.add(index);
            }
            replicas.note_change(self, index);
            for peer in &self.peers {
                peer.queue.dirty.add(index);
            }
            has_some = true;
            ControlFlow::Continue(())
        });
        if has_some {
            for peer in &self.peers {
                peer.queue.notify(since);
            }
        }
    }

    /// Hands the changes of services' connections to all peers.
    fn pick_up_services(&self) {
        if !self.shared.sync.services.is_wanted() {
            return;
        }
        let changes = self.shared.sync.services.take_changes();
        if !changes.is_empty() {
            for peer in &self.peers {
                peer.queue.add_services(&changes);
            }
        }
    }

    /// Has no peer told of the ends of these flows, as far as they are other nodes'. An owner that heard of them from here
    /// would end flows that it has not taken over yet.
    fn forget_others(&self, indices: &[u32]) {
        let floating = &self.shared.snapshot.load().floating;
        let is_others = |index: &&u32| {
            !self
                .shared
                .ha
                .has(floating, from_words(self.cut.table.read(**index).vip))
        };
        for index in indices.iter().filter(is_others) {
            for peer in &self.peers {
                peer.queue.forget(*index);
            }
        }
    }

    /// Says whether this node is synced: whether it has all flows of its peers. Those that have been absent for a while
    /// are not waited for; those that are there, with another list of nodes or another version, are.
    fn decide_whether_synced(&self) {
        let now = Instant::now();
        let is_synced = self.peers.iter().all(|peer| {
            if peer.state.is_receiving.load(Relaxed) {
                peer.absent_since.set(None);
                return peer.state.is_complete.load(Relaxed);
            }
            if peer.is_refused() {
                return false;
            }
            let since = peer.absent_since.get().unwrap_or(now);
            peer.absent_since.set(Some(since));
            now.duration_since(since) >= ABSENCE_TIMEOUT
        });
        let is_there = |peer: &&Peer| peer.state.is_receiving.load(Relaxed) || peer.is_refused();
        let peers = self.peers.iter().filter(is_there);
        self.shared.ha.set_peers(peers.count() as u32);
        self.shared.ha.set_synced(is_synced);
    }

    /// Waits until it is known which addresses this node has: before that it cannot say what is true of flows.
    async fn first_report(&self) {
        while !self.shared.ha.is_reported() {
            tokio::time::sleep(REPORT_INTERVAL).await;
        }
    }

    fn record_clock() -> RecordClock {
        RecordClock {
            tick: tick(),
            ms: monotonic_ms(),
        }
    }
}
