//! Ports of exposed services: one record for each, shared if balancers share a table.

use std::sync::Arc;
use std::time::Instant;

use signalbox_core::discovered::expose::Ports;

use super::{PORT_RECORD, PersistentState, SAVE_INTERVAL, json};
use crate::control::state_db::RecordChange;

impl PersistentState {
    /// Keeps these ports of exposed services, and no others. A port that cannot be written is used until this process
    /// ends, and the write is tried again: clients need not wait for the disk.
    pub fn keep_ports(&mut self, ports: &Ports) {
        let before = &self.ports;
        let changed = ports.iter().filter(|(name, port)| before.get(*name) != Some(*port));
        let gone = before.keys().filter(|name| !ports.contains_key(*name));
        let names: Vec<String> = changed.map(|(name, _)| name).chain(gone).cloned().collect();
        if names.is_empty() {
            return;
        }
        self.unsaved_ports.extend(names);
        self.ports = Arc::new(ports.clone());
        // The pause ends a race: balancers with different ranges, as during a rollout, would overwrite each other
        // forever.
        if self.ports_saved.is_some_and(|then| then.elapsed() < SAVE_INTERVAL) && self.shared().is_some() {
            if let Err(error) = self.put(&self.unsaved_records()) {
                tracing::warn!(
                    error = crate::sys::error_chain(&error),
                    "Ports of exposed applications could not be written; it is tried again."
                );
            }
        } else {
            self.save_ports();
        }
    }

    /// Frees the ports of a removed application.
    pub fn free_ports(&mut self, application: &str) {
        let is_of = |name: &String| name.split_once(':').is_some_and(|(of, _)| of == application);
        let mut ports = (*self.ports).clone();
        ports.retain(|name, _| !is_of(name));
        self.keep_ports(&ports);
    }

    pub(super) fn save_ports(&mut self) {
        self.ports_saved = Some(Instant::now());
        match self.put_shared(&self.unsaved_records()) {
            Ok(()) => self.unsaved_ports.clear(),
            Err(error) => tracing::warn!(
                error = crate::sys::error_chain(&error),
                "Ports of exposed applications could not be written; it is tried again."
            ),
        }
    }

    fn unsaved_records(&self) -> Vec<RecordChange> {
        let record = |name: &String| (PORT_RECORD, name.clone(), self.ports.get(name).map(json));
        self.unsaved_ports.iter().map(record).collect()
    }
}
