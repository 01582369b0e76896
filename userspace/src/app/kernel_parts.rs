//! First phase of a start: loads programs and maps, and reports those that the kernel refuses.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use signalbox_core::model::{Datapath, Listener, Model, PeekPlace};
use signalbox_core::routing::obstacle::PeekObstacle;

use super::SteeringChoice;
use crate::control::degraded;
use crate::control::listener_set::Offer;
use crate::datapath::cut::registry::Registry;
use crate::datapath::worker::{self, WorkerCommand, WorkerHandle};
use crate::kernel::error::KernelError;
use crate::kernel::interfaces;
use crate::kernel::object::ObjectLoader;
use crate::kernel::pins::stale_pins;
use crate::kernel::sockmap::{SockmapPair, kernel_is_sound};
use crate::kernel::steer::Steering;
use crate::kernel::version::Version;
use crate::kernel::{Cut, Kernel, Peek, peek};
use crate::reconcile::kernel_peek::{self, FilterWatch};

/// Programs and maps of this process, as far as the kernel has accepted them.
pub(super) struct KernelParts {
    /// Keeps programs and maps loaded.
    pub(super) kernel: Option<Kernel>,
    pub(super) steering: Option<Steering>,
    pub(super) cut: Option<(Arc<Cut>, Arc<Registry>)>,
    /// `Err`: why the kernel peek's program is not loaded.
    pub(super) peek: Result<Peek, PeekObstacle>,
    /// Features that are not used, with the reasons.
    pub(super) degraded: Vec<(&'static str, String)>,
}

impl KernelParts {
    /// Loads what the configuration needs. A process that takes over steers in the same way as its predecessor.
    pub(super) fn load(model: &Model, choice: SteeringChoice, inherited: Option<&Offer>) -> anyhow::Result<Self> {
        let mut degraded = Vec::new();
        let mut loader = ObjectLoader::default();
        let mut kernel = match Kernel::load(&mut loader) {
            Ok(kernel) => Some(kernel),
            Err(error) => {
                degraded.push(("ebpf", crate::sys::error_chain(&error)));
                None
            }
        };
        let choice = match inherited {
            Some(offer) if offer.steered => SteeringChoice::SkLookup,
            Some(_) => SteeringChoice::Bind,
            None => choice,
        };
        let steering = steer(kernel.as_mut(), choice, &mut degraded)?;
        let cut = load_cut(&mut loader, model, inherited.is_some(), &mut degraded);
        // Clients have cookies of a program that is there already: this process must know them before it listens.
        let waits = inherited.is_some() || peek::has_orphans().unwrap_or_default();
        let cut_maps = cut.as_ref().map(|(cut, _)| &**cut);
        let peek = make_peek(&mut loader, model, cut_maps, waits, &mut degraded);
        degraded.extend(degraded::features(model));
        collect_stale_pins();
        let version = Version::running();
        if kernel.as_ref().is_some_and(|kernel| kernel.sockmap.is_some()) && !kernel_is_sound(&version) {
            degraded.push((
                "sockmap",
                format!(
                    "kernel {version} has known defects in socket maps: used only where `tier: sockmap` demands it"
                ),
            ));
        }
        if let Some(kernel) = &mut kernel {
            degraded.append(&mut kernel.degraded);
        }
        for (feature, why) in &degraded {
            tracing::warn!(
                feature,
                why,
                "A kernel feature is not used: the kernel or missing capabilities do not allow it."
            );
        }
        Ok(Self {
            kernel,
            steering,
            cut,
            peek,
            degraded,
        })
    }

    pub(super) fn sockmap(&self) -> Option<Arc<SockmapPair>> {
        self.kernel.as_ref().and_then(|kernel| kernel.sockmap.clone())
    }

