//! Contents of the program's maps, and the elements assigned to hosts, clusters and names.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use signalbox_common::peek::abi::{
    MAX_PEEK_HOSTS, MAX_PEEK_MAGLEV, MAX_PEEK_ROUTES, PeekBinding, PeekCluster, PeekConfig, PeekHost, PeekLimits,
    PeekMaglev, PeekName, PeekSourceKey,
};
use signalbox_common::steer::SteerKey;
use signalbox_core::routing::obstacle::PeekObstacle;

use super::conditions::Conditions;
use super::names::NameEntries;
use super::slots::Slots;
use super::tables::{ClientEntries, LeftOut, PeekHostKey, PeekTables};
use crate::state::{HostState, Snapshot};

/// Interval at which the tables are made again without a new snapshot: source addresses and interfaces change.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);

/// A host with its element of `PEEK_HOSTS`.
pub(super) type HostElement = (u32, Arc<HostState>);

/// Contents of the maps.
pub(super) struct Written {
    /// Snapshot and conditions of the tables; `None` at first.
    pub(super) made_of: Option<(Arc<Snapshot>, Conditions)>,
    /// Time of the last attempt.
    pub(super) made: Option<Instant>,
    /// Number of changes, odd while a change is in progress: [`PeekConfig::tables`].
    pub(super) version: u32,
    pub(super) bindings: HashMap<(u32, SteerKey), PeekBinding>,
    pub(super) names: NameEntries,
    pub(super) clusters: HashMap<u32, PeekCluster>,
    /// Maglev tables by element. `maglev_slots` assigns the elements to clusters.
    pub(super) maglev: HashMap<u32, Box<PeekMaglev>>,
    pub(super) maglev_slots: Slots<u32>,
    pub(super) clients: ClientEntries,
    /// Limits of routes and listeners, and those of all listeners.
    pub(super) limits: HashMap<u32, PeekLimits>,
    pub(super) limits_of_all: PeekConfig,
    /// Source addresses that move between nodes.
    pub(super) sources: HashMap<PeekSourceKey, [u32; 4]>,
    /// Hosts with their elements. `entries` has the entries.
    pub(super) hosts: HashMap<PeekHostKey, HostElement>,
    pub(super) entries: HashMap<u32, PeekHost>,
    pub(super) host_slots: Slots<PeekHostKey>,
    /// Elements of new hosts that still contain the counts of earlier ones.
    pub(super) new_hosts: HashSet<u32>,
    pub(super) tickets: Slots<PeekName>,
    pub(super) left_out: LeftOut,
    /// Reasons why items are left out, by listener name and by route name.
    pub(super) listener_obstacles: HashMap<String, PeekObstacle>,
    pub(super) route_obstacles: HashMap<PeekName, PeekObstacle>,
    /// Removed bindings, and since when: clients may still have cookies.
    pub(super) passing_up: HashMap<(u32, SteerKey), Instant>,
}

impl Written {
    pub(super) fn new() -> Self {
        Self {
            made_of: None,
            made: None,
            version: 0,
            bindings: HashMap::new(),
            names: NameEntries::default(),
            clusters: HashMap::new(),
            maglev: HashMap::new(),
            maglev_slots: Slots::new(MAX_PEEK_MAGLEV),
            clients: ClientEntries::new(),
            limits: HashMap::new(),
            limits_of_all: PeekConfig::default(),
            sources: HashMap::new(),
            hosts: HashMap::new(),
            entries: HashMap::new(),
            host_slots: Slots::new(MAX_PEEK_HOSTS),
            new_hosts: HashSet::new(),
            tickets: Slots::new(MAX_PEEK_ROUTES),
            left_out: LeftOut::new(),
            listener_obstacles: HashMap::new(),
            route_obstacles: HashMap::new(),
            passing_up: HashMap::new(),
        }
    }

    /// Returns why a name is left to userspace; `None` if the program routes it.
    pub(super) fn obstacle_of_name(&self, name: &PeekName) -> Option<PeekObstacle> {
        // Without a listener of the protocol, names are not written.
        let is_bound = || self.bindings.values().any(|binding| binding.protocol == name.protocol);
        if self.names.has(name) || !is_bound() {
            return None;
        }
        let known = self.route_obstacles.get(name).copied();
        Some(known.unwrap_or(PeekObstacle::TableFull))
    }

    /// Whether the tables are those of this snapshot, or could not be made a moment ago.
    pub(super) fn is_of(&self, snapshot: &Arc<Snapshot>, conditions: &Conditions) -> bool {
        let is_recent = self.made.is_some_and(|made| made.elapsed() < REFRESH_INTERVAL);
        let is_same = self
            .made_of
            .as_ref()
            .is_none_or(|(of, known)| Arc::ptr_eq(of, snapshot) && known == conditions);
        is_recent && is_same
    }

    /// Assigns elements of maps to the tables' contents, and takes back those that are no longer used.
    pub(super) fn give_elements(&mut self, tables: &mut PeekTables, now: Instant) {
        self.host_slots.retain(now, |key| tables.hosts.contains_key(key));
        self.tickets.retain(now, |name| tables.routes.contains_key(name));
        let maglev = |index: &u32| {
            tables
                .clusters
                .get(index)
                .is_some_and(|cluster| cluster.maglev.is_some())
        };
        self.maglev_slots.retain(now, maglev);
        for index in tables.clusters.keys().filter(|index| maglev(index)) {
            // Without an element the cluster is left out, and so are its routes.
            let _ = self.maglev_slots.take(index, now);
        }
        let mut full = 0;
        for key in tables.hosts.keys() {
            match self.host_slots.take(key, now) {
                Some((index, true)) => _ = self.new_hosts.insert(index),
                Some((_, false)) => {}
                None => full += 1,
            }
        }
        for name in tables.routes.keys() {
            // A name without a ticket is left out later: its route is not written.
            let _ = self.tickets.take(name, now);
        }
        for _ in 0..full {
            tables.leave_out("host", PeekObstacle::TableFull);
        }
    }
}

/// Updates `known` to the new contents: `write` gets each change, `None` for a removal. Removals come first, for room.
pub(super) fn apply<K: Eq + Hash + Clone, V: PartialEq>(
    known: &mut HashMap<K, V>,
    wanted: HashMap<K, V>,
    mut write: impl FnMut(&K, Option<&V>) -> io::Result<()>,
) -> io::Result<()> {
    let gone: Vec<K> = known.keys().filter(|key| !wanted.contains_key(key)).cloned().collect();
    for key in gone {
        write(&key, None)?;
        known.remove(&key);
    }
    for (key, value) in wanted {
        if known.get(&key) != Some(&value) {
            write(&key, Some(&value))?;
            known.insert(key, value);
        }
    }
    Ok(())
}
