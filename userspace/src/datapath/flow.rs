//! An established flow: its endpoints, tier and byte counts. Lives on one worker's thread.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use ipnet::IpNet;
use signalbox_api::flows::FlowView;
use signalbox_core::model::Tier;
use signalbox_core::routing::rotation::{Subject, covers};
use tokio::sync::Notify;

use crate::state::outcome::Direction;
use crate::state::route_stats::RouteClusterStats;
use crate::state::{ClusterState, HostState, ListenerState};

/// Endpoints of a flow, and the listener, route, cluster and host chosen for it.
pub struct FlowContext {
    pub client: SocketAddr,
    pub local: SocketAddr,
    pub backend: SocketAddr,
    pub listener: Arc<ListenerState>,
    pub route: Option<Box<str>>,
    pub cluster: Arc<ClusterState>,
    pub host: Arc<HostState>,
    pub stats: Option<Arc<RouteClusterStats>>,
}

/// An established flow. Counts in its cluster while it lives.
pub struct Flow {
    pub id: u64,
    pub context: FlowContext,
    pub started: Instant,
    pub last_active: Cell<Instant>,
    pub bytes_in: Cell<u64>,
    pub bytes_out: Cell<u64>,
    tier: Cell<Tier>,
    /// Reason why the flow is not on a faster tier.
    pub tier_reason: Cell<&'static str>,
    /// Reason why the flow was not cut.
    pub not_cut: Cell<&'static str>,
    /// The direction whose sender finished first.
    pub finished_first: Cell<Option<Direction>>,
    /// Signal that the flow is to be closed.
    pub close: Notify,
}

impl Flow {
    /// Adds carried bytes to the counters of the flow, its host, cluster and route.
    pub fn add_bytes(&self, direction: Direction, bytes: u64) {
        self.last_active.set(Instant::now());
        if let Some(share) = &self.context.stats {
            share.add_bytes(direction, bytes);
        }
        match direction {
            Direction::In => {
                self.bytes_in.set(self.bytes_in.get() + bytes);
                self.context.host.bytes_in.add(bytes);
                self.context.cluster.bytes_in.add(bytes);
            }
            Direction::Out => {
                self.bytes_out.set(self.bytes_out.get() + bytes);
                self.context.host.bytes_out.add(bytes);
                self.context.cluster.bytes_out.add(bytes);
            }
        }
    }

    /// Records that the sender of a direction has finished (FIN).
    pub fn set_finished(&self, direction: Direction) {
        if self.finished_first.get().is_none() {
            self.finished_first.set(Some(direction));
        }
    }

    pub fn tier(&self) -> Tier {
        self.tier.get()
    }

    /// Moves the flow to a tier.
    pub fn set_tier(&self, tier: Tier, why: &'static str) {
        self.tier_reason.set(why);
        if self.tier.get() != tier {
            self.context.cluster.active[self.tier.get() as usize].leave();
            self.tier.set(tier);
            self.context.cluster.active[tier as usize].enter();
            self.context.cluster.opened[tier as usize].inc();
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.context.cluster.active[self.tier.get() as usize].leave();
    }
}

/// The flows of one worker.
#[derive(Default)]
pub struct FlowList {
    all: RefCell<HashMap<u64, Rc<Flow>, foldhash::fast::FixedState>>,
    next: Cell<u64>,
}

/// Guard that keeps a flow in its worker's list until dropped.
pub struct FlowGuard {
    flows: Rc<FlowList>,
    pub flow: Rc<Flow>,
}

impl FlowList {
    /// Lists a new flow on the slowest tier. `worker` becomes part of the id, which makes the id unique in the process.
    pub fn open(self: &Rc<Self>, worker: usize, parts: FlowContext) -> FlowGuard {
        let id = self.next.get() << 8 | worker as u64;
        self.next.set(self.next.get() + 1);
        let now = Instant::now();
        parts.cluster.active[Tier::Copy as usize].enter();
        parts.cluster.opened[Tier::Copy as usize].inc();
        let flow = Rc::new(Flow {
            id,
            context: parts,
            started: now,
            last_active: Cell::new(now),
            bytes_in: Cell::new(0),
            bytes_out: Cell::new(0),
            tier: Cell::new(Tier::Copy),
            tier_reason: Cell::new("new"),
            not_cut: Cell::new(""),
            finished_first: Cell::new(None),
            close: Notify::new(),
        });
        self.all.borrow_mut().insert(id, Rc::clone(&flow));
        FlowGuard {
            flows: Rc::clone(self),
            flow,
        }
    }

