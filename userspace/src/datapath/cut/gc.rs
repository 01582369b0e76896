//! Garbage collection of the flow table: counts flows' ends, ends idle flows, frees entries, and adopts the flows of an
//! earlier process. Runs in a thread of its own; nothing of it is on the path of a connection.

mod ended;
mod peeked;
mod replicas;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use signalbox_common::cut::flow::{
    CutFlow, FAILURE_IS_COUNTED, HANDED_OFF, IS_PEEKED, IS_REPLICA, LAST_REQUEST, OWNS_CONN, OWNS_LISTENER_SOURCE,
    OWNS_ROUTE_SOURCE, OWNS_SOURCE, RESET, RESET_TENTATIVE, RESYNC, SOCKETS_CLOSED, state,
};
use signalbox_core::ha::floating::FloatingSources;
use signalbox_core::hostname::HostnamePattern;
use signalbox_core::limit::SourceCells;
use signalbox_core::model::Tier;
use signalbox_core::rotation::{Subject, covers};

use crate::datapath::cut::registry::Registry;
use crate::datapath::cut::{PortPool, PortShare, entries_per_worker, program_ports};
use crate::datapath::kernel_peek::KernelPeek;
use crate::datapath::report::{Report, Reports};
use crate::datapath::worker::{WorkerCommand, WorkerHandle};
use crate::kernel::Cut;
use crate::kernel::address::from_words;
use crate::kernel::cut::EndedRing;
use crate::kernel::cut::table::{duration_between, tick};
use crate::state::connection_log;
use crate::state::ha::OwnedGroups;
use crate::state::outcome::{Direction, FlowEnd};
use crate::state::{Shared, Snapshot};
use crate::sys::{self, unix_ms};
use ended::EndedQueue;
use replicas::FormerGroups;

/// Interval of passes over ended flows.
const PASS_INTERVAL: Duration = Duration::from_millis(100);

/// Interval of passes while programs make flows, which are counted when they are seen.
const PEEKED_PASS_INTERVAL: Duration = Duration::from_millis(20);

/// Interval of passes while other nodes are told of such flows besides: a part of the time until they know them.
const TOLD_PASS_INTERVAL: Duration = Duration::from_millis(5);

/// Interval of passes while many flows end: short passes do not delay a connection that waits for the processor.
const BUSY_PASS_INTERVAL: Duration = Duration::from_millis(10);

/// Number of flows examined in a pass from which on it is a busy one.
const MIN_BUSY_PASS: usize = 16;

/// Interval of sweeps over all flows.
const SWEEP_INTERVAL: Duration = Duration::from_secs(2);

/// Time without packets after which the entry of an ended flow is freed: late packets still find it.
const ENDED_TTL: Duration = Duration::from_secs(1);

/// Time like [`ENDED_TTL`], for flows that programs have made: they begin more of them in a second than there are ports.
const PEEKED_ENDED_TTL: Duration = Duration::from_millis(300);

/// Age at which a flow is forgotten that a program has begun, and whose host has not answered.
const PEEKED_TTL: Duration = Duration::from_secs(10);

/// Time like [`ENDED_TTL`], after a reset that may not have been accepted.
const RESET_TTL: Duration = Duration::from_secs(30);

/// Time that an entry is kept after userspace has reset the flow: late packets are dropped without an answer.
const CLOSING_TTL: Duration = Duration::from_secs(2);

/// Age at which an entry that never became a flow is freed, because its process has ended.
pub(super) const UNFINISHED_TTL: Duration = Duration::from_secs(180);

pub struct FlowGc {
    cut: Arc<Cut>,
    registry: Arc<Registry>,
    shared: Arc<Shared>,
    workers: Vec<WorkerHandle>,
    reports: Reports,
    /// The kernel peek, whose flows are counted here.
    kernel_peek: OnceLock<Arc<KernelPeek>>,
    /// Lock of a pass.
    pass_lock: Mutex<()>,
    /// Leg B of flows that a process of another version still has: their source ports are reserved.
    reserved: Mutex<Vec<PlacedPort>>,
    retired: AtomicBool,
    /// Tick until which shadows of this node's addresses are taken over.
    takes_over_until: AtomicU32,
    /// Groups of virtual addresses whose shadows have been taken over.
    taken_over: ArcSwap<OwnedGroups>,
    /// Source ports that programs claim, read anew with each sweep.
    program_ports: ArcSwap<Option<RangeInclusive<u16>>>,
}

