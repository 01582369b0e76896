//! Applications exposed as layer-4 services: keeps their ports, and announces changes.

use std::sync::Arc;

use signalbox_api::changes::ChangeEvent;
use signalbox_core::discovered::expose::{ExposeResult, effective_model};
use signalbox_core::discovered::merge::add_testers;

use super::{Applied, Store};

impl Store {
    /// Makes the model again from file, sources and operators' settings, and applies it. New ports are on disk before
    /// that.
    pub(super) fn rebuild(&mut self) -> Result<Applied, String> {
        let memory = &self.persistent;
        let (mut model, exposure) = effective_model(&self.file, &memory.discovered, &memory.weights, &memory.ports);
        add_testers(&mut model, &self.testers);
        let ports_before = Arc::clone(&memory.ports);
        self.persistent.keep_ports(&exposure.ports);
        let before = std::mem::replace(&mut self.active.exposure, Arc::new(exposure));
        let outcome = self.apply(model);
        if outcome.is_ok() {
            self.announce_exposure(&before);
        } else {
            self.persistent.keep_ports(&ports_before);
            (self.active.exposure, self.needs_publish) = (before, true);
        }
        outcome
    }

    fn announce_exposure(&self, before: &ExposeResult) {
        for (service, entry) in &self.active.exposure.entries {
            if before.entries.get(service) == Some(entry) {
                continue;
            }
            let listen = entry.listen.join(", ");
            match &entry.reason {
                Some(reason) => tracing::warn!(service, reason, "Endpoints of an application are not exposed."),
                None => tracing::info!(service, listen, "Endpoints of an application are exposed."),
            }
            for (host, why) in &entry.left_out {
                tracing::warn!(service, host, why, "An endpoint is left out of its service.");
            }
            self.shared.announce(ChangeEvent::Exposed {
                service: service.clone(),
                listen: entry.listen.clone(),
                reason: entry.reason.clone(),
            });
        }
        for service in before
            .entries
            .keys()
            .filter(|name| !self.active.exposure.entries.contains_key(*name))
        {
            tracing::info!(service, "Endpoints of an application are no longer exposed.");
            self.shared.announce(ChangeEvent::Exposed {
                service: service.clone(),
                listen: Vec::new(),
                reason: None,
            });
        }
    }
}
