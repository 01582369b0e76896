//! Replication of flows to the other nodes that share virtual addresses.
//!
//! Each node keeps a connection to each other node. It sends the flows that the kernel carries for it ([`send`]), and
//! enters the flows of other nodes into its own kernel's flow table as shadows ([`receive`]). When addresses move, the
//! first packet of a flow promotes its shadow, without this module.
//!
//! Connections of layer-4 services are sent the same way ([`services`]), into the kernel's table for these.
//!
//! The flow table is the queue: a slow or absent peer costs no memory. Everything runs in one thread.

mod connection;
mod cookies;
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
use signalbox_core::availability::sync::RecordClock;
use signalbox_core::model::ha::{HaNode, HaSyncServices, HighAvailability};
use signalbox_tls::nodes::NodeFiles;
use tokio::task::LocalSet;
use tokio::time::MissedTickBehavior;

use crate::kernel::Cut;
use crate::kernel::address::from_words;
use crate::kernel::cut::table::{monotonic_ms, tick};
use crate::reconcile::flow_gc::FlowGc;
use crate::reconcile::l4::Services;
use crate::state::Shared;
use crate::state::sync::PeerState;
use crate::sys;
use replicas::Replicas;
use send::PeerChanges;
use services::ServiceReplicas;

/// Interval at which changes of the flow table are collected: a part of the time until another node knows a flow.
const PICK_UP_INTERVAL: Duration = Duration::from_millis(2);

/// Interval of checks for the first report on groups.
const REPORT_INTERVAL: Duration = Duration::from_millis(20);

/// Time after which the flows of an unreachable node are no longer waited for.
const ABSENCE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for a node to connect again after a move: it tries after half a second.
const RECONNECT_TIMEOUT: Duration = Duration::from_millis(800);

/// Time for which a node counts as present after it refused this one, or was refused. It tries twice a second.
const REFUSAL_TTL: Duration = Duration::from_secs(3);

/// State of this node, shared by its tasks. All of them run in one thread.
struct Node {
    cut: Arc<Cut>,
    flow_gc: Arc<FlowGc>,
    shared: Arc<Shared>,
    listen: SocketAddr,
    files: NodeFiles,
    /// Name of this node, its index, and the number of all nodes.
    name: String,
    slot: u8,
    nodes: u8,
    peers: Vec<Peer>,
    replicas: RefCell<Replicas>,
    services: Arc<Services>,
    service_replicas: RefCell<ServiceReplicas>,
    /// Maximum number of other nodes' flows.
    max_replicas: u32,
    /// Groups that are handed over and have not left yet, with the number of hand-overs in progress.
    leaving: RefCell<HashMap<String, u32>>,
    /// Requests a check for ended moves.
    sweeps: tokio::sync::Notify,
    /// Held while another thread changes entries and routes of addresses.
    kernel_work: tokio::sync::Mutex<()>,
}

/// Another node.
struct Peer {
    name: String,
    slot: u8,
    address: SocketAddr,
    state: Arc<PeerState>,
    queue: PeerChanges,
    /// Time since when no data is received from the node; `None` while data arrives.
    absent_since: Cell<Option<Instant>>,
    /// Time when the node was last present, but with another list of nodes or another protocol version.
    refused_at: Cell<Option<Instant>>,
    /// Whether groups are being handed over because the node reclaims them.
    is_reclaiming: Cell<bool>,
}

impl Peer {
    /// Whether the node is connected, or was a moment ago: after a move, connections are made again.
    fn is_there(&self) -> bool {
        let is_recent = |since: Instant| since.elapsed() < RECONNECT_TIMEOUT;
        self.state.is_receiving.load(Relaxed) || self.absent_since.get().is_none_or(is_recent)
    }

    /// Whether the node is present but sends no flows, because its list of nodes or its version differs.
    fn is_refused(&self) -> bool {
        self.refused_at.get().is_some_and(|at| at.elapsed() < REFUSAL_TTL)
    }
}

/// Starts replication in a separate thread, if configured.
pub fn start(
    ha: Option<&HighAvailability>,
    cut: &Arc<Cut>,
    flow_gc: &Arc<FlowGc>,
    shared: &Arc<Shared>,
    services: Arc<Services>,
) -> std::io::Result<()> {
    let settings = ha.and_then(|ha| Some((ha, ha.sync.clone()?)));
    let Some((ha, settings)) = settings else {
        flow_gc.drop_shadows();
        hand_over::end_all(cut);
        return Ok(());
    };
    let host_name = sys::node_name();
    let Some(slot) = ha.own_slot(&host_name) else {
        let why = format!("{} is not one of `ha.nodes`", ha.own_name(&host_name));
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, why));
    };
    let (own, nodes) = (ha.own_name(&host_name).to_owned(), ha.nodes.clone());
    let (cut, flow_gc, shared) = (Arc::clone(cut), Arc::clone(flow_gc), Arc::clone(shared));
    let states: Vec<_> = nodes.iter().map(|node| peer_state(&node.name)).collect();
    let others = states.iter().filter(|state| state.node != own).map(Arc::clone);
    shared.sync.peers.store(Arc::new(others.collect()));
    if settings.services == HaSyncServices::Tcp {
        services.begin_replication();
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

/// Configured interface for virtual addresses.
fn ha_interface(shared: &Shared) -> Option<String> {
    shared.snapshot.load().model.ha.as_ref()?.interface.clone()
}

impl Node {
    /// Replicates until another process manages the flow table.
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
            // Changes since the last check are at most that old.
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

    /// Keeps the ends of these flows from being reported to peers, if the flows belong to other nodes. An owner that
    /// received them from here would end flows that it has not taken over yet.
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

    /// Decides whether this node is synced: whether it has all flows of its peers. Peers that have been absent for a
    /// while are not waited for. Present peers with another list of nodes or another version are.
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

    /// Waits until it is known which addresses this node has: before that, it cannot tell which flows are its own.
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
