//! Layer-4 services: one thread that keeps the kernel's maps as the configuration, the health of hosts, routes and
//! neighbours have them, and ends flows whose time is up.
//!
//! It works from snapshots, as workers do, and never holds one up: what it cannot do is logged, shown and tried again.

mod apply;
mod sweep;
mod ways;

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Serialize;
use signalbox_common::Reason;
use signalbox_common::l4::{Flow, Key, Tally};
use signalbox_core::rotation::Subject;

use crate::kernel::l4::Layer4 as Kernel;
use crate::kernel::l4::hooks::On;
use crate::rotate::covers;
use crate::state::Shared;

use apply::Tables;
use sweep::Counts;
use ways::Ways;

/// How often routes, neighbours and interfaces are looked at.
const LOOK: Duration = Duration::from_millis(500);
/// How often flows are gone through, and what part of the time that may take.
const SWEEP: Duration = Duration::from_secs(2);
const SWEEP_SHARE: u32 = 20;
/// Between attempts to load programs that were refused.
const AGAIN: Duration = Duration::from_secs(5);

/// The services of a running signalbox.
pub struct Services {
    shared: Arc<Shared>,
    told: Mutex<Told>,
    wake: Condvar,
    inner: Mutex<Inner>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the thread is to do.
#[derive(Default)]
struct Told {
    changed: bool,
    ended: bool,
}

#[derive(Default)]
struct Inner {
    kernel: Option<Arc<Kernel>>,
    tables: Tables,
    ways: Ways,
    counts: Counts,
    take_over: bool,
    /// Why there are no programs, or not all is as it should be.
    trouble: Option<String>,
    tried: Option<Instant>,
    /// Of hosts that get nothing new: since when.
    out_since: HashMap<u32, Instant>,
}

/// A service as the API shows it.
#[derive(Debug, Serialize)]
pub struct ServiceView {
    pub name: String,
    pub protocol: &'static str,
    pub listen: Vec<String>,
    pub cluster: String,
    pub mode: signalbox_core::model::services::Mode,
    pub affinity: signalbox_core::model::services::Affinity,
    /// Connections and sessions that both sides have confirmed.
    pub flows: u32,
    pub flows_total: u64,
    pub packets_in: u64,
    pub packets_out: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub hosts: Vec<HostView>,
}

/// A host of a service.
#[derive(Debug, Serialize)]
pub struct HostView {
    pub name: String,
    pub address: std::net::IpAddr,
    /// Slots of the table that are its own now, in percent.
    pub share: f64,
    pub flows: u32,
    /// Its Ethernet address is known.
    pub reachable: bool,
}

/// A flow as the API shows it.
#[derive(Debug, Serialize)]
pub struct FlowView {
    pub service: String,
    pub client: std::net::SocketAddr,
    pub listen: std::net::SocketAddr,
    pub host: std::net::IpAddr,
    pub protocol: &'static str,
    pub packets_in: u32,
    pub bytes_in: u64,
    pub idle_seconds: f64,
}

impl Services {
    /// Begins; `take_over`: another process has the maps still.
    pub fn start(shared: Arc<Shared>, take_over: bool) -> std::io::Result<Arc<Self>> {
        let services = Arc::new(Self {
            shared,
            told: Mutex::default(),
            wake: Condvar::new(),
            inner: Mutex::new(Inner {
                take_over,
                ..Inner::default()
            }),
            thread: Mutex::default(),
        });
        let work = Arc::clone(&services);
        let thread = std::thread::Builder::new()
            .name("services".into())
            .spawn(move || work.run())?;
        *services.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(services)
    }

    /// There is a new snapshot.
    pub fn changed(&self) {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).changed = true;
        self.wake.notify_one();
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let (mut looked, mut swept, mut every) = (None::<Instant>, Instant::now(), SWEEP);
        loop {
            let changed = {
                let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
                let waits = |told: &mut Told| !told.changed && !told.ended;
                let (mut told, _) = self
                    .wake
                    .wait_timeout_while(told, LOOK, waits)
                    .unwrap_or_else(PoisonError::into_inner);
                if told.ended {
                    return;
                }
                std::mem::take(&mut told.changed)
            };
            let mut inner = self.inner();
            let look = looked.is_none_or(|then| then.elapsed() >= LOOK);
            if changed || look {
                self.bring_about(&mut inner, look);
            }
            if look {
                looked = Some(Instant::now());
            }
            if swept.elapsed() >= every && inner.kernel.is_some() {
                let began = Instant::now();
                self.sweep(&mut inner);
                every = SWEEP.max(began.elapsed() * SWEEP_SHARE);
                swept = Instant::now();
            }
        }
    }

