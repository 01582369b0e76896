//! Makes the active model from the configuration, the sources' reports and the operators' settings.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use signalbox_api::changes::ChangeEvent;
use signalbox_core::discovered::merge::{ClusterWeights, TesterOverrides, check_weights};
use signalbox_core::model::Model;
use signalbox_tls::tickets::TicketSecret;

use super::named_files::NamedFiles;
use super::persistent_state::{ConfigOverride, Persist};
use super::{Applied, Store};
use crate::compat::routing_spi::{SOURCE, why_waiting};
use crate::source::DiscoveryUpdate;
use crate::state::error_pages::ErrorPages;

impl Store {
    /// Applies a new configuration completely, or not at all. A text that replaces the file's is on disk before it is
    /// applied.
    pub(super) fn configure(&mut self, model: Model, instead: Option<ConfigOverride>) -> Result<Applied, String> {
        if instead.is_none() {
            let applied = self.put_in_force(model)?;
            if let Err(error) = self.persistent.set_override(None) {
                let error = crate::sys::error_chain(&error);
                tracing::warn!(
                    error,
                    "The configuration set by API could not be removed from disk: it may come back."
                );
            }
            return Ok(applied);
        }
        let written = self
            .ensure_restored()
            .and_then(|()| self.persistent.set_override(instead));
        let before = written.map_err(|error| crate::sys::error_chain(&error))?;
        self.put_in_force(model).inspect_err(|_| {
            if let Err(error) = self.persistent.set_override(before) {
                let error = crate::sys::error_chain(&error);
                tracing::warn!(
                    error,
                    "A refused configuration is still on disk; a start would refuse it again."
                );
            }
        })
    }

    fn put_in_force(&mut self, model: Model) -> Result<Applied, String> {
        let is_first = self.addresses.is_none();
        if is_first {
            for learnt in tokio::task::block_in_place(|| self.watchers.start(&model)) {
                self.apply_discovery(learnt);
            }
        }
        let secret = self.ticket_secret(&model);
        let named_files = NamedFiles::of(&model);
        // Done before the listeners open: none of them may serve without its certificates.
        let (tls, pages) = tokio::task::block_in_place(|| {
            let pages = ErrorPages::load(&model.pages)?;
            self.tls.prepare(&model, secret.as_ref()).map(|tls| (tls, pages))
        })?;
        let tls_before = self.tls.commit(tls);
        let before = std::mem::replace(&mut self.file, std::sync::Arc::new(model));
        match self.rebuild() {
            Ok(applied) => {
                self.shared.error_pages.store(std::sync::Arc::new(pages));
                self.named_files = named_files;
                self.shared.ha.retain(&self.file);
                self.merge.done();
                self.shared.applied.waiting.end();
                self.follow_sources();
                self.warn_of_unknown_applications();
                Ok(applied)
            }
            Err(error) => {
                self.tls.state = tls_before;
                self.file = before;
                Err(error)
            }
        }
    }

    /// Secret for the session tickets of a configuration's listeners; `None` if they issue none.
    pub(super) fn ticket_secret(&mut self, model: &Model) -> Option<TicketSecret> {
        let has_tls = model.listeners.iter().any(|listener| listener.tls.is_some());
        has_tls
            .then(|| self.persistent.ticket_secret(model.tls.tickets))
            .flatten()
    }

    /// Makes the listeners use the current shared secret of session tickets.
    pub(super) fn renew_tickets(&mut self) {
        let model = std::sync::Arc::clone(&self.file);
        let Some(secret) = self.ticket_secret(&model) else {
            return;
        };
        match tokio::task::block_in_place(|| self.tls.prepare(&model, Some(&secret))) {
            Ok(tls) => {
                self.tls.commit(tls);
                self.needs_publish = true;
            }
            Err(error) => {
                tracing::warn!(
                    error,
                    "The shared secret of session tickets is not in use yet: the next reload tries again."
                );
            }
        }
    }

