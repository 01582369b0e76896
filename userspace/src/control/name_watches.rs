//! Resolves hosts' hostnames: one task per hostname, which the configuration starts and ends.

use std::collections::HashMap;

use signalbox_core::discovered::discovery::Discovered;
use signalbox_core::model::Model;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::source::DiscoveryUpdate;
use crate::source::resolve::{self, FollowedName};
use crate::state::Shared;

/// Tasks by source.
#[derive(Default)]
pub(super) struct NameWatches(HashMap<String, (FollowedName, JoinHandle<()>)>);

impl NameWatches {
    /// Resolves exactly the hostnames in this configuration. Known addresses stay until there is an answer.
    pub(super) fn follow(
        &mut self,
        model: &Model,
        discovered: &Discovered,
        shared: &Shared,
        out: &mpsc::UnboundedSender<DiscoveryUpdate>,
    ) {
        let mut wanted = HashMap::new();
        for cluster in &model.clusters {
            for named in &cluster.named_hosts {
                let name = FollowedName {
                    cluster: cluster.name.clone(),
                    hostname: named.hostname.clone(),
                    interval: cluster.resolve,
                };
                wanted.insert(cluster.dns_source(&named.hostname), name);
            }
        }
        self.0.retain(|source, (name, task)| {
            let stays = wanted.get(source) == Some(name);
            if !stays {
                task.abort();
                shared.forget_source(source);
            }
            stays
        });
        for (source, name) in wanted {
            if self.0.contains_key(&source) {
                continue;
            }
            let known = discovered.get(&source).and_then(|of| of.get(&name.cluster));
            let addresses = known
                .into_iter()
                .flat_map(|known| &known.hosts)
                .map(|host| host.address);
            let task = resolve::spawn(name.clone(), addresses, shared.source(&source, "dns"), out.clone());
            self.0.insert(source, (name, task));
        }
    }

    pub(super) fn wants(&self, source: &str) -> bool {
        self.0.contains_key(source)
    }

    /// Ends all tasks.
    pub(super) fn stop(&mut self) {
        for (_, (_, task)) in self.0.drain() {
            task.abort();
        }
    }
}

impl Drop for NameWatches {
    fn drop(&mut self) {
        self.stop();
    }
}
