//! Configured features that are not active: they are logged and shown, so that operators do not rely on them.

use signalbox_api::status::MissingFeature;
use signalbox_core::model::Tier;

use crate::control::Control;

impl Control {
    /// Returns all features that are missing now.
    #[must_use]
    pub fn missing_features(&self) -> Vec<MissingFeature> {
        let snapshot = self.shared.snapshot.load();
        let services = self.kernel.services.services_problem().map(|why| MissingFeature {
            feature: "services".into(),
            why,
            is_required: true,
        });
        let shield = self.kernel.services.shield_problem().map(|why| MissingFeature {
            feature: "shield".into(),
            why,
            is_required: snapshot.model.shield.required,
        });
        let demands_sockmap =
            |listener: &&signalbox_core::model::Listener| listener.datapath.tier == Some(Tier::Sockmap);
        let sockmap = snapshot
            .model
            .listeners
            .iter()
            .find(demands_sockmap)
            .and_then(|listener| {
                let why = self.facts.sockmap.as_ref()?;
                Some(MissingFeature {
                    feature: "sockmap".into(),
                    why: format!("listener {} demands it: {why}", listener.name),
                    // Connections of the listener are still carried, by splice and copy.
                    is_required: false,
                })
            });
        let kernel_peek = self
            .kernel
            .kernel_peek
            .as_ref()
            .and_then(|kernel_peek| kernel_peek.problem());
        let kernel_peek = kernel_peek.map(|why| MissingFeature {
            feature: "kernel_peek".into(),
            why,
            // Connections of `peek: auto` are served by sockets.
            is_required: false,
        });
        let foreign = self.shared.kernel.foreign_programs.load();
        let foreign = (!foreign.is_empty()).then(|| MissingFeature {
            feature: "first_place".into(),
            why: format!(
                "programs of others see packets before ours, and may take them: {}; have them attached after ours, or say \
                 by `datapath` what is to go by sockets",
                foreign.join("; ")
            ),
            // The foreign programs may let all packets through.
            is_required: false,
        });
        [services, shield, sockmap, kernel_peek, foreign]
            .into_iter()
            .flatten()
            .collect()
    }
}