    /// Warns of applications in the file that no source has reported: the name may be misspelt.
    fn warn_of_unknown_applications(&self) {
        for cluster in &self.file.clusters {
            if let Some(why) = why_waiting(&self.persistent.discovered, cluster) {
                tracing::warn!(
                    cluster = cluster.name,
                    why,
                    "The configuration names an application that has no hosts."
                );
            }
        }
    }

    /// Starts and ends watches as configured, and forgets discoveries of clusters that are no longer configured.
    fn follow_sources(&mut self) {
        let discovered = std::sync::Arc::clone(&self.persistent.discovered);
        tokio::task::block_in_place(|| self.watchers.follow(&self.file, &discovered));
        for (source, clusters) in discovered.iter() {
            for cluster in clusters.keys() {
                if !self.watchers.wants(source, cluster) {
                    self.apply_discovery(DiscoveryUpdate {
                        source: source.clone(),
                        cluster: cluster.clone(),
                        discovery: None,
                        done: None,
                    });
                }
            }
        }
    }

    /// Stores a source's report. It is applied with the next model.
    pub(super) fn apply_discovery(&mut self, learnt: DiscoveryUpdate) {
        // An error is ignored here: writing fails too, and reports it.
        let _ = self.ensure_restored();
        let DiscoveryUpdate {
            source,
            cluster,
            discovery: what,
            done,
        } = learnt;
        // A watch that has been ended may have sent a last report, which is ignored.
        if what.is_some() && !self.watchers.wants(&source, &cluster) {
            return;
        }
        if source == SOURCE && what.is_none() && self.watchers.wants(&source, &cluster) {
            // The application itself is gone, not only the configuration's section for routing events.
            self.persistent.free_ports(&cluster);
        }
        let keep = if source == SOURCE {
            // Routing events have their own records and need no others.
            Persist::BySource
        } else if done.is_some() {
            Persist::Now
        } else {
            Persist::Soon
        };
        match self.persistent.set_discovered(&source, &cluster, what, keep) {
            Ok(is_news) if !is_news || keep == Persist::BySource => {
                if is_news {
                    self.merge.request();
                }
                if let Some(done) = done {
                    let _ = done.send(Ok(()));
                }
            }
            Ok(_) => {
                self.shared.announce(ChangeEvent::Learnt { source, cluster });
                self.merge.request_for(done);
            }
            Err(error) => {
                let error = crate::sys::error_chain(&error);
                tracing::error!(
                    source,
                    cluster,
                    error,
                    "The report of a source is not applied: it could not be written to disk."
                );
                if let Some(done) = done {
                    let _ = done.send(Err(error));
                }
            }
        }
    }

    /// Makes the model again from the sources' reports.
    pub(super) fn rebuild_and_reply(&mut self) {
        let began = Instant::now();
        let outcome = self.rebuild().map(drop);
        self.shared.applied.seconds.observe(began.elapsed());
        match &outcome {
            Ok(()) => self.shared.applied.waiting.end(),
            // The wait continues in the metrics until a model can be applied.
            Err(error) => tracing::error!(error, "The reports of sources could not be applied."),
        }
        self.merge.answer(&outcome);
        self.merge.done();
    }

    /// Sets the testers of migrations, which replace the earlier ones.
    pub(super) fn set_testers(&mut self, testers: TesterOverrides) -> Result<(), String> {
        let before = std::mem::replace(&mut self.testers, Arc::new(testers));
        let outcome = self.rebuild();
        if outcome.is_err() {
            self.testers = before;
        }
        self.merge.done();
        outcome.map(drop)
    }

    /// Sets the weights of all given routes, or none. A route without weights gets those of the file and sources.
    pub(super) fn set_weights(&mut self, set: &BTreeMap<String, Option<ClusterWeights>>) -> Result<Applied, String> {
        check_weights(&self.active.model, &self.persistent.weights, set)?;
        self.ensure_restored()
            .map_err(|error| crate::sys::error_chain(&error))?;
        self.persistent
            .set_weights(set)
            .map_err(|e| crate::sys::error_chain(&e))?;
        let applied = self.rebuild()?;
        self.merge.done();
        Ok(applied)
    }
}
