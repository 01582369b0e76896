//! One flow: who talks to whom, by which way, and how much. Lives on one worker's thread.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use signalbox_core::model::Tier;
use signalbox_core::rotation::Subject;
use tokio::sync::Notify;

use crate::figures::Share;
use crate::rotate::covers;
use crate::state::{ClusterState, HostState, ListenerState};

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the host.
    In,
    /// From the host to the client.
    Out,
}

/// Who a flow connects, and by which way it was chosen.
pub struct Parts {
    pub client: SocketAddr,
    pub local: SocketAddr,
    pub backend: SocketAddr,
    pub listener: Arc<ListenerState>,
    pub route: Option<Box<str>>,
    pub cluster: Arc<ClusterState>,
    pub host: Arc<HostState>,
    pub share: Option<Arc<Share>>,
}

/// An established flow. Counts itself into its cluster while it lives.
pub struct Flow {
    pub id: u64,
    pub parts: Parts,
    pub started: Instant,
    pub last: Cell<Instant>,
    pub bytes_in: Cell<u64>,
    pub bytes_out: Cell<u64>,
    tier: Cell<Tier>,
    /// Why it is not on a faster tier.
    pub why: Cell<&'static str>,
    /// Why it was not cut.
    pub not_cut: Cell<&'static str>,
    /// The direction whose sender has finished before the other's.
    pub finished_first: Cell<Option<Direction>>,
    /// Told when it is to be closed.
    pub close: Notify,
}

impl Flow {
    /// Adds bytes that have been carried.
    pub fn carried(&self, direction: Direction, bytes: u64) {
        self.last.set(Instant::now());
        if let Some(share) = &self.parts.share {
            share.carried(direction, bytes);
        }
        match direction {
            Direction::In => {
                self.bytes_in.set(self.bytes_in.get() + bytes);
                self.parts.host.bytes_in.add(bytes);
                self.parts.cluster.bytes_in.add(bytes);
            }
            Direction::Out => {
                self.bytes_out.set(self.bytes_out.get() + bytes);
                self.parts.host.bytes_out.add(bytes);
                self.parts.cluster.bytes_out.add(bytes);
            }
        }
    }

    /// The sender of a direction has finished.
    pub fn finished(&self, direction: Direction) {
        if self.finished_first.get().is_none() {
            self.finished_first.set(Some(direction));
        }
    }

    pub fn tier(&self) -> Tier {
        self.tier.get()
    }

    /// Moves the flow to a tier.
    pub fn moved_to(&self, tier: Tier, why: &'static str) {
        self.why.set(why);
        if self.tier.get() != tier {
            self.parts.cluster.active[self.tier.get() as usize].leave();
            self.tier.set(tier);
            self.parts.cluster.active[tier as usize].enter();
            self.parts.cluster.opened[tier as usize].inc();
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.parts.cluster.active[self.tier.get() as usize].leave();
    }
}

/// The flows of one worker.
#[derive(Default)]
pub struct Flows {
    all: RefCell<HashMap<u64, Rc<Flow>, foldhash::fast::FixedState>>,
    next: Cell<u64>,
}

/// Keeps a flow in its worker's list.
pub struct Listed {
    flows: Rc<Flows>,
    pub flow: Rc<Flow>,
}

impl Flows {
    /// Lists a new flow, on the slowest tier; `worker` makes ids unique in the process.
    pub fn open(self: &Rc<Self>, worker: usize, parts: Parts) -> Listed {
        let id = self.next.get() << 8 | worker as u64;
        self.next.set(self.next.get() + 1);
        let now = Instant::now();
        parts.cluster.active[Tier::Copy as usize].enter();
        parts.cluster.opened[Tier::Copy as usize].inc();
        let flow = Rc::new(Flow {
            id,
            parts,
            started: now,
            last: Cell::new(now),
            bytes_in: Cell::new(0),
            bytes_out: Cell::new(0),
            tier: Cell::new(Tier::Copy),
            why: Cell::new("new"),
            not_cut: Cell::new(""),
            finished_first: Cell::new(None),
            close: Notify::new(),
        });
        self.all.borrow_mut().insert(id, Rc::clone(&flow));
        Listed {
            flows: Rc::clone(self),
            flow,
        }
    }

