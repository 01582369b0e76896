//! Composition of `signalbox run`: its parts, in the order in which they start and end.

mod addresses;
mod foreign_programs;
mod interface_watch;
mod kernel_parts;
mod limits;
mod restart;
mod run;
mod successor;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use signalbox_core::model::Model;
use signalbox_core::routing::obstacle::PeekObstacle;
use tokio::sync::{mpsc, oneshot};

use crate::admin;
use crate::control::etcd::Etcd;
use crate::control::event::{Configuration, StoreEvent, fingerprint};
use crate::control::listener_set::{ListenerSet, Offer};
use crate::control::migrations::Migrations;
use crate::control::rotation_jobs::Jobs;
use crate::control::routing::CurrentSource;
use crate::control::state_db::StateDb;
use crate::control::store::Store;
use crate::control::store::persistent_state::PersistentState;
use crate::control::takeover::{self, Predecessor};
use crate::control::{ConfigFile, Control, Facts, KernelHandles, degraded, file_watch};
use crate::datapath::repaired;
use crate::datapath::worker::{self, WorkerHandle, WorkerSetup};
use crate::kernel::{Kernel, peek};
use crate::reconcile::flow_gc::FlowGc;
use crate::reconcile::kernel_peek::{self, KernelPeek};
use crate::reconcile::l4::Services;
use crate::state::Shared;
use crate::state::counts::LimitCounts;
use crate::sync;
use kernel_parts::KernelParts;
pub use restart::kept_sockets;
use run::Signals;
pub use successor::{SuccessorCommand, launch as launch_successor};

/// How addresses are listened on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SteeringChoice {
    /// sk_lookup where the kernel and our rights allow it.
    Auto,
    /// sk_lookup, or fail.
    SkLookup,
    /// Ordinary sockets.
    Bind,
}

/// Options of a signalbox at its start.
pub struct Options {
    pub model: Model,
    /// Path and text of the configuration file.
    pub file: Option<(PathBuf, String)>,
    pub steering: SteeringChoice,
    pub workers: usize,
    pub takeover: bool,
    /// Listening sockets that the service manager has kept since an earlier process.
    pub kept: Option<Offer>,
    /// Command line of the successor that this process starts on request; `None`: it starts none.
    pub successor: Option<SuccessorCommand>,
}

/// A signalbox that serves connections.
pub struct RunningBalancer {
    pub control: Control,
    /// Pid of the process that has taken over.
    taken_over: mpsc::UnboundedReceiver<u32>,
    successor: Option<SuccessorCommand>,
    /// Keeps programs and maps loaded.
    _kernel: Option<Kernel>,
    flow_gc: Option<Arc<FlowGc>>,
    admin: admin::AdminServers,
    signals: Signals,
}

