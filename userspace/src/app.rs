//! Composition of `signalbox run`: its parts, in the order in which they start and end.

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use signalbox_core::model::{Datapath, Model};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

use crate::admin;
use crate::control::etcd::Etcd;
use crate::control::event::{Configuration, StoreEvent, fingerprint};
use crate::control::listener_set::ListenerSet;
use crate::control::rotation_jobs::Jobs;
use crate::control::routing::CurrentSource;
use crate::control::state_db::StateDb;
use crate::control::store::Store;
use crate::control::store::persistent_state::PersistentState;
use crate::control::{Control, Facts};
use crate::control::{degraded, file_watch, takeover};
use crate::datapath::cut::gc::FlowGc;
use crate::datapath::cut::registry::Registry;
use crate::datapath::pipe;
use crate::datapath::worker::{self, WorkerCommand, WorkerSetup};
use crate::kernel::cut::stale_pins;
use crate::kernel::sockmap::kernel_is_sound;
use crate::kernel::version::Version;
use crate::kernel::{Cut, Kernel};
use crate::l4::Services;
use crate::state::Shared;

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

/// Options that a signalbox is started with.
pub struct Options {
    pub model: Model,
    /// Path and text of the configuration file.
    pub file: Option<(PathBuf, String)>,
    pub steering: SteeringChoice,
    pub workers: usize,
    pub takeover: bool,
}

/// Descriptors that are not for connections: our own sockets, maps, pipes, health checks.
const RESERVED_DESCRIPTORS: u64 = 256;

/// Time that the end of the process waits for the connection log to be written.
const LOG_TIMEOUT: Duration = Duration::from_secs(2);

/// A signalbox that serves connections.
pub struct RunningBalancer {
    pub control: Control,
    taken_over: mpsc::UnboundedReceiver<()>,
    /// Keeps programs and maps loaded.
    _kernel: Option<Kernel>,
    flow_gc: Option<Arc<FlowGc>>,
    admin: admin::AdminServers,
    signals: Signals,
}

/// Signals that control the process.
struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }
}