/// State of the flow GC's thread, kept from one pass to the next.
struct GcState {
    ring: EndedRing,
    /// Ended flows whose entries are still kept.
    ended: EndedQueue,
    swept: Instant,
    /// Flows being closed, and since when.
    closing: HashMap<u32, Instant>,
    owned: FormerGroups,
}

impl FlowGc {
    #[must_use]
    pub fn new(
        cut: Arc<Cut>,
        registry: Arc<Registry>,
        shared: Arc<Shared>,
        workers: Vec<WorkerHandle>,
        reports: Reports,
    ) -> Arc<Self> {
        Arc::new(Self {
            cut,
            registry,
            shared,
            workers,
            reports,
            kernel_peek: OnceLock::new(),
            pass_lock: Mutex::default(),
            reserved: Mutex::default(),
            retired: AtomicBool::new(false),
            takes_over_until: AtomicU32::new(tick()),
            taken_over: ArcSwap::default(),
            program_ports: ArcSwap::from_pointee(program_ports()),
        })
    }

    /// Adopts existing flows, permits the workers to cut, and starts its thread. `has_programs`: programs have begun flows
    /// already, of which some wait for their hosts.
    pub fn start(self: &Arc<Self>, has_programs: bool) -> std::io::Result<()> {
        // Flows of another version are carried over, unless its process still has them.
        self.cut.carry_over();
        {
            let _pass = self.pass_lock.lock().unwrap_or_else(PoisonError::into_inner);
            let others = self.cut.flows_not_carried_over();
            let reserved: Vec<_> = others.iter().map(|flow| self.port_of(flow)).collect();
            let waits = |index| has_programs && self.cut.table.is_of_programs(index);
            self.adopt(0..self.cut.table.len(), &reserved, waits);
            *self.reserved.lock().unwrap_or_else(PoisonError::into_inner) = reserved;
            if self.cut.pins.is_locked() {
                self.cut.pending.clear(waits);
            }
        }
        let Some(ring) = self.cut.take_ended_ring() else {
            return Ok(());
        };
        let flow_gc = Arc::clone(self);
        std::thread::Builder::new().name("flow-gc".into()).spawn(move || {
            // Nice value 0, unlike the control plane, which starts this thread: workers wait for the entries that it
            // frees.
            sys::set_nice(0);
            let mut gc = GcState {
                ring,
                ended: EndedQueue::new(flow_gc.cut.table.len()),
                swept: Instant::now(),
                closing: HashMap::new(),
                owned: None,
            };
            let mut followed = Instant::now();
            while let Some(looked_at) = flow_gc.pass(&mut gc) {
                if followed.elapsed() > SWEEP_INTERVAL {
                    followed = Instant::now();
                    flow_gc.program_ports.store(Arc::new(program_ports()));
                    flow_gc.cut.follow_interfaces();
                    flow_gc.cut.flush_log();
                }
                std::thread::sleep(match looked_at {
                    MIN_BUSY_PASS.. => BUSY_PASS_INTERVAL.min(flow_gc.pass_interval()),
                    _ => flow_gc.pass_interval(),
                });
            }
        })?;
        Ok(())
    }

    fn pass_interval(&self) -> Duration {
        if self.kernel_peek.get().is_none() {
            PASS_INTERVAL
        } else if self.shared.sync.peers.load().is_empty() {
            PEEKED_PASS_INTERVAL
        } else {
            TOLD_PASS_INTERVAL
        }
    }