/// Starts everything. Returns when connections are served.
pub async fn start(options: Options) -> anyhow::Result<RunningBalancer> {
    let Options {
        model,
        file,
        steering,
        workers,
        takeover: take_over,
        kept,
        successor,
    } = options;
    let (socket, admin_addr) = (model.admin.socket.clone(), model.admin.listen);
    // Checked first: an error in the file must not end a predecessor.
    admin::check_socket(&socket)?;
    admin::check_socket(&takeover::path(&socket))?;
    let (predecessor, inherited) = ask_predecessor(&socket, take_over)?;

    let mut parts = KernelParts::load(&model, steering, inherited.as_ref())?;
    let kept = kept.and_then(|kept| restart::usable(kept, &model, parts.steering.is_some()));
    let max_connections = limits::connection_budget(model.admin.max_connections);
    let counts = match &parts.peek {
        Ok(peek) => LimitCounts::of_program(peek.counts(), |first| peek.sketch(first)),
        Err(_) => LimitCounts::default(),
    };
    let shared = Arc::new(Shared::with_counts(&model, counts));
    let (events, inbox) = mpsc::unbounded_channel();
    let (reports, reported) = mpsc::unbounded_channel();
    let workers = start_workers(
        workers,
        &WorkerSetup {
            shared: Arc::clone(&shared),
            sockmap: parts.sockmap(),
            cut: parts.cut.clone(),
            reports: reports.clone(),
            default_max_connections: max_connections,
        },
    )?;
    let kernel_cut = parts.cut.as_ref().map(|(cut, _)| Arc::clone(cut));
    let listener_set = ListenerSet::new(workers.clone(), parts.steering.take(), kernel_cut, inherited.or(kept))
        .context("opening the listening sockets")?;

    let jobs = Arc::<Jobs>::default();
    let migrations = Arc::<Migrations>::default();
    let etcd = model.etcd.as_ref().map(Etcd::new);
    let mut memory = PersistentState::new(
        Arc::new(StateDb::new(&model.store)),
        Arc::clone(&jobs),
        Arc::clone(&migrations),
        etcd.clone(),
    );
    let without_sockmap = parts.without_sockmap();
    restore(&mut memory, &mut parts.degraded).await;
    let text = file.as_ref().map(|(_, text)| text.clone()).unwrap_or_default();
    let instead = memory.override_of(fingerprint(&text)).map(str::to_owned);

    if let (Some((cut, _)), None) = (&parts.cut, &predecessor) {
        cut.follow_interfaces(false);
    }
    let flow_gc = parts
        .cut
        .clone()
        .map(|(cut, registry)| FlowGc::new(cut, registry, Arc::clone(&shared), workers.clone(), reports.clone()));
    let without_peek = parts.peek.as_ref().err().copied();
    let kernel_peek = match (parts.peek, &parts.cut) {
        (Ok(peek), Some((cut, registry))) => {
            let (cut, registry) = (Arc::clone(cut), Arc::clone(registry));
            if let Some(ring) = peek.take_passed_up() {
                repaired::follow(ring, &workers, Arc::clone(&shared));
            }
            Some(KernelPeek::new(peek, cut, registry, Arc::clone(&shared), reports))
        }
        _ => {
            kernel_peek::follow_without_program(&shared, without_peek.unwrap_or(PeekObstacle::NotAvailable));
            None
        }
    };
    let services =
        Services::start(Arc::clone(&shared), predecessor.is_some()).context("starting the thread of services")?;
    let facts = Facts {
        steering: if listener_set.is_steered() { "sk_lookup" } else { "bind" },
        workers: workers.len(),
        max_connections,
        without_peek,
        sockmap: without_sockmap,
        degraded: parts.degraded,
    };
    let mut kernel = parts.kernel;
    if let Some(kernel) = &mut kernel {
        kernel_parts::follow_credit_events(kernel, workers.clone());
        kernel_parts::follow_log(kernel);
    }
    let control = Control {
        shared: Arc::clone(&shared),
        workers,
        counters: kernel.as_ref().map(|kernel| Arc::clone(&kernel.counters)),
        facts: Arc::new(facts),
        events: events.clone(),
        file: file.map(|(path, text)| ConfigFile::new(path, text)),
        kernel: KernelHandles {
            cut: parts.cut,
            flow_gc: flow_gc.clone(),
            kernel_peek,
            services: Arc::clone(&services),
        },
        jobs,
        migrations,
        routing: CurrentSource::default(),
    };
    let routing = Arc::clone(&control.routing);
    let store = Store::new(shared, listener_set, memory, routing, services, events.clone());
    tokio::spawn(store.run(inbox, reported));
    apply_first(&control, model, instead).await?;

    let mut unless_started = AttachedPeek(control.kernel.kernel_peek.clone());
    relieve(predecessor, &control).await?;
    interface_watch::start(&control);
    // Handlers come before the API is open: a client of it may send a signal, whose default action ends the process.
    let signals = Signals::listen()?;
    // The takeover socket is also open before the API: a successor that reads `/readyz` may take over at once.
    let (relieved_by, relieved) = mpsc::unbounded_channel();
    if let Err(error) = takeover::serve(&socket, events, relieved_by, flow_gc.clone()) {
        tracing::error!(%error, "The hand-over socket could not be opened: no process can take over from this one.");
    }
    let admin = admin::start(&control, admin_addr, &socket, take_over).await?;
    follow_changes(&control, etcd);
    unless_started.0 = None;
    Ok(RunningBalancer {
        control,
        taken_over: relieved,
        successor,
        _kernel: kernel,
        flow_gc,
        admin,
        signals,
    })
}

