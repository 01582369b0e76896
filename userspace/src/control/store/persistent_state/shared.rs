//! The part of the state that balancers share: records in etcd, and changes by others.

use std::sync::Arc;

use signalbox_core::discovered::discovery::{ClusterDiscovery, Discovered};
use signalbox_core::discovered::expose::Ports;
use signalbox_core::discovered::merge::WeightOverrides;
use signalbox_core::routing::rotation::Rotation;

use super::{
    DISCOVERED_RECORD, OutRecord, PORT_RECORD, PersistError, PersistentState, ROTATION_RECORD, SEPARATOR,
    SharedChanges, TICKET_SECRET_RECORD, WEIGHT_RECORD, discovered_record, is_shared, json, ticket_secret,
};
use crate::control::etcd::{Etcd, SharedRecords};
use crate::control::state_db::RecordChange;

impl PersistentState {
    /// Returns all records that balancers share.
    pub(super) fn shared_records(&self) -> Vec<RecordChange> {
        let mut changes = Vec::new();
        for (source, clusters) in self.discovered.iter().filter(|(source, _)| is_shared(source)) {
            for (cluster, what) in clusters {
                changes.push(discovered_record(&(source.clone(), cluster.clone()), Some(what)));
            }
        }
        for (subject, out) in &self.rotation.0 {
            let record = OutRecord {
                subject: subject.clone(),
                out: out.clone(),
            };
            changes.push((ROTATION_RECORD, subject.to_string(), Some(json(&record))));
        }
        let ports = self.ports.iter();
        changes.extend(ports.map(|(name, port)| (PORT_RECORD, name.clone(), Some(json(port)))));
        changes.extend(self.shared_ticket_secret.as_ref().map(ticket_secret::shared_record));
        let weights = self.weights.iter();
        changes.extend(weights.map(|(host, set)| (WEIGHT_RECORD, host.clone(), Some(json(set)))));
        changes
    }

    /// Returns the shared table's client, if balancers share one.
    #[must_use]
    pub fn shared(&self) -> Option<Arc<Etcd>> {
        self.shared.clone()
    }

    /// Adopts the content of the shared table, unless it is older than the known one. Returns the changes.
    pub fn adopt_shared(&mut self, records: SharedRecords) -> SharedChanges {
        let mut adopted = SharedChanges::default();
        if (records.revision < self.revision && !records.is_rolled_back) || records.is_new {
            return adopted;
        }
        self.revision = records.revision;
        let mut discovered: Discovered = (*self.discovered).clone();
        discovered.retain(|source, _| !is_shared(source));
        let (mut rotation, mut weights) = (Rotation::default(), WeightOverrides::new());
        let mut ports = Ports::new();
        let mut secret = None;
        let mut copies = Vec::new();
        for (kind, key, value) in &records.all {
            let kind = match kind.as_str() {
                DISCOVERED_RECORD => {
                    let learned = serde_json::from_slice::<ClusterDiscovery>(value);
                    if let (Some((source, cluster)), Ok(learned)) = (key.split_once(SEPARATOR), learned) {
                        let of = discovered.entry(source.to_owned()).or_default();
                        of.insert(cluster.to_owned(), Arc::new(learned));
                    }
                    DISCOVERED_RECORD
                }
                ROTATION_RECORD => {
                    if let Ok(record) = serde_json::from_slice::<OutRecord>(value) {
                        rotation.0.insert(record.subject, record.out);
                    }
                    ROTATION_RECORD
                }
                WEIGHT_RECORD => {
                    if let Ok(set) = serde_json::from_slice(value) {
                        weights.insert(key.clone(), set);
                    }
                    WEIGHT_RECORD
                }
                PORT_RECORD => {
                    if let Ok(port) = serde_json::from_slice(value) {
                        ports.insert(key.clone(), port);
                    }
                    PORT_RECORD
                }
                TICKET_SECRET_RECORD if key == ticket_secret::SHARED_KEY => {
                    secret = ticket_secret::parse(value);
                    TICKET_SECRET_RECORD
                }
                _ => continue,
            };
            copies.push((kind, key.clone(), Some(value.clone())));
        }
        for subject in self.rotation.0.keys() {
            if !rotation.0.contains_key(subject) {
                adopted.taken_in.push(subject.clone());
                copies.push((ROTATION_RECORD, subject.to_string(), None));
            }
        }
        for (subject, out) in &rotation.0 {
            // A subject that went in and out again between two reads is a new rotation, with a separate drain.
            if self.rotation.0.get(subject).is_none_or(|known| known.job != out.job) {
                adopted.taken_out.push((subject.clone(), out.clone()));
            }
        }
        for (source, clusters) in self.discovered.iter() {
            for cluster in clusters.keys() {
                if discovered.get(source).is_none_or(|of| !of.contains_key(cluster)) {
                    copies.push((DISCOVERED_RECORD, format!("{source}{SEPARATOR}{cluster}"), None));
                }
            }
        }
        for host in self.weights.keys().filter(|host| !weights.contains_key(*host)) {
            copies.push((WEIGHT_RECORD, host.clone(), None));
        }
        for name in &self.unsaved_ports {
            match self.ports.get(name) {
                Some(port) => drop(ports.insert(name.clone(), *port)),
                None => drop(ports.remove(name)),
            }
        }
        for name in self.ports.keys().filter(|name| !ports.contains_key(*name)) {
            copies.push((PORT_RECORD, name.clone(), None));
        }
        adopted.needs_rebuild = discovered != *self.discovered || weights != *self.weights || ports != *self.ports;
        let secret_before = self.shared_ticket_secret.clone();
        adopted.needs_tickets = self.adopt_ticket_secret(secret);
        let is_news = adopted.needs_rebuild || secret_before != self.shared_ticket_secret || rotation != *self.rotation;
        (self.discovered, self.rotation, self.weights) = (Arc::new(discovered), Arc::new(rotation), Arc::new(weights));
        self.ports = Arc::new(ports);
        if is_news && let Err(error) = self.put(&copies) {
            tracing::warn!(
                error = crate::sys::error_chain(&error),
                "A copy of the shared table could not be written."
            );
        }
        adopted
    }

    /// Writes records that balancers share: to the shared table first, if there is one.
    pub fn put_shared(&mut self, changes: &[RecordChange]) -> Result<(), PersistError> {
        let Some(etcd) = self.shared.clone() else {
            return Ok(self.put(changes)?);
        };
        if changes.is_empty() {
            return Ok(());
        }
        let known = self.revision;
        let putting = || tokio::runtime::Handle::current().block_on(etcd.put(changes, known));
        let revision = tokio::task::block_in_place(putting)?;
        self.revision = self.revision.max(revision);
        if let Err(error) = self.put(changes) {
            tracing::warn!(
                error = crate::sys::error_chain(&error),
                "A copy of the shared table could not be written."
            );
        }
        Ok(())
    }
}
