//! A worker: one thread, its runtime, its listening sockets, its flows.

use std::collections::HashMap;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;

use signalbox_api::flows::FlowView;
use signalbox_common::credit::MAX_CREDITS;
use signalbox_core::model::Bind;
use signalbox_core::routing::rotation::Subject;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, LocalSet};

use super::accept::{self, StopMode};
use super::cut::{Cutter, PortPool, PortShare};
use super::flow::FlowFilter;
use super::http::drain::DrainSignal;
use super::http::host::pool::{HostPool, SWEEP_INTERVAL};
use super::http::timers::TimerPool;
use super::repaired;
use super::sockmap_watch::SockmapWatch;
use super::tracking::Tracking;
use super::worker_state::Worker;
use crate::datapath::cut::registry::Registry;
use crate::datapath::report::Reports;
use crate::kernel::Cut;
use crate::kernel::peek::PassedUpConnection;
use crate::kernel::sockmap::SockmapPair;
use crate::state::Shared;

/// Key of a listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListenSocketKey {
    /// A socket that `sk_lookup` steers connections to. Several workers have one each, numbered.
    Steered(usize),
    /// A socket that is bound to an address.
    Bound(Bind),
}

/// Command to a worker.
pub enum WorkerCommand {
    Listen(ListenSocketKey, TcpListener),
    /// Closes a socket once the connections in its queue are accepted.
    Unlisten(ListenSocketKey),
    /// Stops accepting on all sockets, and answers when that is done.
    Stop(StopMode, oneshot::Sender<()>),
    List(FlowFilter, oneshot::Sender<(usize, Vec<FlowView>)>),
    CreditExhausted(u32),
    /// Makes the sockets of these connections, with this filter until they are whole, and serves them.
    Repair(mpsc::Receiver<PassedUpConnection>, Arc<OwnedFd>),
    /// Closes the flows that the subjects cover.
    Close(Arc<[Subject]>),
    /// Allows flows to be cut from now on. The source ports belong to flows of an earlier process.
    AllowCut(Arc<[(PortPool, u16)]>),
    /// Reserves source ports for flows of another node.
    Reserve(Vec<(PortPool, u16)>),
    /// Returns entries of the flow table and source ports to the worker.
    Release(Vec<u32>, Vec<(PortPool, u16)>),
}

/// Accepting tasks by socket, each with the channel that stops it. A key may have several sockets: those of a
/// predecessor that had more workers.
type Acceptors = HashMap<ListenSocketKey, Vec<(watch::Sender<StopMode>, JoinHandle<()>)>>;

/// Everything that a worker needs to start.
#[derive(Clone)]
pub struct WorkerSetup {
    pub shared: Arc<Shared>,
    pub sockmap: Option<Arc<SockmapPair>>,
    pub cut: Option<(Arc<Cut>, Arc<Registry>)>,
    pub reports: Reports,
    /// Connections that the descriptor limit allows.
    pub default_max_connections: u32,
}

/// Handle of a worker for other threads.
#[derive(Clone)]
pub struct WorkerHandle {
    commands: mpsc::UnboundedSender<WorkerCommand>,
}

/// Number of credit pairs of each of `workers`.
#[must_use]
pub fn credit_pairs_per_worker(workers: usize) -> u32 {
    MAX_CREDITS / 2 / workers.max(1) as u32
}

/// Starts worker `index` of `workers`.
pub fn spawn(index: usize, workers: usize, setup: WorkerSetup) -> std::io::Result<WorkerHandle> {
    let (orders, inbox) = mpsc::unbounded_channel();
    let share = credit_pairs_per_worker(workers);
    thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
        let outcome = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .and_then(|runtime| {
                let local = LocalSet::new();
                local.block_on(
                    &runtime,
                    run(
                        (index, workers),
                        index as u32 * share..(index as u32 + 1) * share,
                        setup,
                        inbox,
                    ),
                )
            });
        if let Err(error) = outcome {
            tracing::error!(worker = index, %error, "A worker thread ended with an error.");
        }
    })?;
    Ok(WorkerHandle { commands: orders })
}