/// Asks a process that serves with the same admin socket for its listening sockets.
fn ask_predecessor(socket: &Path, take_over: bool) -> anyhow::Result<(Option<Predecessor>, Option<Offer>)> {
    let found = match takeover::request(socket) {
        Ok(Some((old, _))) if !take_over => {
            bail!(
                "another signalbox (pid {}) serves with admin socket {}: use --takeover to take its place",
                old.pid,
                socket.display()
            )
        }
        Ok(found) => found,
        Err(error) if !take_over => {
            tracing::warn!(%error, "The running process did not answer on its takeover socket.");
            None
        }
        Err(error) => return Err(error).context("asking the running signalbox for its sockets"),
    };
    if take_over && found.is_none() {
        tracing::info!("No process to take over from: starting as usual.");
    }
    Ok(found.map_or((None, None), |(old, offer)| (Some(old), Some(offer))))
}

fn start_workers(count: usize, setup: &WorkerSetup) -> anyhow::Result<Vec<WorkerHandle>> {
    let workers = (0..count).map(|index| worker::spawn(index, count, setup.clone()));
    workers.collect::<std::io::Result<_>>().context("starting the workers")
}

/// Restores the state of an earlier process. Traffic has priority over durable state: without it the process serves,
/// and refuses changes by API until the file can be used.
async fn restore(memory: &mut PersistentState, degraded: &mut Vec<(&'static str, String)>) {
    if let Err(error) = memory.restore() {
        let error = crate::sys::error_chain(&error);
        tracing::error!(
            error,
            "The state of an earlier process cannot be read: nothing is out of rotation."
        );
        degraded.push(("store", error));
    }
    if let Err(error) = memory.restore_shared().await {
        let error = crate::sys::error_chain(&error);
        tracing::error!(
            error,
            "The table that balancers share cannot be read: its last known content is used."
        );
    }
}

/// Applies the first configuration: the one set by API that replaces the file's, or the file's.
async fn apply_first(control: &Control, model: Model, instead: Option<String>) -> anyhow::Result<()> {
    if let Some(instead) = instead {
        match control.apply_override(&instead, "API, before the restart").await {
            Ok(_) => return Ok(()),
            Err(refused) => {
                tracing::error!(
                    error = refused.error,
                    "The configuration set by API is no longer valid: the file's configuration is used."
                );
            }
        }
    }
    let origin = control.file.as_ref();
    let origin = origin.map_or_else(|| "built in".to_owned(), |file| file.path.display().to_string());
    let hint = degraded::low_ports_hint(&model);
    let (reply, applied) = oneshot::channel();
    let configuration = Configuration {
        model,
        origin,
        config_override: None,
    };
    let _ = control.events.send(StoreEvent::Apply(Box::new(configuration), reply));
    applied
        .await
        .context("the store ended")?
        .map(drop)
        .map_err(|error| hint.into_iter().fold(anyhow::Error::msg(error), anyhow::Error::context))
}

/// Ends the predecessor, and takes over the existing flows.
async fn relieve(predecessor: Option<Predecessor>, control: &Control) -> anyhow::Result<()> {
    // Clients may have cookies of a predecessor with the same flows, or of a program that it has left. From the moment
    // when that one stops, this process must accept them.
    let shares_flows = control
        .kernel
        .cut
        .as_ref()
        .is_some_and(|(cut, _)| !cut.pins.is_locked());
    let is_orphaned = predecessor.is_none() && peek::has_orphans().unwrap_or_default();
    let starts_early = is_orphaned || predecessor.is_some() && shares_flows;
    let old_pid = predecessor.as_ref().map(|old| old.pid);
    if let Some(old) = predecessor {
        if let Some((cut, _)) = &control.kernel.cut {
            // Not earlier: these programs replace the predecessor's, and must know the addresses by then.
            cut.follow_interfaces(false);
        }
        if starts_early {
            start_kernel_peek(control).await?;
        }
        tokio::task::spawn_blocking(move || old.confirm())
            .await?
            .context("relieving the running signalbox")?;
        tracing::info!(pid = old_pid, "Took over from a running signalbox, which drains.");
    } else if starts_early {
        start_kernel_peek(control).await?;
    }
    replace_orphans(control, old_pid);
    if let Some(flow_gc) = control.kernel.flow_gc.clone() {
        let (started, shared) = (Arc::clone(&flow_gc), Arc::clone(&control.shared));
        tokio::task::spawn_blocking(move || started.start(starts_early))
            .await?
            .context("starting the garbage collection of the flow table")?;
        if !starts_early && let Some(kernel_peek) = &control.kernel.kernel_peek {
            flow_gc.follow_kernel_peek(Arc::clone(kernel_peek));
            kernel_peek.start_later().context("starting the kernel peek")?;
        }
        if let Some((cut, _)) = &control.kernel.cut {
            let model = Arc::clone(&shared.snapshot.load().model);
            let services = Arc::clone(&control.kernel.services);
            sync::start(model.ha.as_ref(), cut, &flow_gc, &shared, services)
                .context("starting the replication of flows")?;
        }
    }
    Ok(())
}

/// Leaves no program of the kernel peek attached when dropped: a start has failed.
struct AttachedPeek(Option<Arc<KernelPeek>>);

impl Drop for AttachedPeek {
    fn drop(&mut self) {
        if let Some(kernel_peek) = &self.0 {
            kernel_peek.leave();
        }
    }
}

/// Detaches programs of the kernel peek that earlier processes have left: this process' program does their work.
fn replace_orphans(control: &Control, predecessor: Option<u32>) {
    let detached = match &control.kernel.kernel_peek {
        Some(kernel_peek) => kernel_peek.replace_orphans(predecessor),
        None => {
            let owns_flows = control.kernel.cut.as_ref().is_some_and(|(cut, _)| cut.pins.is_locked());
            peek::detach_orphans(owns_flows)
        }
    };
    match detached {
        Ok(0) => {}
        Ok(programs) => tracing::info!(
            programs,
            "Programs of the kernel peek that an earlier process has left are detached."
        ),
        Err(error) => tracing::warn!(
            %error,
            "Programs of the kernel peek that an earlier process has left could not be detached: `signalbox detach` does."
        ),
    }
}

/// Starts the kernel peek, and waits until its program knows the listeners.
async fn start_kernel_peek(control: &Control) -> anyhow::Result<()> {
    let (Some(kernel_peek), Some(flow_gc)) = (&control.kernel.kernel_peek, &control.kernel.flow_gc) else {
        return Ok(());
    };
    flow_gc.follow_kernel_peek(Arc::clone(kernel_peek));
    let started = Arc::clone(kernel_peek);
    tokio::task::spawn_blocking(move || started.start())
        .await?
        .context("starting the kernel peek")
}

/// Follows changes while the process serves: rotation jobs, migrations, the shared table, the configuration file.
fn follow_changes(control: &Control, etcd: Option<Arc<Etcd>>) {
    tokio::spawn(control.clone().run_jobs());
    tokio::spawn(control.clone().run_migrations());
    tokio::spawn(control.clone().run_probes());
    tokio::spawn(foreign_programs::follow(control.clone()));
    if let Some(etcd) = etcd {
        let events = control.events.clone();
        tokio::spawn(etcd.follow(move |records| events.send(StoreEvent::SharedRecords(records)).is_ok()));
    }
    if let Some(file) = control.file.clone() {
        let watching = control.clone();
        tokio::spawn(async move {
            if let Err(error) = file_watch::watch(watching, &file.path).await {
                tracing::warn!(%error, "The configuration file is not watched: send SIGHUP after a change.");
            }
        });
    }
}