    /// Stops the flow GC, because another process runs one from now on. Returns when no pass is under way.
    pub fn retire(&self) {
        self.retired.store(true, Relaxed);
        drop(self.pass_lock.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns whether another process keeps the table.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.retired.load(Relaxed)
    }

    /// Stops keeping the table, because the process ends. Cut flows go on; without any, all pins are removed.
    pub fn stop(&self) {
        self.retire();
        let live = (0..self.cut.table.len()).filter(|&index| self.cut.table.state(index) != state::FREE);
        let live = live.count();
        if live > 0 {
            tracing::info!(
                flows = live,
                "Cut flows go on without us; `signalbox detach` would end them."
            );
        } else if self.cut.pins.is_locked()
            && let Err(error) = self.cut.remove_all()
        {
            tracing::warn!(%error, "Pinned programs and maps could not be removed.");
        }
    }

    /// Closes the cut flows that the subjects cover.
    pub fn close(&self, subjects: &[Subject]) {
        let _pass = self.pass_lock.lock().unwrap_or_else(PoisonError::into_inner);
        if self.retired.load(Relaxed) {
            return;
        }
        for index in 0..self.cut.table.len() {
            if self.cut.table.state(index) != state::CUT {
                continue;
            }
            let flow = self.cut.table.read(index);
            // The flow's worker still writes to the entry: a later call closes it. A flow of an address that is another
            // node's is that node's business.
            if flow.handoff_state < HANDED_OFF || !self.owns(&flow) {
                continue;
            }
            let Some((host, _)) = self.registry.host_of(flow.host) else {
                continue;
            };
            // Names of routes are looked up only where a subject is a route.
            let by_route = subjects.iter().any(|s| matches!(s, Subject::Application(_)));
            let route = if by_route {
                self.registry.route_of(flow.route)
            } else {
                None
            };
            if covers(subjects, &host.cluster, &host.name, route.as_deref()) {
                // A flow that no pass has counted yet would leave its host's load too high.
                if flow.marks & IS_PEEKED != 0 {
                    self.count_peeked(index, &flow);
                }
                self.count_bytes(index, &flow);
                self.cut.reset_both(index, &flow);
                self.release(index, &flow, FlowEnd::Drained);
            }
        }
    }

    /// Adopts the flows of an earlier process among the entries `indices`, and clears away unfinished ones, unless they are
    /// somebody's that `waits`. Workers are told not to use the source ports of these flows, nor those that are `reserved`.
    fn adopt(&self, indices: impl IntoIterator<Item = u32>, reserved: &[PlacedPort], waits: impl Fn(u32) -> bool) {
        let snapshot = self.shared.snapshot.load_full();
        let alone = self.cut.pins.is_locked();
        let mut taken = reserved.to_vec();
        let mut adopted = 0;
        for index in indices {
            match self.cut.table.state(index) {
                state::FREE => continue,
                // A shadow is found by its node's messages, or by its packets.
                state::SHADOW => {
                    taken.push(port_of(&self.cut.table.read(index), &snapshot.floating));
                    continue;
                }
                state::CUT | state::CLOSING | state::DELETING => {}
                state::HELD if alone && self.cut.abandon_held(index) => {}
                // Its host answers, or it is forgotten later.
                _ if waits(index) => continue,
                _ => {
                    if alone && self.cut.table.read(index).marks & IS_REPLICA != 0 {
                        // Tuples may lead to it already.
                        self.cut.remove(&[index]);
                    } else if alone {
                        self.cut.table.set_state(index, state::FREE);
                    }
                    continue;
                }
            }
            let flow = self.cut.table.read(index);
            taken.push(port_of(&flow, &snapshot.floating));
            // A flow of a program's has no sockets, whatever the entry says until its host has got the first data.
            if flow.state != state::CUT || (alone && flow.handoff_state < HANDED_OFF && !waits(index)) {
                // The process that had to hand off what it had received has ended.
                self.cut.table.set_state(index, state::CLOSING);
                self.cut.table.set_marks(index, 0);
                continue;
            }
            self.adopt_flow(index, &flow, &snapshot);
            if alone {
                self.cut.table.set_sockets_closed(index);
            }
            adopted += 1;
        }
        if adopted > 0 {
            tracing::info!(flows = adopted, "Flows of an earlier process are adopted.");
        }
        let taken: Arc<[_]> = taken.into_iter().filter(|port| self.is_our_port(port)).collect();
        for worker in &self.workers {
            worker.send(WorkerCommand::AllowCut(Arc::clone(&taken)));
        }
    }

    /// Counts a flow that an earlier process or another node has made.
    fn adopt_flow(&self, index: u32, flow: &CutFlow, snapshot: &Snapshot) {
        if let Some(orphan) = self.registry.adopt(snapshot, flow.host, flow.listener) {
            let _ = self.reports.send(Report::HostAdopted(orphan));
        }
        if let Some((host, cluster)) = self.registry.host_of(flow.host) {
            host.active.enter();
            cluster.active[Tier::Cut as usize].enter();
            cluster.opened[Tier::Cut as usize].inc();
            // The flow counts as active, but not as a new connection of its route: the process that made it has counted
            // that.
            let route = self.registry.adopt_route(&self.shared, flow.route);
            if let Some(route) = route {
                route.stats.for_cluster(&cluster.name).active.enter();
            }
        }
        if let Some(listener) = self.registry.listener_of(flow.listener) {
            listener.active.enter();
        }
        self.shared.totals.current.enter();
        // OWNS_CONN only: the flow's source was counted in a process that has ended, or on another node.
        self.cut.table.set_marks(index, OWNS_CONN);
    }

    /// Carries over the flows of another version whose process has ended, and frees the source ports of those that
    /// ended with it.
    fn carry_over(&self) {
        let carried = self.cut.carry_over();
        if carried.is_empty() && self.cut.waits_for_other_version() {
            return;
        }
        let reserved = std::mem::take(&mut *self.reserved.lock().unwrap_or_else(PoisonError::into_inner));
        if carried.is_empty() && reserved.is_empty() {
            return;
        }
        let live: HashSet<_> = carried
            .iter()
            .map(|&index| self.port_of(&self.cut.table.read(index)))
            .collect();
        self.adopt(carried, &[], |_| false);
        self.return_ports(reserved.into_iter().filter(|port| !live.contains(port)));
    }

    /// Examines the flows that have ended, and all flows from time to time. Returns how many ended ones it examined, or
    /// `None` once another process runs the flow GC.
    fn pass(&self, gc: &mut GcState) -> Option<usize> {
        let _pass = self.pass_lock.lock().unwrap_or_else(PoisonError::into_inner);
        if self.retired.load(Relaxed) {
            return None;
        }
        self.cut.pins.retry_lock();
        self.carry_over();
        let now = tick();
        gc.ring.drain(|index, accepted_after| {
            if let Some(took) = accepted_after {
                self.note_connect_time(index, took);
            }
            gc.ended.push(index, now);
        });
        let (mut gone, mut looked_at) = (Vec::new(), 0);
        while let Some(index) = gc.ended.pop(now) {
            looked_at += 1;
            // A program's new flow says itself when it ends; a sweep finds what is lost.
            if !self.examine(index, now, &mut gc.closing, &mut gone) && !self.is_live(index) {
                gc.ended.requeue(index, now);
            }
        }
        self.free_entries(&mut gone);
        let has_changed_owner = self.follow_ownership(&mut gc.owned);
        if has_changed_owner || gc.swept.elapsed() > SWEEP_INTERVAL {
            gc.swept = Instant::now();
            for index in 0..self.cut.table.len() {
                if self.cut.table.state(index) != state::FREE && self.examine(index, now, &mut gc.closing, &mut gone) {
                    gc.ended.forget(index);
                }
            }
        }
        if has_changed_owner {
            self.taken_over.store(gc.owned.clone().unwrap_or_default());
        }
        self.free_entries(&mut gone);
        Some(looked_at)
    }

    /// Whether a flow is carried, and nothing speaks of its end.
    fn is_live(&self, index: u32) -> bool {
        let flow = self.cut.table.read(index);
        let flags = flow.dirs[0].flags | flow.dirs[1].flags;
        let is_own = flow.state == state::CUT && flow.marks & IS_REPLICA == 0;
        is_own && !flow.ended() && flags & RESET_TENTATIVE == 0
    }

    /// Frees the entries of flows that are gone, and gives them back to their workers.
    fn free_entries(&self, gone: &mut Vec<(u32, PlacedPort)>) {
        let indices: Vec<_> = gone.iter().map(|(index, _)| *index).collect();
        self.cut.remove(&indices);
        self.return_entries(std::mem::take(gone));
    }

    /// Updates a flow's counts, and ends the flow if it is time. Returns true if its entry is free, or is to be freed.
    fn examine(
        &self,
        index: u32,
        now: u32,
        closing: &mut HashMap<u32, Instant>,
        gone: &mut Vec<(u32, PlacedPort)>,
    ) -> bool {
        let flow = self.cut.table.read(index);
        let age = duration_between(flow.started, now);
        let idle = idle_for(&flow, now);
        let end = match flow.state {
            state::FREE => return true,
            state::CUT => {
                if flow.marks & IS_PEEKED != 0 {
                    self.count_peeked(index, &flow);
                }
                if flow.marks & IS_REPLICA != 0 {
                    if self.settle_replica(index, &flow, idle) {
                        gone.push((index, self.port_of(&flow)));
                        return true;
                    }
                } else if self.leave(index, &flow) {
                    return false;
                }
                self.count_bytes(index, &flow);
                if flow.handoff_state == SOCKETS_CLOSED && !self.cut.table.announced.contains(index) {
                    // Another process has cut it.
                    self.cut.table.changes.add(index);
                }
                let flags = flow.dirs[0].flags | flow.dirs[1].flags;
                if flow.ended() {
                    let end = if flags & RESET == 0 {
                        FlowEnd::Finished
                    } else if flow.dirs[0].flags & RESET != 0 {
                        FlowEnd::ClientReset
                    } else {
                        FlowEnd::HostReset
                    };
                    // The flow is no load of its host any more, though its entry is kept for a while.
                    self.release(index, &flow, end);
                    // The flow's sockets need the entry as long as they have bytes to deliver.
                    let is_left = flow.handoff_state == SOCKETS_CLOSED || idle >= UNFINISHED_TTL;
                    let ttl = if self.cut.table.is_of_programs(index) {
                        PEEKED_ENDED_TTL
                    } else {
                        ENDED_TTL
                    };
                    (is_left && idle >= ttl).then_some(end)
                } else if flags & RESET_TENTATIVE != 0 && idle >= RESET_TTL {
                    Some(if flow.dirs[0].flags & RESET_TENTATIVE != 0 {
                        FlowEnd::ClientReset
                    } else {
                        FlowEnd::HostReset
                    })
                } else if flow.handoff_state >= HANDED_OFF && self.is_over_idle(&flow, idle) && self.owns(&flow) {
                    self.cut.reset_both(index, &flow);
                    closing.insert(index, Instant::now());
                    self.release(index, &flow, FlowEnd::Idle);
                    None
                } else {
                    None
                }
            }
            state::CLOSING => {
                let since = *closing.entry(index).or_insert_with(Instant::now);
                if since.elapsed() < CLOSING_TTL {
                    // Repeated, because the first RST may have been lost or not have had the right sequence number any
                    // more.
                    self.cut.reset_both(index, &flow);
                    return false;
                }
                closing.remove(&index);
                Some(FlowEnd::Failed)
            }
            state::SHADOW => {
                self.take_over(index, &flow);
                return false;
            }
            // A program has made it, and its host has failed it: counted now, and freed below, later.
            state::INELIGIBLE if flow.marks & (IS_PEEKED | FAILURE_IS_COUNTED) == IS_PEEKED => {
                self.count_failure(index, &flow);
                return false;
            }
            // A program has made it, and its host is silent; nobody waits for it any more.
            _ if flow.marks & IS_PEEKED != 0 && age >= PEEKED_TTL && flow.state != state::ALLOCATED => {
                return self.forget_peeked(index, &flow);
            }
            // A program is filling in the entry, and runs to its end.
            state::ALLOCATED if self.cut.table.is_of_programs(index) => return false,
            // Being entered.
            state::ALLOCATED if flow.marks & IS_REPLICA != 0 => return false,
            // The entry is not a flow yet: its worker has it, unless that worker's process has ended.
            _ if age < UNFINISHED_TTL => return false,
            state::HELD => {
                if self.cut.abandon_held(index) {
                    return false;
                }
                self.return_entries(vec![(index, self.port_of(&flow))]);
                return true;
            }
            _ => {
                self.cut.table.set_state(index, state::FREE);
                return true;
            }
        };
        let Some(end) = end else { return false };
        self.release(index, &flow, end);
        gone.push((index, self.port_of(&flow)));
        true
    }

    /// Adds the bytes carried since the last call to the totals.
    fn count_bytes(&self, index: u32, flow: &CutFlow) {
        let carried = [0, 1].map(|way: usize| {
            let way_now = &flow.dirs[way];
            let more = way_now.bytes.wrapping_sub(way_now.accounted);
            if more > 0 {
                self.cut.table.set_accounted(index, way, way_now.bytes);
            }
            more
        });
        if carried != [0, 0]
            && let Some((host, cluster)) = self.registry.host_of(flow.host)
        {
            host.bytes_in.add(carried[0]);
            host.bytes_out.add(carried[1]);
            cluster.bytes_in.add(carried[0]);
            cluster.bytes_out.add(carried[1]);
            if let Some(share) = self.registry.stats_of(flow.route, &cluster) {
                share.add_bytes(Direction::In, carried[0]);
                share.add_bytes(Direction::Out, carried[1]);
            }
        }
    }

    /// Gives back all counts that the flow holds, and logs its end.
    fn release(&self, index: u32, flow: &CutFlow, end: FlowEnd) {
        // Only once, for the first caller: the copy of the flow may be old.
        let marks = self.cut.table.take_marks(index);
        if marks & OWNS_CONN == 0 {
            return;
        }
        self.log_end(index, flow, end);
        self.shared.totals.current.leave();
        if let Some((host, cluster)) = self.registry.host_of(flow.host) {
            cluster.leave_host(&host);
            self.follow_load(flow);
            cluster.active[Tier::Cut as usize].leave();
            cluster.closed[end as usize].inc();
            if let Some(share) = self.registry.stats_of(flow.route, &cluster) {
                share.active.leave();
                share.quality.flow_ended(end, flow.dirs[0].bytes, flow.dirs[1].bytes);
            }
        }
        if let Some(listener) = self.registry.listener_of(flow.listener) {
            listener.active.leave();
            if marks & OWNS_LISTENER_SOURCE != 0
                && let Some(source) = listener.source(self.shared.seed, from_words(flow.client))
            {
                self.shared.limiter.connection_closed(source);
            }
        }
        if marks & OWNS_ROUTE_SOURCE != 0
            && let Some(route) = self.registry.route_of(flow.route)
            && let Ok(hostname) = HostnamePattern::parse(&route)
        {
            let source = self.shared.route_source(&hostname, from_words(flow.client));
            self.shared.request_limiter.ended(source);
        }
        if marks & OWNS_SOURCE != 0 {
            let source = SourceCells::new(self.shared.seed, from_words(flow.client));
            self.shared.limiter.connection_closed(source);
        }
    }

    /// Whether a flow has carried nothing for too long: by its own limit, that of answers, that of its route, or the
    /// common one.
    fn is_over_idle(&self, flow: &CutFlow, idle: Duration) -> bool {
        if let Some(ticks) = flow.idle_limit() {
            return idle >= duration_between(0, ticks);
        }
        let snapshot = self.shared.snapshot.load();
        if flow.dirs[0].flags & LAST_REQUEST != 0 {
            let timeouts = &snapshot.model.timeouts.http;
            let has_answered = flow.dirs[1].bytes > 0 || flow.dirs[1].flags & RESYNC != 0;
            return idle >= if has_answered { timeouts.body } else { timeouts.answer };
        }
        let limits = &snapshot.idle_timeouts;
        // Names are looked up only for flows that may be over their limit.
        if idle < limits.least {
            return false;
        }
        let name = (!limits.of_routes.is_empty())
            .then(|| self.registry.route_of(flow.route))
            .flatten();
        let own = name.and_then(|name| limits.of_routes.get(&name).copied());
        idle >= own.unwrap_or(limits.common)
    }

    /// Logs a flow's end in the connection log, with what the flow table knows.
    fn log_end(&self, index: u32, flow: &CutFlow, end: FlowEnd) {
        self.shared.log.log_end(
            connection_log::ConnectionEnd::Flow(end),
            Some((index, flow.started)),
            || {
                let now = tick();
                let life = duration_between(flow.started, now);
                // The flow may have ended some time before this pass noticed it.
                let since = match end {
                    FlowEnd::Idle | FlowEnd::Drained => Duration::ZERO,
                    _ => idle_for(flow, now),
                };
                let listener = self.registry.listener_of(flow.listener);
                let snapshot = self.shared.snapshot.load();
                let mut configured = snapshot.model.listeners.iter();
                let protocol = listener
                    .as_ref()
                    .and_then(|state| configured.find(|known| known.name == state.name));
                let at = |words, port| SocketAddr::new(from_words(words), port);
                connection_log::ConnectionRecord {
                    at_ms: unix_ms().saturating_sub(since.as_millis() as u64),
                    client: at(flow.client, (flow.ports_a >> 16) as u16),
                    local: at(flow.vip, flow.ports_a as u16),
                    protocol: protocol.map(|listener| listener.protocol),
                    listener,
                    name: None,
                    route: self.registry.route_of(flow.route).map(Into::into),
                    host: self.registry.host_of(flow.host),
                    backend: Some(at(flow.host_addr, (flow.ports_b >> 16) as u16)),
                    tier: Some(Tier::Cut),
                    bytes_in: flow.dirs[0].bytes,
                    bytes_out: flow.dirs[1].bytes,
                    duration: life.saturating_sub(since),
                    connect: None,
                    end: connection_log::ConnectionEnd::Flow(end),
                    closed_by: None,
                    request: None,
                }
            },
        );
    }

    fn return_entries(&self, gone: Vec<(u32, PlacedPort)>) {
        let share = entries_per_worker(self.cut.table.worker_len(), self.workers.len());
        let mut by_worker: Vec<Vec<_>> = vec![Vec::new(); self.workers.len()];
        for (index, _) in gone.iter().filter(|(index, _)| !self.cut.table.is_of_programs(*index)) {
            if let Some(list) = by_worker.get_mut((index / share) as usize) {
                list.push(*index);
            }
        }
        for (worker, entries) in self.workers.iter().zip(by_worker) {
            if !entries.is_empty() {
                worker.send(WorkerCommand::Release(entries, Vec::new()));
            }
        }
        // Ports of programs are nobody's: each is taken when it is free. A flow of an earlier process may have an entry of
        // theirs and a worker's port.
        let programs = self.program_ports.load();
        let is_of_programs = |(index, (_, port)): &(u32, PlacedPort)| {
            let has = programs.as_ref().as_ref().is_some_and(|ports| ports.contains(port));
            has && self.cut.table.is_of_programs(*index)
        };
        let of_workers = gone.into_iter().filter(|gone| !is_of_programs(gone));
        self.return_ports(of_workers.map(|(_, place)| place));
    }

    /// Gives source ports back to their workers.
    fn return_ports(&self, ports: impl Iterator<Item = PlacedPort>) {
        for (worker, ports) in self.workers.iter().zip(self.ports_by_worker(ports)) {
            if !ports.is_empty() {
                worker.send(WorkerCommand::Release(Vec::new(), ports));
            }
        }
    }

    /// Divides source ports among the workers that they belong to; those of other nodes are left out.
    fn ports_by_worker(&self, ports: impl Iterator<Item = PlacedPort>) -> Vec<Vec<PlacedPort>> {
        let mut divided: Vec<Vec<_>> = vec![Vec::new(); self.workers.len()];
        for placed in ports.filter(|placed| self.is_our_port(placed)) {
            let worker = PortShare::worker_of(placed.1, self.workers.len(), self.shared.node);
            if let Some(list) = divided.get_mut(worker) {
                list.push(placed);
            }
        }
        divided
    }

    /// Whether a source port is one that this node's workers hand out.
    fn is_our_port(&self, (pool, port): &PlacedPort) -> bool {
        !pool.is_floating || self.shared.node.has_port(*port)
    }

    fn port_of(&self, flow: &CutFlow) -> PlacedPort {
        port_of(flow, &self.shared.snapshot.load().floating)
    }
}

/// Source port of leg B, and the pool that it comes from.
type PlacedPort = (PortPool, u16);

fn port_of(flow: &CutFlow, floating: &FloatingSources) -> PlacedPort {
    let source = from_words(flow.local);
    let pool = PortPool {
        source,
        is_floating: floating.moves(source),
        host: SocketAddr::new(from_words(flow.host_addr), (flow.ports_b >> 16) as u16),
    };
    (pool, flow.ports_b as u16)
}

/// Returns the time since the last packet of a flow, in either direction.
#[must_use]
pub fn idle_for(flow: &CutFlow, now: u32) -> Duration {
    let [from_client, from_host] = flow.dirs.map(|way| duration_between(way.last_seen, now));
    from_client.min(from_host)
}
