//! Watches that the configuration requires: one for each cluster with `kubernetes`, and one for each hostname of hosts.
//! These watches start and end with the configuration.

use std::collections::HashMap;
use std::sync::Arc;

use signalbox_core::discovered::discovery::Discovered;
use signalbox_core::model::kubernetes::KubernetesSource;
use signalbox_core::model::{DNS_PREFIX, Model};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::cluster_certificates;
use super::name_watches::NameWatches;
use super::routing::{CurrentSource, RoutingSupervisor};
use crate::compat::routing_spi::SOURCE;
use crate::control::event::StoreEvent;
use crate::control::state_db::StateDb;
use crate::source;
use crate::source::DiscoveryUpdate;
use crate::state::Shared;

/// Prefix of the watches' source names: `kube:CLUSTER`.
pub const KUBE_PREFIX: &str = "kube:";

/// Runner of watches, and of the source of routing events.
pub struct Watchers {
    shared: Arc<Shared>,
    out: mpsc::UnboundedSender<DiscoveryUpdate>,
    running: HashMap<String, (KubernetesSource, JoinHandle<()>)>,
    names: NameWatches,
    routing: RoutingSupervisor,
}

impl Watchers {
    /// Makes the runner, without any watch. Reports of the watches become events for the store.
    #[must_use]
    pub fn new(
        shared: Arc<Shared>,
        durable: Arc<StateDb>,
        routing: CurrentSource,
        events: mpsc::UnboundedSender<StoreEvent>,
    ) -> Self {
        let (out, mut learnt) = mpsc::unbounded_channel();
        let turns = events.clone();
        tokio::spawn(async move {
            while let Some(learnt) = learnt.recv().await {
                if events.send(StoreEvent::Discovery(learnt)).is_err() {
                    return;
                }
            }
        });
        Self {
            routing: RoutingSupervisor::new(Arc::clone(&shared), durable, routing, out.clone(), turns),
            shared,
            out,
            running: HashMap::new(),
            names: NameWatches::default(),
        }
    }

    /// Runs exactly the watches that this configuration requires. A watch with changed settings is restarted; its
    /// earlier report stays active until it reports again.
    pub fn follow(&mut self, model: &Model, discovered: &Discovered) {
        self.routing.follow(model.routing_events.as_ref());
        self.names.follow(model, discovered, &self.shared, &self.out);
        let wanted: HashMap<&str, &KubernetesSource> = model
            .clusters
            .iter()
            .filter_map(|cluster| Some((cluster.name.as_str(), cluster.kubernetes.as_ref()?)))
            .collect();
        let shared = &self.shared;
        self.running.retain(|cluster, (source, task)| {
            let stays = wanted.get(cluster.as_str()) == Some(&&*source);
            if !stays {
                task.abort();
                shared.forget_source(&format!("{KUBE_PREFIX}{cluster}"));
            }
            stays
        });
        cluster_certificates::remove_others(model);
        for (cluster, source) in wanted {
            if self.running.contains_key(cluster) {
                continue;
            }
            let standing = self.shared.source(&format!("{KUBE_PREFIX}{cluster}"), "kubernetes");
            let mut settings = source::kube::Settings::new(source.clone());
            settings.certificates = source
                .certificates
                .then(|| cluster_certificates::directory(model, cluster));
            let task = source::kube::spawn(settings, cluster.to_owned(), standing, self.out.clone());
            self.running.insert(cluster.to_owned(), (source.clone(), task));
        }
    }

    /// Starts the source of routing events, and returns its stored reports.
    pub fn start(&mut self, model: &Model) -> Vec<DiscoveryUpdate> {
        self.routing.start(model.routing_events.as_ref())
    }

    /// Returns whether a source's reports about a cluster are still wanted.
    #[must_use]
    pub fn wants(&self, source: &str, cluster: &str) -> bool {
        if source.starts_with(DNS_PREFIX) {
            return self.names.wants(source);
        }
        match source.strip_prefix(KUBE_PREFIX) {
            Some(_) => self.running.contains_key(cluster),
            None => source != SOURCE || self.routing.is_wanted(),
        }
    }

    /// Tries again to open the source of routing events.
    pub fn retry(&mut self) {
        self.routing.retry();
    }

    /// Ends all sources for good, because another process has taken over.
    pub fn stop(&mut self) {
        self.routing.stop();
        self.names.stop();
        for (_, (_, task)) in self.running.drain() {
            task.abort();
        }
    }

    /// Closes the source of routing events, because another process needs the database.
    pub fn release_ledger(&mut self) {
        self.routing.pause();
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        for (_, task) in self.running.values() {
            task.abort();
        }
    }
}