async fn run(
    (index, workers): (usize, usize),
    pairs: std::ops::Range<u32>,
    setup: WorkerSetup,
    mut inbox: mpsc::UnboundedReceiver<WorkerCommand>,
) -> std::io::Result<()> {
    let watch = SockmapWatch::new(pairs)?;
    tokio::task::spawn_local(Rc::clone(&watch).run());
    let share = PortShare {
        worker: index,
        workers,
        node: setup.shared.node,
    };
    let tracking = Rc::new(Tracking::new(Arc::clone(&setup.shared)));
    let worker = Rc::new(Worker {
        index,
        tracking: Rc::clone(&tracking),
        shared: setup.shared,
        flows: Rc::default(),
        sockmap_watch: watch,
        sockmap: setup.sockmap,
        cut: setup
            .cut
            .map(|(kernel, registry)| (Cutter::new(kernel, share, tracking), registry)),
        pool: HostPool::new(setup.default_max_connections, workers),
        timers: TimerPool::default(),
        handshakes: Rc::default(),
        drain: DrainSignal::default(),
        default_max_connections: setup.default_max_connections,
        reports: setup.reports,
    });
    // This timer is always due before those of connections. So setting one of those never moves the worker's next
    // wake-up, which would cost a write to an eventfd for each connection.
    let beating = Rc::clone(&worker);
    tokio::task::spawn_local(async move {
        let mut beat = tokio::time::interval(SWEEP_INTERVAL);
        let mut before = beating.shared.snapshot.load_full();
        loop {
            beat.tick().await;
            let snapshot = beating.shared.snapshot.load_full();
            beating.pool.sweep(&snapshot);
            if !Arc::ptr_eq(&before, &snapshot) {
                beating.drain.snapshot_changed();
            }
            before = snapshot;
        }
    });
    let mut acceptors = Acceptors::new();
    while let Some(command) = inbox.recv().await {
        handle(&worker, &mut acceptors, command).await;
    }
    Ok(())
}

impl WorkerHandle {
    pub fn send(&self, order: WorkerCommand) {
        // A worker with a closed channel has logged why.
        let _ = self.commands.send(order);
    }

    /// Returns the number of matching flows of the worker, and the first of them.
    pub async fn list(&self, filter: FlowFilter) -> (usize, Vec<FlowView>) {
        let (reply, answer) = oneshot::channel();
        self.send(WorkerCommand::List(filter, reply));
        answer.await.unwrap_or_default()
    }

    /// Commands the worker to stop accepting; the receiver resolves when it has.
    pub fn stop(&self, how: StopMode) -> oneshot::Receiver<()> {
        let (done, stopped) = oneshot::channel();
        self.send(WorkerCommand::Stop(how, done));
        stopped
    }
}

/// Carries a command out.
async fn handle(worker: &Rc<Worker>, acceptors: &mut Acceptors, command: WorkerCommand) {
    match command {
        WorkerCommand::Listen(socket, listener) => {
            let (stop, stopped) = watch::channel(StopMode::Running);
            let local = match socket {
                ListenSocketKey::Bound(bind) => bind.single().filter(|addr| !addr.ip().is_unspecified()),
                ListenSocketKey::Steered(_) => None,
            };
            let worker = Rc::clone(worker);
            let task = tokio::task::spawn_local(async move {
                if let Err(error) = accept::run(worker, listener, local, stopped).await {
                    tracing::error!(?socket, %error, "A listening socket failed.");
                }
            });
            acceptors.entry(socket).or_default().push((stop, task));
        }
        WorkerCommand::Unlisten(socket) => {
            for (stop, _) in acceptors.remove(&socket).into_iter().flatten() {
                let _ = stop.send(StopMode::Drain);
            }
        }
        WorkerCommand::Stop(how, done) => {
            worker.drain.set();
            let acceptors: Vec<_> = acceptors.drain().flat_map(|(_, all)| all).collect();
            for (stop, _) in &acceptors {
                let _ = stop.send(how);
            }
            for (_, task) in acceptors {
                let _ = task.await;
            }
            if let (StopMode::HandOver, Some((cutter, _))) = (how, &worker.cut) {
                cutter.hand_over();
            }
            let _ = done.send(());
        }
        WorkerCommand::List(filter, reply) => {
            let _ = reply.send(worker.flows.list(&filter));
        }
        WorkerCommand::Repair(waiting, hold) => {
            tokio::task::spawn_local(repaired::run(Rc::clone(worker), waiting, hold));
        }
        WorkerCommand::CreditExhausted(credit) => worker.sockmap_watch.wake(credit, 0),
        WorkerCommand::Close(subjects) => worker.flows.close(&subjects),
        WorkerCommand::AllowCut(taken) => {
            if let Some((cutter, _)) = &worker.cut {
                cutter.start(&taken);
            }
        }
        WorkerCommand::Reserve(ports) => {
            if let Some((cutter, _)) = &worker.cut {
                cutter.reserve(&ports);
            }
        }
        WorkerCommand::Release(entries, ports) => {
            if let Some((cutter, _)) = &worker.cut {
                cutter.give_back(entries, &ports);
            }
        }
    }
}
