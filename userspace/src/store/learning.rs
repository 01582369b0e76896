//! Makes the model in force from the configuration and what sources and operators say.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::json;
use signalbox_core::merge::{ClusterWeights, check_weights};
use signalbox_core::model::Model;

use super::memory::{Instead, Keep};
use super::{Applied, Store};
use crate::source::DiscoveryUpdate;
use crate::source::routing_spi::{SOURCE, why_waiting};

impl Store {
    /// Applies a new configuration, whole or not at all. A text that replaces the file's is on disk before it is in
    /// force.
    pub(super) fn configure(&mut self, model: Model, instead: Option<Instead>) -> Result<Applied, String> {
        if instead.is_none() {
            let applied = self.put_in_force(model)?;
            if let Err(error) = self.memory.put_instead(None) {
                let error = crate::error_chain(&error);
                tracing::warn!(
                    error,
                    "The configuration set by API could not be removed from disk: it may come back."
                );
            }
            return Ok(applied);
        }
        let written = self.remember().and_then(|()| self.memory.put_instead(instead));
        let before = written.map_err(|error| crate::error_chain(&error))?;
        self.put_in_force(model).inspect_err(|_| {
            if let Err(error) = self.memory.put_instead(before) {
                let error = crate::error_chain(&error);
                tracing::warn!(
                    error,
                    "A refused configuration is still on disk; a start would refuse it again."
                );
            }
        })
    }

    fn put_in_force(&mut self, model: Model) -> Result<Applied, String> {
        let is_first = !self.served;
        if is_first {
            for learnt in tokio::task::block_in_place(|| self.watchers.start(&model)) {
                self.learn(learnt);
            }
        }
        let before = std::mem::replace(&mut self.file, std::sync::Arc::new(model));
        match self.remake() {
            Ok(applied) => {
                self.made();
                self.follow();
                self.warn_of_unknown_applications();
                Ok(applied)
            }
            Err(error) => {
                self.file = before;
                Err(error)
            }
        }
    }

    /// Warns of applications that the file names and no source has told of: the name may be misspelt.
    fn warn_of_unknown_applications(&self) {
        for cluster in &self.file.clusters {
            if let Some(why) = why_waiting(&self.memory.lore, cluster) {
                tracing::warn!(
                    cluster = cluster.name,
                    why,
                    "The configuration names an application that has no hosts."
                );
            }
        }
    }

    /// Starts and ends watches as configured, and forgets what was learnt of clusters that are no longer named.
    fn follow(&mut self) {
        tokio::task::block_in_place(|| self.watchers.follow(&self.file));
        let lore = std::sync::Arc::clone(&self.memory.lore);
        for (source, clusters) in lore.iter() {
            for cluster in clusters.keys() {
                if !self.watchers.wants(source, cluster) {
                    self.learn(DiscoveryUpdate {
                        source: source.clone(),
                        cluster: cluster.clone(),
                        discovery: None,
                        done: None,
                    });
                }
            }
        }
    }

    /// Takes what a source has told. It is in force with the next model.
    pub(super) fn learn(&mut self, learnt: DiscoveryUpdate) {
        // An error is ignored here: writing fails, too, and reports it.
        let _ = self.remember();
        let DiscoveryUpdate {
            source,
            cluster,
            discovery: what,
            done,
        } = learnt;
        // A watch that has been ended may have sent a last word: it is ignored.
        if what.is_some() && !self.watchers.wants(&source, &cluster) {
            return;
        }
        if source == SOURCE && what.is_none() && self.watchers.wants(&source, &cluster) {
            // The application itself is gone, not just the configuration's section for routing events.
            self.memory.free_ports(&cluster);
        }
        let keep = if source == SOURCE {
            // Routing events have records of their own, and need no other.
            Keep::Elsewhere
        } else if done.is_some() {
            Keep::Now
        } else {
            Keep::Soon
        };
        match self.memory.learn(&source, &cluster, what, keep) {
            Ok(is_news) if !is_news || keep == Keep::Elsewhere => {
                self.stale |= is_news;
                if let Some(done) = done {
                    let _ = done.send(Ok(()));
                }
            }
            Ok(_) => {
                let data = json!({ "source": source, "cluster": cluster });
                self.shared.announce("learnt", data);
                self.told.extend(done);
                self.stale = true;
            }
            Err(error) => {
                let error = crate::error_chain(&error);
                tracing::error!(
                    source,
                    cluster,
                    error,
                    "The knowledge of a source is not taken: it could not be written."
                );
                if let Some(done) = done {
                    let _ = done.send(Err(error));
                }
            }
        }
    }

    /// Makes the model anew from what sources have told.
    pub(super) fn remodel(&mut self) {
        let began = Instant::now();
        let outcome = self.remake().map(drop);
        self.shared.swaps.observe(began.elapsed());
        if let Err(error) = &outcome {
            tracing::error!(error, "The knowledge of sources could not be put in force.");
        }
        for done in std::mem::take(&mut self.told) {
            let _ = done.send(outcome.clone());
        }
        self.made();
    }

    fn made(&mut self) {
        self.stale = false;
        self.remodelled = Instant::now();
    }

    /// Sets the weights of routes, all or none. A route without any gets those of the file and sources.
    pub(super) fn set_weights(&mut self, set: &BTreeMap<String, Option<ClusterWeights>>) -> Result<Applied, String> {
        check_weights(&self.model, &self.memory.weights, set)?;
        self.remember().map_err(|error| crate::error_chain(&error))?;
        self.memory.set_weights(set).map_err(|e| crate::error_chain(&e))?;
        let applied = self.remake()?;
        self.made();
        Ok(applied)
    }
}
