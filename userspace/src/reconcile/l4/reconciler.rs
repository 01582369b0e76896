//! State of the thread for layer-4 services: the loaded programs, and how far their maps match the configuration.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use signalbox_common::{Reason, parts};
use signalbox_core::model::services::Hook;

use super::apply::Tables;
use super::guards::{self, Guards};
use super::macs::Macs;
use super::next_hops::{NextHops, SourceSettings};
use super::own_ports::{self, PortShortage};
use super::services_error::ServicesError;
use super::sweep::{FlowCounts, ServiceHostPair};
use crate::kernel::l4::{L4Kernel as Kernel, MapSizes};
use crate::state::Snapshot;

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

/// Outcome of a pass that writes the maps.
pub(super) struct WrittenMaps {
    pub(super) result: Result<(), ServicesError>,
    /// True if the shield's maps have no room for the snapshot.
    pub(super) is_too_small: bool,
}

impl Reconciler {
    /// Loads the programs if there are services, or if an earlier process has left some. Returns whether they are
    /// loaded.
    pub(super) fn load(&mut self, snapshot: &Snapshot) -> bool {
        let is_shielded = guards::policies(&snapshot.model).next().is_some();
        if !snapshot.model.has_services() && !is_shielded && !crate::kernel::l4::is_pinned() {
            return false;
        }
        self.load_programs(snapshot, self.take_over)
    }

    /// Replaces the programs with new ones that have larger maps. On failure the old ones stay. Returns whether they
    /// were replaced.
    pub(super) fn reload_larger(&mut self, snapshot: &Snapshot) -> bool {
        let made = self.load_programs(snapshot, true);
        if made {
            tracing::info!("The shield's maps were too small for the prefixes or sources: larger ones are created.");
        }
        made
    }

    pub(super) fn load_programs(&mut self, snapshot: &Snapshot, take_over: bool) -> bool {
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

    /// Writes the snapshot into the maps, if it is not there yet, and next hops as they are now.
    pub(super) fn write_maps(
        &mut self,
        kernel: &Kernel,
        snapshot: &Snapshot,
        sources: SourceSettings<'_>,
        seed: u64,
        look: bool,
    ) -> WrittenMaps {
        let macs = if look { self.macs.refresh(kernel) } else { Ok(()) };
        let mut numbered = Ok(None);
        if !self.is_applied {
            // The programs' settings (ports and addresses of mode nat) come before the tables.
            let configured = self.next_hops.write_config(kernel, sources);
            numbered = configured.and_then(|()| self.tables.number_hosts(&snapshot.model));
        }
        // Next hops come before the tables that lead to them, even if the tables have an error.
        let refreshed = self.next_hops.refresh(kernel, &mut self.tables, sources, look);
        let (mut result, mut is_too_small) = (Ok(()), false);
        if !self.is_applied {
            result = numbered.and_then(|problem| self.tables.apply(kernel, snapshot, problem));
            self.services_error = result.as_ref().err().map(|error| crate::sys::error_chain(error));
            // An error of services must not leave any target unguarded.
            let guarded = self.guards.apply(kernel, snapshot, seed);
            is_too_small = matches!(guarded, Ok(false));
            let guarded = guarded.and_then(|has_room| if has_room { Ok(()) } else { Err(ServicesError::NoRoom) });
            self.shield_is_up |= guarded.is_ok();
            self.shield_error = guarded.as_ref().err().map(|error| crate::sys::error_chain(error));
            result = result.and(guarded);
            (self.service_hosts, self.drain_timeouts) = self.tables.service_hosts(snapshot);
            self.is_applied = result.is_ok();
        }
        let macs = macs.map_err(|source| ServicesError::Map {
            what: "this machine's Ethernet addresses",
            source,
        });
        WrittenMaps {
            result: result.and(refreshed).and(macs),
            is_too_small,
        }
    }

    /// Notes and logs the error of a pass. With `lacks_parts` the reason why a part could not be loaded stays.
    pub(super) fn note_error(&mut self, error: Option<&ServicesError>, lacks_parts: bool) {
        let error = error.map(|error| crate::sys::error_chain(error));
        let error = if lacks_parts {
            error.or_else(|| self.error.clone())
        } else {
            error
        };
        if error != self.error {
            match &error {
                Some(error) => tracing::error!(error, "Layer-4 services or the shield are not active as configured."),
                None => tracing::info!("Layer-4 services and the shield are active as configured."),
            }
            self.error = error;
        }
    }

    /// Returns everything that an operator should know about.
    pub(super) fn problems(
        &mut self,
        kernel: &Kernel,
        snapshot: &Snapshot,
        refused: &[String],
        is_dsr_full: bool,
    ) -> Vec<String> {
        const FULL: &str = "direct return has half of the flow table, and gets no more: other flows of it are \
                            forwarded by hash (layer4.flows)";
        let now = Instant::now();
        self.port_shortage.update(kernel.exit_count(Reason::L4NoPort), now);
        let mut problems: Vec<String> = self.error.iter().cloned().collect();
        problems.extend(self.next_hops.errors());
        problems.extend_from_slice(refused);
        problems.extend(self.guards.file_errors());
        problems.extend(is_dsr_full.then(|| FULL.to_owned()));
        problems.extend(self.port_shortage.problem(now));
        problems.extend(own_ports::problem(&snapshot.model));
        problems
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
    pub(super) fn expired(&mut self, snapshot: &Snapshot, counts: &FlowCounts) -> HashSet<ServiceHostPair> {
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