    /// Why tier `sockmap` is not used, or only on demand; `None` if it is used.
    pub(super) fn without_sockmap(&self) -> Option<String> {
        let has_none = self.sockmap().is_none();
        let lacks_sockmap = |(feature, _): &&(&str, String)| match *feature {
            "sockmap" => has_none,
            feature => feature == "ebpf",
        };
        self.degraded.iter().find(lacks_sockmap).map(|(_, why)| why.clone())
    }
}

/// Attaches the program that steers connections to our listening sockets.
fn steer(
    kernel: Option<&mut Kernel>,
    choice: SteeringChoice,
    degraded: &mut Vec<(&'static str, String)>,
) -> anyhow::Result<Option<Steering>> {
    match (kernel, choice) {
        (_, SteeringChoice::Bind) | (None, SteeringChoice::Auto) => Ok(None),
        (None, SteeringChoice::SkLookup) => bail!("sk_lookup is not available: {}", degraded[0].1),
        (Some(kernel), _) => match kernel.steer() {
            Ok(steering) => Ok(Some(steering)),
            Err(error) if choice == SteeringChoice::SkLookup => Err(error).context("sk_lookup is not available"),
            Err(error) => {
                degraded.push(("sk_lookup", crate::sys::error_chain(&error)));
                Ok(None)
            }
        },
    }
}

/// Loads tier `cut` if a listener wants it and the kernel supports it.
fn load_cut(
    loader: &mut ObjectLoader,
    model: &Model,
    take_over: bool,
    degraded: &mut Vec<(&'static str, String)>,
) -> Option<(Arc<Cut>, Arc<Registry>)> {
    let wanted = |datapath: &Datapath| datapath.cut && datapath.tier.is_none();
    if !model.listeners.iter().any(|listener| wanted(&listener.datapath)) {
        return None;
    }
    let shadows = model
        .ha
        .as_ref()
        .and_then(|ha| ha.sync.as_ref())
        .map_or(0, |sync| sync.flows);
    match Cut::load(loader, model.limits.cut_flows, shadows, take_over) {
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

/// Makes the maps of the kernel peek if a listener wants it and the kernel supports it. Its program is loaded, too, if the
/// start `waits` for it or a listener demands it: otherwise the process serves while the kernel checks it.
fn make_peek(
    loader: &mut ObjectLoader,
    model: &Model,
    cut: Option<&Cut>,
    waits: bool,
    degraded: &mut Vec<(&'static str, String)>,
) -> Result<Peek, PeekObstacle> {
    let has = |place: PeekPlace| move |listener: &Listener| listener.datapath.peek == place;
    let is_demanded = model.listeners.iter().any(has(PeekPlace::Kernel));
    if !is_demanded && is_left_to_userspace(model) {
        tracing::debug!("The kernel peek is not loaded: nothing would be routed there.");
        return Err(PeekObstacle::NotLoaded);
    }
    let made = cut.map(|cut| {
        let peek = Peek::make(loader, cut)?;
        if is_demanded || waits {
            peek.load_program()?;
        }
        cut.table.share_with_programs();
        Ok::<_, KernelError>(peek)
    });
    match made {
        Some(Ok(peek)) => return Ok(peek),
        Some(Err(error)) if is_demanded => degraded.push(("kernel_peek", crate::sys::error_chain(&error))),
        Some(Err(error)) => kernel_peek::note_refusal(&error),
        None => degraded.extend(is_demanded.then(|| ("kernel_peek", "tier cut is not used".to_owned()))),
    }
    Err(PeekObstacle::NotAvailable)
}

/// Whether the kernel peek with `auto` would leave all connections to userspace: it would waste half of the flow table
/// and two MiB per CPU.
fn is_left_to_userspace(model: &Model) -> bool {
    let may_be_routed = |listener: &Listener| PeekObstacle::of_configuration(listener).is_empty();
    if !model.listeners.iter().any(may_be_routed) {
        return true;
    }
    let carriers: Vec<_> = interfaces::routed()
        .into_iter()
        .flatten()
        .map(|interface| interface.name)
        .collect();
    let verdicts = FilterWatch::default().look(model, &carriers);
    let is_free = |listener: &Listener| may_be_routed(listener) && verdicts.cause(&listener.name).is_none();
    !model.listeners.iter().any(is_free)
}

/// Removes the pins of removed network namespaces, in a separate thread, so that the start does not wait for it.
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

/// Wakes the flow of each exhausted credit.
pub(super) fn follow_credit_events(kernel: &mut Kernel, workers: Vec<WorkerHandle>) {
    let Some(ring) = kernel.credit_events.take() else {
        return;
    };
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
pub(super) fn follow_log(kernel: &mut Kernel) {
    let Some(log) = kernel.log() else { return };
    tokio::spawn(async move {
        let mut log = crate::sys::async_readable(log)?;
        loop {
            let mut guard = log.readable_mut().await?;
            guard.get_inner_mut().flush();
            guard.clear_ready();
        }
        #[expect(unreachable_code, reason = "gives the block its error type")]
        Ok::<(), std::io::Error>(())
    });
}
