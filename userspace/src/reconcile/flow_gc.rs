//! Garbage collection of the flow table: counts ended flows, ends idle flows, frees entries, and adopts the flows of an
//! earlier process. Runs in a separate thread, off the path of connections.

mod adopt;
mod ended;
mod examine;
mod peeked;
mod places;
mod release;
mod replicas;

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use signalbox_common::cut::flow::{CutFlow, HANDED_OFF, IS_PEEKED, state};
use signalbox_core::routing::rotation::{Subject, covers};

use crate::datapath::cut::registry::Registry;
use crate::datapath::cut::{UNFINISHED_TTL, program_ports};
use crate::datapath::report::Reports;
use crate::datapath::worker::WorkerHandle;
use crate::kernel::Cut;
use crate::kernel::cut::EndedRing;
use crate::kernel::cut::table::{duration_between, tick};
use crate::reconcile::kernel_peek::KernelPeek;
use crate::reconcile::wakeups::Wakeups;
use crate::state::Shared;
use crate::state::ha::OwnedGroups;
use crate::state::outcome::FlowEnd;
use crate::sys;
use ended::EndedQueue;
use places::PlacedPort;
use replicas::FormerGroups;

/// Interval of passes over ended flows.
const PASS_INTERVAL: Duration = Duration::from_millis(100);

/// Interval of passes while programs create flows, which are counted when they are first seen.
const PEEKED_PASS_INTERVAL: Duration = Duration::from_millis(20);

/// Interval of passes while such flows are also replicated to other nodes: a part of the replication delay.
const TOLD_PASS_INTERVAL: Duration = Duration::from_millis(5);

/// Interval of passes while many flows end: short passes do not delay a connection that waits for the CPU.
const BUSY_PASS_INTERVAL: Duration = Duration::from_millis(10);

/// Number of flows examined in a pass above which it is a busy one.
const MIN_BUSY_PASS: usize = 16;

