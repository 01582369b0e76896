//! State of the thread for layer-4 services: the loaded programs, and how far their maps match the configuration.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use signalbox_common::parts;
use signalbox_core::model::services::Hook;

use super::apply::Tables;
use super::guards::{self, Guards};
use super::macs::Macs;
use super::next_hops::NextHops;
use super::own_ports::PortShortage;
use super::sweep::{FlowCounts, ServiceHostPair};
use crate::kernel::l4::{L4Kernel as Kernel, MapSizes};

/// Interval of attempts to load programs that were refused.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// State of the thread.
#[derive(Default)]
pub(super) struct Reconciler {
    pub(super) kernel: Option<Arc<Kernel>>,
    pub(super) tables: Tables,
    pub(super) next_hops: NextHops,
    pub(super) macs: Macs,
    pub(super) guards: Guards,
    pub(super) take_over: bool,
    pub(super) port_shortage: PortShortage,
    /// Current error: why no programs are loaded, or what differs from the configuration.
    pub(super) error: Option<String>,
    pub(super) last_load: Option<Instant>,
    /// Hook and parts for which the kernel has permanently refused the programs.
    pub(super) refused_for: Option<(Hook, u32)>,
    /// True if the whole snapshot is in the maps.
    pub(super) is_applied: bool,
    /// True if the shield of the loaded programs is active.
    pub(super) shield_is_up: bool,
    /// Reason why the shield differs from the snapshot.
    pub(super) shield_error: Option<String>,
    /// Reason why services differ from the snapshot.
    pub(super) services_error: Option<String>,
    /// Every service with every host that it may send to.
    pub(super) service_hosts: HashSet<ServiceHostPair>,
    /// Services and hosts without new flows for a reason other than rotation, with the time for which their flows may
    /// continue.
    pub(super) drain_timeouts: HashMap<ServiceHostPair, Duration>,
    /// Time since when such services and hosts have had no new flows.
    pub(super) out_since: HashMap<ServiceHostPair, Instant>,
}

impl Reconciler {
    /// Loads the programs if there are services, or if an earlier process has left some. Returns whether they are
    /// loaded.
    pub(super) fn load(&mut self, snapshot: &crate::state::Snapshot) -> bool {
        let is_shielded = guards::policies(&snapshot.model).next().is_some();
        if !snapshot.model.has_services() && !is_shielded && !crate::kernel::l4::is_pinned() {
            return false;
        }
        self.load_programs(snapshot, self.take_over)
    }

    /// Replaces the programs with new ones that have larger maps. On failure the old ones stay. Returns whether they
    /// were replaced.
    pub(super) fn reload_larger(&mut self, snapshot: &crate::state::Snapshot) -> bool {
        let made = self.load_programs(snapshot, true);
        if made {
            tracing::info!("The shield's maps were too small for the prefixes or sources: larger ones are created.");
        }
        made
    }

    pub(super) fn load_programs(&mut self, snapshot: &crate::state::Snapshot, take_over: bool) -> bool {
        let hook = snapshot.model.layer4.hook;
        let is_shielded = guards::policies(&snapshot.model).next().is_some();
        let needed = parts_needed(&snapshot.model);
        let is_too_early = self.last_load.is_some_and(|then| then.elapsed() < RELOAD_INTERVAL);
        if is_too_early || self.refused_for == Some((hook, needed)) {
            return false;
        }
        self.last_load = Some(Instant::now());
        let size = MapSizes {
            flows: snapshot.model.layer4.flows,
            sources: if is_shielded { snapshot.model.shield.sources } else { 4 },
            nodes: self.guards.nodes_needed(snapshot),
        };
        tracing::debug!("Loading the programs of layer 4.");
        match Kernel::load(size, hook, needed, take_over) {
            Ok(kernel) => {
                self.last_load = None;
                for (part, what) in [(parts::SERVICES, "services"), (parts::SHIELD, "shield")] {
                    if kernel.missing & part != 0 {
                        tracing::error!(
                            what,
                            "The kernel refuses some of the layer-4 programs; the others are active."
                        );
                    }
                }
                self.tables = Tables::of(&kernel);
                self.next_hops = NextHops::of(&kernel);
                self.macs = Macs::default();
                self.guards.reset();
                self.shield_is_up = false;
                self.kernel = Some(Arc::new(kernel));
                self.error = None;
                self.is_applied = false;
                true
            }
            Err(error) => {
                // A permanent refusal is not tried again: only another hook or part leads to a different program.
                self.refused_for = error.is_permanent().then_some((hook, needed));
                let error = crate::sys::error_chain(&error);
                if self.error.as_ref() != Some(&error) {
                    tracing::error!(error, "Neither layer-4 services nor the shield could be loaded.");
                    self.error = Some(error);
                }
                false
            }
        }
    }

    pub(super) fn withdraw(&mut self) {
        if let Some(kernel) = &self.kernel
            && let Err(error) = self.tables.withdraw(kernel)
        {
            tracing::warn!(
                error = crate::sys::error_chain(&error),
                "Services could not be withdrawn."
            );
        }
    }

    /// Returns services and hosts whose flows are to be closed: those of hosts that have been unhealthy, or no longer
    /// configured, for long enough. Flows of hosts out of rotation are left to the rotation's job.
    pub(super) fn expired(
        &mut self,
        snapshot: &crate::state::Snapshot,
        counts: &FlowCounts,
    ) -> HashSet<ServiceHostPair> {
        let longest = snapshot.model.clusters.iter().filter_map(|cluster| cluster.drain).max();
        let longest = longest.unwrap_or_default().max(snapshot.model.timeouts.drain);
        let known = &self.service_hosts;
        let gone = counts
            .pairs
            .keys()
            .filter(|pair| !known.contains(*pair))
            .map(|pair| (*pair, longest));
        let limits = self.drain_timeouts.iter().map(|(pair, limit)| (*pair, *limit));
        let out: HashMap<ServiceHostPair, Duration> = limits.chain(gone).collect();
        self.out_since.retain(|pair, _| out.contains_key(pair));
        let is_over = |(pair, limit): (&ServiceHostPair, &Duration)| {
            let since = self.out_since.entry(*pair).or_insert_with(Instant::now);
            (since.elapsed() >= *limit).then_some(*pair)
        };
        out.iter().filter_map(is_over).collect()
    }
}

/// Returns the parts of the programs that a configuration needs. If it needs neither, both are returned, for flows of
/// an earlier process.
pub(super) fn parts_needed(model: &signalbox_core::model::Model) -> u32 {
    match (guards::policies(model).next().is_some(), !model.has_services()) {
        (true, true) => parts::SHIELD,
        (false, false) => parts::SERVICES,
        _ => parts::SHIELD | parts::SERVICES,
    }
}
