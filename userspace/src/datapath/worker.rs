//! A worker: one thread, its runtime, its listening sockets, its flows.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use signalbox_common::gate::MAX_GATES;
use signalbox_core::model::Bind;
use signalbox_core::rotation::Subject;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, LocalSet};

use super::accept::{self, Stop};
use super::cut::Cutter;
use super::flow::{Filter, FlowView, Flows};
use super::watch::Watch;
use crate::kernel::Cut;
use crate::kernel::sockmap::Joiner;
use crate::registry::Registry;
use crate::state::Shared;
use crate::store::Event;

/// Key of a listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Socket {
    /// A socket that `sk_lookup` steers connections to; several workers have one each, numbered.
    Steered(usize),
    /// A socket that is bound to an address.
    Bound(Bind),
}

/// Command to a worker.
pub enum Order {
    Listen(Socket, TcpListener),
    /// Closes a socket once the connections in its queue are accepted.
    Unlisten(Socket),
    /// Stops accepting on all sockets; answers when that is done.
    Stop(Stop, oneshot::Sender<()>),
    List(Filter, oneshot::Sender<(usize, Vec<FlowView>)>),
    GateClosed(u32),
    /// Closes the flows that the subjects cover.
    Close(Arc<[Subject]>),
    /// Permits flows to be cut from now on. The (host, source port) pairs belong to flows of an earlier process.
    Cut(Arc<[(SocketAddr, u16)]>),
    /// Gives entries of the flow table, and (host, source port) pairs, back.
    Freed(Vec<u32>, Vec<(SocketAddr, u16)>),
}

/// State that the connections of a worker share. Never leaves the worker's thread.
pub struct Worker {
    pub index: usize,
    pub shared: Arc<Shared>,
    pub flows: Rc<Flows>,
    pub watch: Rc<Watch>,
    pub joiner: Option<Arc<Joiner>>,
    /// Parts of tier `cut`; `None` where it is off or not available.
    pub cut: Option<(Rc<Cutter>, Arc<Registry>)>,
    default_max: u32,
    events: mpsc::UnboundedSender<Event>,
    /// Accepting tasks by socket. A key may stand for several sockets: those of a predecessor that had more workers.
    acceptors: RefCell<HashMap<Socket, Vec<Acceptor>>>,
}

/// An accepting task, and the channel that stops it.
type Acceptor = (watch::Sender<Stop>, JoinHandle<()>);

/// Everything that a worker needs to start.
#[derive(Clone)]
pub struct Setup {
    pub shared: Arc<Shared>,
    pub joiner: Option<Arc<Joiner>>,
    pub cut: Option<(Arc<Cut>, Arc<Registry>)>,
    pub events: mpsc::UnboundedSender<Event>,
    /// Connections that the descriptor limit allows.
    pub default_max: u32,
}

/// Handle of a worker for other threads.
#[derive(Clone)]
pub struct Handle {
    orders: mpsc::UnboundedSender<Order>,
}

/// Number of pairs of gates of each of `workers`.
#[must_use]
pub fn pairs_per_worker(workers: usize) -> u32 {
    MAX_GATES / 2 / workers.max(1) as u32
}

/// Starts worker `index` of `workers`.
pub fn spawn(index: usize, workers: usize, setup: Setup) -> std::io::Result<Handle> {
    let (orders, inbox) = mpsc::unbounded_channel();
    let share = pairs_per_worker(workers);
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
    Ok(Handle { orders })
}

async fn run(
    (index, workers): (usize, usize),
    pairs: std::ops::Range<u32>,
    setup: Setup,
    mut inbox: mpsc::UnboundedReceiver<Order>,
) -> std::io::Result<()> {
    let watch = Watch::new(pairs)?;
    tokio::task::spawn_local(Rc::clone(&watch).run());
    let worker = Rc::new(Worker {
        index,
        shared: setup.shared,
        flows: Rc::default(),
        watch,
        joiner: setup.joiner,
        cut: setup
            .cut
            .map(|(kernel, registry)| (Cutter::new(kernel, index, workers), registry)),
        default_max: setup.default_max,
        events: setup.events,
        acceptors: RefCell::default(),
    });
    // This timer is always due sooner than those of connections: setting one of theirs then never moves the worker's
    // next wake-up, which would cost a write to an eventfd for each connection.
    tokio::task::spawn_local(async {
        let mut beat = tokio::time::interval(Duration::from_millis(500));
        loop {
            beat.tick().await;
        }
    });
    while let Some(order) = inbox.recv().await {
        worker.obey(order).await;
    }
    Ok(())
}

impl Worker {
    /// Sends an event to the store. Only failures and recoveries are sent, never an ordinary connection.
    pub fn tell(&self, event: Event) {
        // A closed channel means that the process is ending.
        let _ = self.events.send(event);
    }

    pub fn max_connections(&self) -> u32 {
        self.shared
            .snapshot
            .load()
            .model
            .limits
            .max_connections
            .unwrap_or(self.default_max)
    }

    async fn obey(self: &Rc<Self>, order: Order) {
        match order {
            Order::Listen(socket, listener) => {
                let (stop, stopped) = watch::channel(Stop::Not);
                let local = match socket {
                    Socket::Bound(bind) => bind.single().filter(|addr| !addr.ip().is_unspecified()),
                    Socket::Steered(_) => None,
                };
                let worker = Rc::clone(self);
                let task = tokio::task::spawn_local(async move {
                    if let Err(error) = accept::run(worker, listener, local, stopped).await {
                        tracing::error!(?socket, %error, "A listening socket failed.");
                    }
                });
                self.acceptors
                    .borrow_mut()
                    .entry(socket)
                    .or_default()
                    .push((stop, task));
            }
            Order::Unlisten(socket) => {
                for (stop, _) in self.acceptors.borrow_mut().remove(&socket).into_iter().flatten() {
                    let _ = stop.send(Stop::Drain);
                }
            }
            Order::Stop(how, done) => {
                let acceptors: Vec<_> = self.acceptors.borrow_mut().drain().flat_map(|(_, all)| all).collect();
                for (stop, _) in &acceptors {
                    let _ = stop.send(how);
                }
                for (_, task) in acceptors {
                    let _ = task.await;
                }
                let _ = done.send(());
            }
            Order::List(filter, reply) => {
                let _ = reply.send(self.flows.list(&filter));
            }
            Order::GateClosed(gate) => self.watch.wake(gate, 0),
            Order::Close(subjects) => self.flows.close(&subjects),
            Order::Cut(taken) => {
                if let Some((cutter, _)) = &self.cut {
                    cutter.start(&taken);
                }
            }
            Order::Freed(entries, ports) => {
                if let Some((cutter, _)) = &self.cut {
                    cutter.give_back(entries, &ports);
                }
            }
        }
    }
}

impl Handle {
    pub fn send(&self, order: Order) {
        // A worker whose channel is closed has logged why.
        let _ = self.orders.send(order);
    }

    /// Returns the number of matching flows of the worker, and the first of them.
    pub async fn list(&self, filter: Filter) -> (usize, Vec<FlowView>) {
        let (reply, answer) = oneshot::channel();
        self.send(Order::List(filter, reply));
        answer.await.unwrap_or_default()
    }

    /// Commands the worker to stop accepting; the receiver resolves when it has.
    pub fn stop(&self, how: Stop) -> oneshot::Receiver<()> {
        let (done, stopped) = oneshot::channel();
        self.send(Order::Stop(how, done));
        stopped
    }
}