    /// Has the flows closed that these cover.
    pub fn close(&self, subjects: &[Subject]) {
        for flow in self.all.borrow().values() {
            let parts = &flow.parts;
            if covers(subjects, &parts.cluster.name, &parts.host.name, parts.route.as_deref()) {
                flow.close.notify_one();
            }
        }
    }

    /// How many there are that match, and the first `limit` of them.
    pub fn list(&self, filter: &Filter) -> (usize, Vec<FlowView>) {
        let all = self.all.borrow();
        let matching = || all.values().filter(|flow| filter.matches(flow));
        let mut views: Vec<_> = matching().take(filter.limit).map(|flow| FlowView::new(flow)).collect();
        views.sort_by_key(|view| view.id);
        (matching().count(), views)
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.flows.all.borrow_mut().remove(&self.flow.id);
    }
}

/// Which flows to list.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub limit: usize,
    pub host: Option<String>,
    pub cluster: Option<String>,
    pub listener: Option<String>,
    pub tier: Option<String>,
    pub route: Option<String>,
}

impl Filter {
    fn matches(&self, flow: &Flow) -> bool {
        self.is_tier(flow.tier())
            && self.is_route(flow.parts.route.as_deref())
            && self.is_of(
                &flow.parts.host.name,
                &flow.parts.cluster.name,
                &flow.parts.listener.name,
            )
    }

    /// Whether flows of this tier are wanted.
    #[must_use]
    pub fn is_tier(&self, tier: Tier) -> bool {
        self.tier.as_deref().is_none_or(|wanted| wanted == tier.as_str())
    }

    /// Whether flows of this route are wanted.
    #[must_use]
    pub fn is_route(&self, route: Option<&str>) -> bool {
        self.route.is_none() || self.route.as_deref() == route
    }

    /// Whether flows of this host, cluster and listener are wanted.
    #[must_use]
    pub fn is_of(&self, host: &str, cluster: &str, listener: &str) -> bool {
        let is = |wanted: &Option<String>, have: &str| wanted.as_deref().is_none_or(|wanted| wanted == have);
        is(&self.host, host) && is(&self.cluster, cluster) && is(&self.listener, listener)
    }
}

/// A flow as the admin API shows it.
#[derive(Clone, Debug, Serialize)]
pub struct FlowView {
    pub id: u64,
    pub client: SocketAddr,
    pub local: SocketAddr,
    pub backend: SocketAddr,
    pub listener: String,
    pub route: Option<String>,
    pub cluster: String,
    pub host: String,
    /// The balancer's own address on the leg to the host, where it is known without asking.
    pub leg_b_local: Option<SocketAddr>,
    pub tier: &'static str,
    /// Why it is on this tier.
    pub tier_reason: &'static str,
    /// Why it was not cut; empty where it was.
    pub not_cut: &'static str,
    pub state: &'static str,
    pub age_seconds: f64,
    pub idle_seconds: f64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Super-packets of the kernel count as one; not known on other tiers.
    pub packets_in: Option<u64>,
    pub packets_out: Option<u64>,
}

impl FlowView {
    fn new(flow: &Flow) -> Self {
        Self {
            id: flow.id,
            client: flow.parts.client,
            local: flow.parts.local,
            backend: flow.parts.backend,
            listener: flow.parts.listener.name.clone(),
            route: flow.parts.route.as_deref().map(str::to_owned),
            cluster: flow.parts.cluster.name.clone(),
            host: flow.parts.host.name.clone(),
            leg_b_local: None,
            tier: flow.tier().as_str(),
            tier_reason: flow.why.get(),
            not_cut: flow.not_cut.get(),
            state: "established",
            age_seconds: flow.started.elapsed().as_secs_f64(),
            idle_seconds: flow.last.get().elapsed().as_secs_f64(),
            bytes_in: flow.bytes_in.get(),
            bytes_out: flow.bytes_out.get(),
            packets_in: None,
            packets_out: None,
        }
    }
}