/// Starts everything. Returns when connections are served.
pub async fn start(options: Options) -> anyhow::Result<RunningBalancer> {
    let Options {
        model,
        file,
        steering,
        workers,
        takeover: take_over,
    } = options;
    let socket = model.admin.socket.clone();
    // Checked before anything is begun: a mistake in the file must not end a predecessor.
    admin::check_socket(&socket)?;
    admin::check_socket(&takeover::path(&socket))?;
    let predecessor = match takeover::request(&socket) {
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
    let (predecessor, inherited) = predecessor.map_or((None, None), |(old, offer)| (Some(old), Some(offer)));
    if take_over && predecessor.is_none() {
        tracing::info!("No process to take over from: starting as usual.");
    }

    let mut degraded = Vec::new();
    let mut kernel = match Kernel::load() {
        Ok(kernel) => Some(kernel),
        Err(error) => {
            degraded.push(("ebpf", crate::sys::error_chain(&error)));
            None
        }
    };
    let want = match (&inherited, steering) {
        (Some(offer), _) => {
            if offer.steered {
                SteeringChoice::SkLookup
            } else {
                SteeringChoice::Bind
            }
        }
        (None, choice) => choice,
    };
    let attached = match (&mut kernel, want) {
        (_, SteeringChoice::Bind) => None,
        (Some(kernel), _) => match kernel.steer() {
            Ok(steering) => Some(steering),
            Err(error) if want == SteeringChoice::SkLookup => return Err(error).context("sk_lookup is not available"),
            Err(error) => {
                degraded.push(("sk_lookup", crate::sys::error_chain(&error)));
                None
            }
        },
        (None, SteeringChoice::SkLookup) => bail!("sk_lookup is not available: {}", degraded[0].1),
        (None, SteeringChoice::Auto) => None,
    };

    let cut = load_cut(&model, inherited.is_some(), &mut degraded);
    degraded.extend(degraded::features(&model));
    collect_stale_pins();
    let max_connections = connection_budget(model.admin.max_connections);
    let shared = Arc::new(Shared::new(&model));
    let (events, inbox) = mpsc::unbounded_channel();
    let (reports, reported) = mpsc::unbounded_channel();
    let joiner = kernel.as_ref().and_then(|kernel| kernel.sockmap.clone());
    let version = Version::running();
    let sound = kernel_is_sound(&version);
    if joiner.is_some() && !sound {
        degraded.push((
            "sockmap",
            format!("kernel {version} has known defects in socket maps: used only where `tier: sockmap` demands it"),
        ));
    }
    if let Some(kernel) = &mut kernel {
        degraded.append(&mut kernel.degraded);
    }
    let lacks_sockmap = |(feature, _): &&(&str, String)| match *feature {
        "sockmap" => joiner.is_none(),
        feature => feature == "ebpf",
    };
    let without_sockmap = degraded.iter().find(lacks_sockmap).map(|(_, why)| why.clone());
    for (feature, why) in &degraded {
        tracing::warn!(
            feature,
            why,
            "A kernel feature is not used: the kernel or missing capabilities do not allow it."
        );
    }
    let setup = WorkerSetup {
        shared: Arc::clone(&shared),
        sockmap: joiner,
        cut: cut.clone(),
        reports: reports.clone(),
        default_max_connections: max_connections,
    };
    let handles = (0..workers)
        .map(|index| worker::spawn(index, workers, setup.clone()))
        .collect::<std::io::Result<Vec<_>>>()
        .context("starting the workers")?;
    let kernel_cut = cut.as_ref().map(|(cut, _)| Arc::clone(cut));
    let listener_set =
        ListenerSet::new(handles.clone(), attached, kernel_cut, inherited).context("opening the listening sockets")?;
    let durable = Arc::new(StateDb::new(&model.store));
    let jobs = Arc::<Jobs>::default();
    let etcd = model.etcd.as_ref().map(Etcd::new);
    let mut memory = PersistentState::new(Arc::clone(&durable), Arc::clone(&jobs), etcd.clone());
    if let Err(error) = memory.restore() {
        // Traffic comes before durable state: the process serves, and refuses changes by API until the file can be
        // used.
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
            "The table that balancers share cannot be read: what was known last is in force."
        );
    }
    let text = file.as_ref().map(|(_, text)| text.clone()).unwrap_or_default();
    let instead = memory.override_of(fingerprint(&text)).map(str::to_owned);
    let facts = Facts {
        steering: if listener_set.is_steered() { "sk_lookup" } else { "bind" },
        workers,
        max_connections,
        sockmap: without_sockmap,
        degraded,
    };
    if let (Some((cut, _)), None) = (&cut, &predecessor) {
        cut.follow_interfaces();
    }
    let flow_gc = cut
        .clone()
        .map(|(cut, registry)| FlowGc::new(cut, registry, Arc::clone(&shared), handles.clone(), reports));
    let services =
        Services::start(Arc::clone(&shared), predecessor.is_some()).context("starting the thread of services")?;
    let control = Control {
        shared: Arc::clone(&shared),
        workers: handles,
        counters: kernel.as_ref().map(|kernel| Arc::clone(&kernel.counters)),
        facts: Arc::new(facts),
        events: events.clone(),
        file: file.as_ref().map(|(path, _)| path.clone()),
        last_text: Arc::new(Mutex::new(file.map(|(_, text)| text))),
        cut,
        flow_gc: flow_gc.clone(),
        jobs,
        routing: CurrentSource::default(),
        services: Arc::clone(&services),
    };
    if let Some(kernel) = &mut kernel {
        follow_credit_events(kernel, &control);
        follow_log(kernel);
    }
    tokio::spawn(
        Store::new(
            Arc::clone(&shared),
            listener_set,
            memory,
            Arc::clone(&control.routing),
            services,
            events.clone(),
        )
        .run(inbox, reported),
    );

    let admin_addr = model.admin.listen;
    let origin = control
        .file
        .as_ref()
        .map_or_else(|| "built in".to_owned(), |file| file.display().to_string());
    let hint = degraded::low_ports_hint(&model);
    let begun = apply_first(&control, &origin, model, instead).await;
    begun.map_err(|error| hint.into_iter().fold(error, anyhow::Error::context))?;

    if let Some(old) = predecessor {
        if let Some((cut, _)) = &control.cut {
            // Not earlier: these programs replace the predecessor's, and must know the addresses by then.
            cut.follow_interfaces();
        }
        let pid = old.pid;
        tokio::task::spawn_blocking(move || old.confirm())
            .await?
            .context("relieving the running signalbox")?;
        tracing::info!(pid, "Took over from a running signalbox, which drains.");
    }
    if let Some(flow_gc) = &flow_gc {
        let flow_gc = Arc::clone(flow_gc);
        tokio::task::spawn_blocking(move || flow_gc.start())
            .await?
            .context("starting the garbage collection of the flow table")?;
    }
    // Handlers come before the API is open: a client of it may send a signal, whose default action ends a process at
    // once.
    let signals = Signals::listen()?;
    // The takeover socket, too, is open before the API: a successor that reads `/readyz` may take over at once.
    let (relieved_by, relieved) = mpsc::unbounded_channel();
    if let Err(error) = takeover::serve(&socket, events, relieved_by, flow_gc.clone()) {
        tracing::error!(%error, "The hand-over socket could not be opened: nobody can take over from this process.");
    }
    let admin = admin::start(&control, admin_addr, &socket, take_over).await?;
    tokio::spawn(control.clone().run_jobs());
    if let Some(etcd) = etcd {
        let events = control.events.clone();
        tokio::spawn(etcd.follow(move |records| events.send(StoreEvent::SharedRecords(records)).is_ok()));
    }
    if let Some(file) = control.file.clone() {
        let watching = control.clone();
        tokio::spawn(async move {
            if let Err(error) = file_watch::watch(watching, file).await {
                tracing::warn!(%error, "The configuration file is not watched: send SIGHUP after a change.");
            }
        });
    }
    Ok(RunningBalancer {
        control,
        taken_over: relieved,
        _kernel: kernel,
        flow_gc,
        admin,
        signals,
    })
}

