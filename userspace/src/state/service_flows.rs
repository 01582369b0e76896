//! Connections of layer-4 services to report to other nodes, as found by the sweeps over the kernel's table.
//!
//! A sweep writes, and the replication thread reads. At most the contents of the kernel's table are stored.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use foldhash::fast::FixedState;
use parking_lot::Mutex;
use signalbox_common::net::Key;
use signalbox_core::availability::sync::ServiceRecord;

/// Keys of connections, in the client's direction.
pub type ServiceKeys = HashSet<Key, FixedState>;

/// Connections that are replicated, by key.
#[derive(Default)]
pub struct ServiceFlows {
    is_wanted: AtomicBool,
    known: Mutex<KnownFlows>,
}

#[derive(Default)]
struct KnownFlows {
    flows: HashMap<Key, KnownFlow, FixedState>,
    /// Connections that are new, have changed or have ended since they were last taken.
    changed: ServiceKeys,
    /// Groups of virtual addresses that this node had at the start of the last sweep; `None` before the first.
    groups: Option<Vec<String>>,
    sweep: u32,
}

struct KnownFlow {
    record: ServiceRecord,
    /// Last sweep that has seen the connection.
    sweep: u32,
    /// Tick at which it was last reported to others.
    told: u32,
}

impl ServiceFlows {
    /// Makes the sweeps look for connections to replicate, from now on.
    pub fn want(&self) {
        self.is_wanted.store(true, Relaxed);
    }

    /// Whether connections of services are replicated at all.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.is_wanted.load(Relaxed)
    }

    /// Stores the findings of a sweep: all connections of the groups that this node has. `tell_again` is the number of
    /// ticks after which an old one is reported again.
    pub fn update(&self, groups: Vec<String>, found: Vec<ServiceRecord>, tick: u32, tell_again: u32) {
        let mut known = self.known.lock();
        let KnownFlows {
            flows, changed, sweep, ..
        } = &mut *known;
        *sweep = sweep.wrapping_add(1);
        for record in found {
            let fresh = KnownFlow {
                record,
                sweep: *sweep,
                told: tick,
            };
            let key = record.key();
            match flows.get_mut(&key) {
                Some(flow) if flow.record.is_alike(&record) && tick.wrapping_sub(flow.told) < tell_again => {
                    flow.sweep = *sweep;
                }
                other => {
                    changed.insert(key);
                    match other {
                        Some(flow) => *flow = fresh,
                        None => drop(flows.insert(key, fresh)),
                    }
                }
            }
        }
        flows.retain(|key, flow| {
            let is_there = flow.sweep == *sweep;
            if !is_there {
                changed.insert(*key);
            }
            is_there
        });
        known.groups = Some(groups);
    }

    /// Takes the changes since the last call.
    #[must_use]
    pub fn take_changes(&self) -> ServiceKeys {
        std::mem::take(&mut self.known.lock().changed)
    }

    /// Returns the records of connections; `None` for ended ones.
    #[must_use]
    pub fn records(&self, keys: &[Key]) -> Vec<Option<ServiceRecord>> {
        let known = self.known.lock();
        keys.iter()
            .map(|key| known.flows.get(key).map(|flow| flow.record))
            .collect()
    }

    /// Keys of all connections, and the groups that these cover; `None` before the first sweep.
    #[must_use]
    pub fn all(&self) -> Option<(ServiceKeys, Vec<String>)> {
        let known = self.known.lock();
        let groups = known.groups.clone()?;
        Some((known.flows.keys().copied().collect(), groups))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(client: u32, port: u32) -> ServiceRecord {
        ServiceRecord {
            addresses: [[0, 0, 0xffff, client]; 4],
            ports: [1, port],
            ..ServiceRecord::default()
        }
    }

    fn changes(flows: &ServiceFlows) -> Vec<(u32, bool)> {
        let keys: Vec<Key> = flows.take_changes().into_iter().collect();
        let records = flows.records(&keys);
        let mut all: Vec<_> = keys
            .iter()
            .zip(records)
            .map(|(key, record)| (key.source[3], record.is_some()))
            .collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn sweeps_tell_what_is_new_has_changed_or_is_gone() {
        let flows = ServiceFlows::default();
        assert!(flows.all().is_none(), "nothing is known before the first sweep");
        flows.update(vec!["g1".into()], vec![record(1, 1), record(2, 1)], 0, 100);
        assert_eq!(changes(&flows), [(1, true), (2, true)]);
        // The idle time is no change.
        let idle = ServiceRecord {
            idle: 7,
            ..record(1, 1)
        };
        flows.update(vec!["g1".into()], vec![idle, record(2, 1)], 10, 100);
        assert_eq!(changes(&flows), []);
        // Another source port is a change: the client's port has another connection.
        flows.update(vec!["g1".into()], vec![idle, record(2, 9), record(3, 1)], 20, 100);
        assert_eq!(changes(&flows), [(2, true), (3, true)]);
        flows.update(vec!["g1".into()], vec![idle, record(3, 1)], 30, 100);
        assert_eq!(changes(&flows), [(2, false)]);
        // An old connection is reported again after a while, with its current idle time.
        flows.update(vec!["g1".into()], vec![idle, record(3, 1)], 100, 100);
        assert_eq!(changes(&flows), [(1, true)]);
        assert_eq!(flows.records(&[idle.key()]), [Some(idle)]);
        let (all, groups) = flows.all().unwrap();
        assert_eq!((all.len(), groups), (2, vec!["g1".to_owned()]));
        flows.update(Vec::new(), Vec::new(), 110, 100);
        assert_eq!(changes(&flows), [(1, false), (3, false)]);
    }
}