    /// Makes the kernel's maps what they should be.
    fn bring_about(&self, inner: &mut Inner, look: bool) {
        let snapshot = self.shared.snapshot.load_full();
        let layer4 = &snapshot.model.layer4;
        if inner.kernel.is_none() {
            if snapshot.model.services.is_empty() || inner.tried.is_some_and(|then| then.elapsed() < AGAIN) {
                return;
            }
            inner.tried = Some(Instant::now());
            match Kernel::load(layer4.flows, inner.take_over) {
                Ok(kernel) => {
                    inner.tables = Tables::of(&kernel);
                    inner.kernel = Some(Arc::new(kernel));
                    inner.trouble = None;
                }
                Err(error) => {
                    let error = crate::error_chain(&error);
                    if inner.trouble.as_ref() != Some(&error) {
                        tracing::error!(error, "Services cannot be had.");
                        inner.trouble = Some(error);
                    }
                    return;
                }
            }
        }
        let Some(kernel) = inner.kernel.clone() else { return };
        if !kernel.pins.is_ours() {
            kernel.pins.lock_again();
        }
        let mut done = inner.tables.apply(&kernel, &snapshot);
        if done.is_ok() {
            done = inner.ways.look(&kernel, &mut inner.tables, layer4, look);
        }
        if look {
            kernel.hooks().follow(layer4.hook);
        }
        inner.note_who_is_out();
        let error = done.err().map(|error| crate::error_chain(&error));
        if error != inner.trouble {
            match &error {
                Some(error) => tracing::error!(error, "Services are not as they should be."),
                None => tracing::info!("Services are as they should be."),
            }
            inner.trouble = error;
        }
    }

    fn sweep(&self, inner: &mut Inner) {
        let Some(kernel) = inner.kernel.clone() else { return };
        let limit = self.shared.snapshot.load().model.timeouts.drain;
        let over = |since: &Instant| since.elapsed() >= limit;
        let closing: Vec<u32> = inner
            .out_since
            .iter()
            .filter(|(_, since)| over(since))
            .map(|(host, _)| *host)
            .collect();
        match sweep::sweep(&kernel, |flow| closing.contains(&flow.host)) {
            Ok(counts) => {
                if counts.closed > 0 {
                    tracing::warn!(
                        flows = counts.closed,
                        "Flows of hosts that have been out for long are closed."
                    );
                }
                inner
                    .tables
                    .forget_hosts(&kernel, |host| counts.hosts.get(&host).copied().unwrap_or(0) == 0);
                inner.counts = counts;
            }
            Err(error) => tracing::warn!(%error, "The flows of services could not be gone through."),
        }
    }

    /// Flows of the hosts that these cover, by host.
    #[must_use]
    pub fn on_hosts(&self, subjects: &[Subject]) -> Vec<(String, u32)> {
        let inner = self.inner();
        let numbers = inner.covered(subjects);
        let busy = numbers.into_iter().filter_map(|(name, number)| {
            let flows = inner.counts.hosts.get(&number).copied().unwrap_or(0);
            (flows > 0).then_some((name, flows))
        });
        busy.collect()
    }

    /// Closes the flows of the hosts that these cover.
    pub fn close(&self, subjects: &[Subject]) {
        let mut inner = self.inner();
        let Some(kernel) = inner.kernel.clone() else { return };
        let numbers: Vec<u32> = inner.covered(subjects).into_iter().map(|(_, number)| number).collect();
        match sweep::sweep(&kernel, |flow| numbers.contains(&flow.host)) {
            Ok(counts) => inner.counts = counts,
            Err(error) => tracing::warn!(%error, "Flows of services could not be closed."),
        }
    }