/// Interval of sweeps over all flows.
const SWEEP_INTERVAL: Duration = Duration::from_secs(2);

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
    /// Leg B of flows that a process of another version still has. Their source ports are reserved.
    reserved: Mutex<Vec<PlacedPort>>,
    wakeups: Wakeups,
    /// Tick until which shadows of this node's addresses are taken over.
    takes_over_until: AtomicU32,
    /// Groups of virtual addresses whose shadows have been taken over.
    taken_over: ArcSwap<OwnedGroups>,
    /// Source ports that programs claim, read again at each sweep.
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
            wakeups: Wakeups::default(),
            takes_over_until: AtomicU32::new(tick()),
            taken_over: ArcSwap::default(),
            program_ports: ArcSwap::from_pointee(program_ports()),
        })
    }

    /// Adopts existing flows, allows the workers to cut, and starts the GC thread. `has_programs`: programs have
    /// already begun flows, some of which wait for their hosts.
    pub fn start(self: &Arc<Self>, has_programs: bool) -> std::io::Result<()> {
        // Flows of another version are carried over, unless their process still has them.
        self.cut.carry_over();
        {
            let _pass = self.pass_lock.lock();
            let others = self.cut.flows_not_carried_over();
            let reserved: Vec<_> = others.iter().map(|flow| self.port_of(flow)).collect();
            let waits = |index| has_programs && self.cut.table.is_of_programs(index);
            self.adopt(0..self.cut.table.len(), &reserved, waits);
            *self.reserved.lock() = reserved;
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
            let (mut followed, mut pause) = (Instant::now(), Duration::ZERO);
            while flow_gc.wakeups.next(0, pause).is_some()
                && let Some(looked_at) = flow_gc.pass(&mut gc)
            {
                if followed.elapsed() > SWEEP_INTERVAL {
                    followed = Instant::now();
                    flow_gc.follow_interfaces();
                }
                pause = match looked_at {
                    MIN_BUSY_PASS.. => BUSY_PASS_INTERVAL.min(flow_gc.pass_interval()),
                    _ => flow_gc.pass_interval(),
                };
            }
        })?;
        Ok(())
    }

    /// Largest segment size that all hosts accept, among those for which health checks have reported one.
    fn hosts_mss(&self) -> Option<u32> {
        let snapshot = self.shared.snapshot.load();
        snapshot
            .hosts
            .iter()
            .flatten()
            .filter_map(|host| host.handshake.mss())
            .min()
    }

    fn pass_interval(&self) -> Duration {
        if !self.kernel_peek.get().is_some_and(|peek| peek.is_loaded()) {
            PASS_INTERVAL
        } else if self.shared.sync.peers.load().is_empty() {
            PEEKED_PASS_INTERVAL
        } else {
            TOLD_PASS_INTERVAL
        }
    }

    /// Stops the flow GC because another process runs one from now on. Returns when no pass is in progress.
    pub fn retire(&self) {
        self.wakeups.close();
        drop(self.pass_lock.lock());
    }

    /// Returns whether another process manages the table.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.wakeups.is_closed()
    }

    /// Stops managing the table because the process ends. Cut flows continue. If there are none, all pins are removed.
    pub fn stop(&self) {
        self.retire();
        let live = (0..self.cut.table.len()).filter(|&index| self.cut.table.state(index) != state::FREE);
        let live = live.count();
        if live > 0 {
            tracing::info!(
                flows = live,
                "Cut flows continue without this process; `signalbox detach` would end them."
            );
        } else if self.cut.pins.is_locked()
            && let Err(error) = self.cut.remove_all()
        {
            tracing::warn!(%error, "Pinned programs and maps could not be removed.");
        }
    }

    /// Closes the cut flows that match the subjects.
    pub fn close(&self, subjects: &[Subject]) {
        let _pass = self.pass_lock.lock();
        if self.is_retired() {
            return;
        }
        for index in 0..self.cut.table.len() {
            if self.cut.table.state(index) != state::CUT {
                continue;
            }
            let flow = self.cut.table.read(index);
            // The flow's worker still writes to the entry: a later call closes it. A flow whose address another node
            // has is left to that node.
            if flow.handoff_state < HANDED_OFF || !self.owns(&flow) {
                continue;
            }
            let Some((host, _)) = self.registry.host_of(flow.host) else {
                continue;
            };
            // Names of routes are looked up only if a subject is a route.
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

    /// Examines the flows that have ended, and at intervals all flows. Returns how many ended flows it examined, or
    /// `None` once another process runs the flow GC.
    fn pass(&self, gc: &mut GcState) -> Option<usize> {
        let _pass = self.pass_lock.lock();
        if self.is_retired() {
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
            // A program's new flow reports its own end; a sweep finds flows whose report was lost.
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

    /// Updates ports, hosts' segment sizes and interfaces from the machine. Not once another process, or none, manages
    /// the table: pins removed then must not be created again.
    pub fn follow_interfaces(&self) {
        let _pass = self.pass_lock.lock();
        if self.is_retired() {
            return;
        }
        self.program_ports.store(Arc::new(program_ports()));
        self.cut.set_hosts_mss(self.hosts_mss());
        let look = !self.shared.life.is_being_replaced.load(Relaxed);
        self.cut.follow_interfaces(look);
        self.cut.flush_log();
    }

    /// Frees the entries of removed flows, and gives them back to their workers.
    fn free_entries(&self, gone: &mut Vec<(u32, PlacedPort)>) {
        let indices: Vec<_> = gone.iter().map(|(index, _)| *index).collect();
        self.cut.remove(&indices);
        self.return_entries(std::mem::take(gone));
    }
}

/// Returns the time since the last packet of a flow, in either direction.
#[must_use]
pub fn idle_for(flow: &CutFlow, now: u32) -> Duration {
    let [from_client, from_host] = flow.dirs.map(|way| duration_between(way.last_seen, now));
    from_client.min(from_host)
}