/// Loads tier `cut`, where a listener wants it and the kernel has it.
fn load_cut(
    model: &Model,
    take_over: bool,
    degraded: &mut Vec<(&'static str, String)>,
) -> Option<(Arc<Cut>, Arc<Registry>)> {
    let wanted = |datapath: &Datapath| datapath.cut && datapath.tier.is_none();
    if !model.listeners.iter().any(|listener| wanted(&listener.datapath)) {
        return None;
    }
    match Cut::load(model.limits.cut_flows, take_over) {
        Ok(cut) => {
            if let Some(why) = &cut.without_v6 {
                degraded.push(("cut_ipv6", why.clone()));
            }
            let cut = Arc::new(cut);
            Some((Arc::clone(&cut), Arc::new(Registry::new(cut))))
        }
        Err(error) => {
            degraded.push(("cut", crate::sys::error_chain(&error)));
            None
        }
    }
}

/// Removes the pins of network namespaces that are gone, in a thread of its own: the start does not wait for it.
fn collect_stale_pins() {
    let work = || match stale_pins::collect() {
        Ok(cleaned) if cleaned.removed.is_empty() => {}
        Ok(cleaned) => tracing::info!(
            pins = cleaned.removed.len(),
            "Pins of network namespaces that are gone have been removed."
        ),
        Err(error) => tracing::warn!(%error, "Pins of network namespaces that are gone could not be removed."),
    };
    if let Err(error) = std::thread::Builder::new().name("stale-pins".into()).spawn(work) {
        tracing::warn!(%error, "The thread that removes old pins could not be started.");
    }
}

/// Puts the first configuration in force: the one that was set by API in place of the file's, or the file's.
async fn apply_first(control: &Control, origin: &str, model: Model, instead: Option<String>) -> anyhow::Result<()> {
    if let Some(instead) = instead {
        match control.apply_override(&instead, "API, before the restart").await {
            Ok(_) => return Ok(()),
            Err(refused) => {
                tracing::error!(
                    error = refused.error,
                    "The configuration set by API is refused now: the file's is in force."
                );
            }
        }
    }
    let (reply, applied) = oneshot::channel();
    let configuration = Configuration {
        model,
        origin: origin.to_owned(),
        config_override: None,
    };
    let _ = control.events.send(StoreEvent::Apply(Box::new(configuration), reply));
    applied
        .await
        .context("the store ended")?
        .map(drop)
        .map_err(anyhow::Error::msg)
}

/// Raises the descriptor limit as far as allowed, and divides it. Returns the most connections.
fn connection_budget(admin_connections: u32) -> u32 {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    pipe::MAX_PIPES.store(usize::try_from(pipe_limit(limit)).unwrap_or(usize::MAX), Relaxed);
    connection_limit(limit, admin_connections).max(1)
}

/// Returns the most pipes for `limit` descriptors.
const fn pipe_limit(limit: u64) -> u64 {
    limit / 64
}

/// Returns the most connections for `limit` descriptors: two for each connection, two for each pipe, and one for each
/// connection of the admin API, which so never takes one of traffic's.
#[must_use]
pub fn connection_limit(limit: u64, admin_connections: u32) -> u32 {
    let admin = u64::from(admin_connections) + u64::from(admin::MAX_UNIX_CONNECTIONS);
    let other = RESERVED_DESCRIPTORS + admin + 2 * pipe_limit(limit);
    u32::try_from(limit.saturating_sub(other) / 2).unwrap_or(u32::MAX)
}

/// Wakes the flow of each credit that is exhausted.
fn follow_credit_events(kernel: &mut Kernel, control: &Control) {
    let Some(ring) = kernel.credit_events.take() else {
        return;
    };
    let workers = control.workers.clone();
    tokio::spawn(async move {
        let mut ring = crate::sys::async_readable(ring)?;
        let share = worker::credit_pairs_per_worker(workers.len());
        loop {
            let mut guard = ring.readable_mut().await?;
            while let Some(item) = guard.get_inner_mut().next() {
                let Some(bytes) = item.first_chunk::<4>() else { continue };
                let credit = u32::from_ne_bytes(*bytes);
                if let Some(worker) = workers.get((credit / 2 / share) as usize) {
                    worker.send(WorkerCommand::CreditExhausted(credit));
                }
            }
            guard.clear_ready();
        }
        #[expect(unreachable_code, reason = "gives the block its error type")]
        Ok::<(), std::io::Error>(())
    });
}

/// Forwards log messages of the eBPF programs to our log.
fn follow_log(kernel: &mut Kernel) {
    match kernel.logger() {
        Ok(logger) => {
            tokio::spawn(async move {
                let mut logger = crate::sys::async_readable(logger)?;
                loop {
                    let mut guard = logger.readable_mut().await?;
                    guard.get_inner_mut().flush();
                    guard.clear_ready();
                }
                #[expect(unreachable_code, reason = "gives the block its error type")]
                Ok::<(), std::io::Error>(())
            });
        }
        Err(error) => tracing::debug!(error, "The eBPF programs' messages are not shown."),
    }
}

impl RunningBalancer {
    /// Serves until told to stop, then ends gracefully.
    pub async fn run(mut self) -> anyhow::Result<()> {
        let Signals {
            mut hangup,
            mut terminate,
            mut interrupt,
        } = self.signals;
        let watchdog = sd_notify::watchdog_enabled().map(|period| period / 2);
        let notify = |state: &[sd_notify::NotifyState<'_>]| {
            // Errors are ignored: there is no systemd, or it has gone.
            let _ = sd_notify::notify(state);
        };
        notify(&[sd_notify::NotifyState::Ready]);
        tracing::info!(
            steering = self.control.facts.steering,
            workers = self.control.facts.workers,
            max_connections = self.control.facts.max_connections,
            "Serving."
        );
        let mut relieved = false;
        loop {
            tokio::select! {
                _ = hangup.recv() => {
                    notify(&[sd_notify::NotifyState::Reloading, sd_notify::NotifyState::monotonic_usec_now()?]);
                    // A refusal is logged and counted where it happens.
                    let _ = self.control.reload("SIGHUP").await;
                    self.control.shared.log.reopen();
                    notify(&[sd_notify::NotifyState::Ready]);
                }
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                Some(()) = self.taken_over.recv() => {
                    tracing::info!("A new process has taken over the listening sockets: draining.");
                    self.admin.retire();
                    // The flow table belongs to the successor.
                    self.flow_gc = None;
                    relieved = true;
                    break;
                }
                () = tokio::time::sleep(watchdog.unwrap_or(Duration::from_secs(3600))) => {
                    if watchdog.is_some() {
                        notify(&[sd_notify::NotifyState::Watchdog]);
                    }
                }
            }
        }
        notify(&[sd_notify::NotifyState::Stopping]);
        let shared = Arc::clone(&self.control.shared);
        shared.stopping.store(true, Relaxed);
        let deadline = Instant::now() + shared.snapshot.load().model.timeouts.shutdown;
        tracing::info!(
            connections = shared.totals.with_sockets.get(),
            "Stopping: no new connections."
        );
        let (done, stopped) = oneshot::channel();
        let _ = self.control.events.send(StoreEvent::StopListening(done));
        let drained = async {
            let _ = tokio::time::timeout_at(deadline.into(), stopped).await;
            while shared.totals.with_sockets.get() > 0 && Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            () = drained => {}
            _ = terminate.recv() => tracing::warn!("A second signal: ending without waiting for open connections."),
            _ = interrupt.recv() => tracing::warn!("A second signal: ending without waiting for open connections."),
        }
        let left = shared.totals.with_sockets.get();
        if left > 0 {
            tracing::warn!(connections = left, "Stopping with open connections: they are reset.");
        }
        self.admin.close();
        if let Some(flow_gc) = &self.flow_gc {
            flow_gc.stop();
        }
        if !relieved {
            self.control.services.stop();
        }
        shared.log.flush(LOG_TIMEOUT);
        tracing::info!("Stopped.");
        Ok(())
    }
}