    /// Closes all flows that match the subjects.
    pub fn close(&self, subjects: &[Subject]) {
        for flow in self.all.borrow().values() {
            let parts = &flow.context;
            if covers(subjects, &parts.cluster.name, &parts.host.name, parts.route.as_deref()) {
                flow.close.notify_one();
            }
        }
    }

    /// Returns the number of matching flows, and the first `limit` of them.
    pub fn list(&self, filter: &FlowFilter) -> (usize, Vec<FlowView>) {
        let all = self.all.borrow();
        let matching = || all.values().filter(|flow| filter.matches(flow));
        let mut views: Vec<_> = matching().take(filter.limit).map(|flow| view(flow)).collect();
        views.sort_by_key(|view| view.id);
        (matching().count(), views)
    }
}

impl Drop for FlowGuard {
    fn drop(&mut self) {
        self.flows.all.borrow_mut().remove(&self.flow.id);
    }
}

/// Filter for the list of flows.
#[derive(Clone, Debug, Default)]
pub struct FlowFilter {
    pub limit: usize,
    pub host: Option<String>,
    pub cluster: Option<String>,
    pub listener: Option<String>,
    pub tier: Option<String>,
    pub route: Option<String>,
    /// Prefix of the clients.
    pub client: Option<IpNet>,
}

impl FlowFilter {
    fn matches(&self, flow: &Flow) -> bool {
        self.is_tier(flow.tier())
            && self.is_client(flow.context.client.ip())
            && self.is_route(flow.context.route.as_deref())
            && self.is_of(
                &flow.context.host.name,
                &flow.context.cluster.name,
                &flow.context.listener.name,
            )
    }

    /// Returns whether the filter accepts flows of this tier.
    #[must_use]
    pub fn is_tier(&self, tier: Tier) -> bool {
        self.tier.as_deref().is_none_or(|wanted| wanted == tier.as_str())
    }

    /// Returns whether the filter accepts flows of this client.
    #[must_use]
    pub fn is_client(&self, client: IpAddr) -> bool {
        self.client.is_none_or(|net| net.contains(&client.to_canonical()))
    }

    /// Returns whether the filter accepts flows of this route.
    #[must_use]
    pub fn is_route(&self, route: Option<&str>) -> bool {
        self.route.is_none() || self.route.as_deref() == route
    }

    /// Returns whether the filter accepts flows of this host, cluster and listener.
    #[must_use]
    pub fn is_of(&self, host: &str, cluster: &str, listener: &str) -> bool {
        let is = |wanted: &Option<String>, have: &str| wanted.as_deref().is_none_or(|wanted| wanted == have);
        is(&self.host, host) && is(&self.cluster, cluster) && is(&self.listener, listener)
    }
}

/// Returns a flow as the admin API shows it.
fn view(flow: &Flow) -> FlowView {
    FlowView {
        id: flow.id,
        client: flow.context.client,
        local: flow.context.local,
        backend: flow.context.backend,
        listener: flow.context.listener.name.clone(),
        route: flow.context.route.as_deref().map(str::to_owned),
        cluster: flow.context.cluster.name.clone(),
        host: flow.context.host.name.clone(),
        leg_b_local: None,
        tier: flow.tier().as_str().into(),
        tier_reason: flow.tier_reason.get().into(),
        not_cut: flow.not_cut.get().into(),
        state: "established".into(),
        age_seconds: flow.started.elapsed().as_secs_f64(),
        idle_seconds: flow.last_active.get().elapsed().as_secs_f64(),
        bytes_in: flow.bytes_in.get(),
        bytes_out: flow.bytes_out.get(),
        packets_in: None,
        packets_out: None,
    }
}