    /// Another process has the maps now.
    pub fn retire(&self) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.ended = true;
        drop(told);
        self.wake.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }

    /// Ends: nothing new is taken on. Flows that there are go on without us, until `signalbox detach`.
    pub fn stop(&self) {
        self.retire();
        let mut inner = self.inner();
        let Some(kernel) = inner.kernel.take() else { return };
        if let Err(error) = inner.tables.withdraw(&kernel) {
            tracing::warn!(error = crate::error_chain(&error), "Services could not be withdrawn.");
        }
        let live = sweep::sweep(&kernel, |_| false).map_or(0, |counts| counts.hosts.values().sum::<u32>());
        if live > 0 {
            tracing::info!(
                flows = live,
                "Flows of services go on without us; `signalbox detach` would end them."
            );
        } else if kernel.pins.is_ours()
            && let Err(error) = kernel.remove_all()
        {
            tracing::warn!(%error, "Pinned programs and maps of services could not be removed.");
        }
    }

    /// Where the programs stand.
    #[must_use]
    pub fn hooks(&self) -> Vec<On> {
        let kernel = self.inner().kernel.clone();
        kernel.map_or(Vec::new(), |kernel| kernel.hooks().on())
    }

    /// What is not as it should be.
    #[must_use]
    pub fn troubles(&self) -> Vec<String> {
        let (trouble, kernel) = {
            let inner = self.inner();
            let mut trouble: Vec<String> = inner.trouble.iter().cloned().collect();
            trouble.extend(inner.ways.troubles());
            (trouble, inner.kernel.clone())
        };
        let refused = kernel.map_or(Vec::new(), |kernel| kernel.hooks().refused());
        trouble.into_iter().chain(refused).collect()
    }

    /// How often the programs ended in each way.
    #[must_use]
    pub fn exits(&self) -> Vec<(Reason, u64)> {
        let kernel = self.inner().kernel.clone();
        kernel.map_or(Vec::new(), |kernel| kernel.exits())
    }

    /// All services.
    #[must_use]
    pub fn list(&self) -> Vec<ServiceView> {
        let snapshot = self.shared.snapshot.load_full();
        let inner = self.inner();
        let all = snapshot.model.services.iter().map(|service| {
            let number = inner.tables.number_of(&service.name);
            let tally = match (&inner.kernel, number) {
                (Some(kernel), Some(number)) => kernel.service_tally(number),
                _ => Tally::default(),
            };
            let cluster = snapshot.model.clusters.get(service.cluster);
            let shares = inner.tables.shares(&snapshot, service);
            let hosts = cluster.into_iter().flat_map(|cluster| &cluster.hosts).map(|host| {
                let at = inner.tables.host_of(host.address);
                let count = |number| inner.counts.pairs.get(&number).copied().unwrap_or(0);
                HostView {
                    name: host.name.clone(),
                    address: host.address,
                    share: at.and_then(|at| shares.get(&at).copied()).unwrap_or(0.0),
                    flows: number.zip(at).map_or(0, count),
                    reachable: at.is_some_and(|at| inner.tables.is_reachable(at)),
                }
            });
            ServiceView {
                name: service.name.clone(),
                protocol: protocol(u32::from(service.protocol.number())),
                listen: service.listen.iter().map(ToString::to_string).collect(),
                cluster: cluster.map(|cluster| cluster.name.clone()).unwrap_or_default(),
                mode: service.mode,
                affinity: service.affinity,
                flows: number.map_or(0, |number| inner.counts.services.get(&number).copied().unwrap_or(0)),
                flows_total: tally.flows,
                packets_in: tally.packets_in,
                packets_out: tally.packets_out,
                bytes_in: tally.bytes_in,
                bytes_out: tally.bytes_out,
                hosts: hosts.collect(),
            }
        });
        all.collect()
    }

    /// Some of the established flows, of one service or of all.
    #[must_use]
    pub fn flows(&self, service: Option<&str>, most: usize) -> Vec<FlowView> {
        let (kernel, names) = {
            let inner = self.inner();
            (inner.kernel.clone(), inner.tables.names())
        };
        let Some(kernel) = kernel else { return Vec::new() };
        let mut all = Vec::new();
        let _ = Kernel::each_flow(&kernel.established, |key: &Key, flow: &Flow| {
            let name = names.get(&flow.service);
            let is_wanted = service.is_none() || service == name.map(String::as_str);
            if all.len() < most && is_wanted && !sweep::is_reply(flow) {
                all.push(sweep::view(key, flow, name.cloned().unwrap_or_default(), &kernel));
            }
        });
        all
    }
}

fn protocol(number: u32) -> &'static str {
    if number == 6 { "tcp" } else { "udp" }
}

impl Inner {
    /// The names and numbers of the hosts that these cover.
    fn covered(&self, subjects: &[Subject]) -> Vec<(String, u32)> {
        let all = self.tables.hosts();
        let covered = all.filter(|(cluster, host, _)| covers(subjects, cluster, host, None));
        covered
            .map(|(cluster, host, number)| (format!("{cluster}/{host}"), number))
            .collect()
    }

    fn note_who_is_out(&mut self) {
        let out = self.tables.out();
        self.out_since.retain(|host, _| out.contains(host));
        for host in out {
            self.out_since.entry(host).or_insert_with(Instant::now);
        }
    }
}
