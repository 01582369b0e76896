//! State of layer-4 services for readers, who never wait for the thread.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use signalbox_core::routing::rotation::{Subject, covers};

use super::guard_view::GuardsView;
use super::host_numbers::{HostId, ServiceId};
use super::sweep::ServiceHostPair;
use crate::kernel::l4::L4Kernel as Kernel;
use crate::kernel::l4::hooks::AttachedHook;

/// State for readers (API, metrics, jobs), who never wait for the thread.
#[derive(Default)]
pub(super) struct ServicesView {
    pub(super) kernel: Option<Arc<Kernel>>,
    pub(super) services: HashMap<ServiceId, u16>,
    pub(super) hosts: HashMap<HostId, u32>,
    /// Cluster and name of each host of services, with its number.
    pub(super) named_hosts: Vec<(String, String, u32)>,
    /// Services of each cluster.
    pub(super) services_by_cluster: HashMap<String, Vec<u16>>,
    /// Each host's share of the table, in percent, by service.
    pub(super) shares: HashMap<String, HashMap<u32, f64>>,
    pub(super) reachable: HashSet<u32>,
    /// Every service with every host that it may send to.
    pub(super) service_hosts: HashSet<ServiceHostPair>,
    pub(super) hooks: Vec<AttachedHook>,
    /// Interfaces that got no program, with the reason.
    pub(super) unattached: Vec<String>,
    /// Reason why the programs are not loaded.
    pub(super) load_error: Option<String>,
    /// Reason why the shield differs from the configuration.
    pub(super) shield_error: Option<String>,
    /// Reason why services differ from the configuration.
    pub(super) services_error: Option<String>,
    pub(super) problems: Vec<String>,
    pub(super) guards: GuardsView,
}

impl ServicesView {
    /// Returns the hosts that match the subjects, each with the services that send to it for its cluster: another
    /// cluster may have the same machine.
    pub(super) fn covered_hosts(&self, subjects: &[Subject]) -> Vec<(String, Vec<ServiceHostPair>)> {
        let all = self.named_hosts.iter();
        let covered = all.filter(|(cluster, host, _)| covers(subjects, cluster, host, None));
        covered
            .map(|(cluster, host, number)| {
                let services = self.services_by_cluster.get(cluster).into_iter().flatten();
                let pairs = services.map(|service| (*service, *number)).collect();
                (format!("{cluster}/{host}"), pairs)
            })
            .collect()
    }
}
