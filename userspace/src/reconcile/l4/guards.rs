//! Writes the guards of listeners and services of a snapshot to the shield's maps.
//!
//! Guards come first, then the guarded targets, then the settings that make the programs read both again.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use signalbox_api::shield::GuardKind;
use signalbox_common::net::Target;
use signalbox_common::net::target::PortBit;
use signalbox_common::shield::abi::{MAX_GUARDS, NO_GUARD, NO_TABLE, flag};
use signalbox_common::shield::prefixes::{DIRECT_NODES, Node};
use signalbox_common::shield::source::{mask_v4, mask_v6};
use signalbox_common::shield::{Guard, Limit, Settings};
use signalbox_common::steer::SteerKey;
use signalbox_core::model::Model;
use signalbox_core::model::services::configured_name;
use signalbox_core::model::shield::{RateLimit, ShieldPolicy};
use signalbox_core::wire::address::ipv4_mapped;

use super::lists::{Files, PrefixSet};
use super::services_error::ServicesError;
use crate::kernel::address::to_words;
use crate::kernel::l4::L4Kernel as Kernel;
use crate::state::Snapshot;
use crate::state::shield::DeniedSources;

const TCP: u8 = 6;
/// SYNs per second above which a listener's backlog is examined.
const MIN_SYNS_PER_SECOND: u32 = 128;
/// Spare nodes of the prefix table, beyond those in use, before the table must be rebuilt.
const SPARE_NODES: usize = 65_536;

/// Key of a guard: kind and name.
pub(super) type GuardKey = (GuardKind, String);

/// Content of the shield's maps, as far as this process has written it.
#[derive(Default)]
pub(super) struct Guards {
    numbers: HashMap<GuardKey, u32>,
    written: HashMap<u32, Guard>,
    targets: HashMap<Target, u32>,
    prefixed: HashMap<(u32, SteerKey), u32>,
    ports: BTreeMap<u32, u64>,
    /// Ports of listeners on prefixes.
    wildcard_ports: BTreeMap<u32, u64>,
    settings: Settings,
    files: Files,
    shared: PrefixSet,
    own: HashMap<u32, PrefixSet>,
    /// Lists from which userspace's own check was last made.
    checked: ListenerPrefixes,
}

/// Prefix lists of all guarded listeners, and each listener's own by its name.
#[derive(Default, PartialEq)]
struct ListenerPrefixes {
    shared: PrefixSet,
    own: BTreeMap<String, PrefixSet>,
}

/// Content of the shield's maps that a snapshot requires.
#[derive(Default)]
struct DesiredGuards {
    guards: HashMap<u32, Guard>,
    targets: HashMap<Target, u32>,
    prefixed: HashMap<(u32, SteerKey), u32>,
    ports: BTreeMap<u32, u64>,
    wildcard_ports: BTreeMap<u32, u64>,
    own: HashMap<u32, PrefixSet>,
}

fn map_error(what: &'static str) -> impl Fn(std::io::Error) -> ServicesError {
    move |source| ServicesError::Map { what, source }
}

/// Returns all guarded listeners and services, with their policies.
pub(super) fn policies(model: &Model) -> impl Iterator<Item = (GuardKind, &String, &ShieldPolicy)> {
    let listeners = model.listeners.iter();
    let listeners = listeners.filter_map(|l| Some((GuardKind::Listener, &l.name, l.shield.as_ref()?)));
    let services = model.services.iter();
    listeners.chain(services.filter_map(|s| Some((GuardKind::Service, &s.name, s.shield.as_ref()?))))
}

impl Guards {
    /// Forgets what was written, because the maps are new and empty.
    pub(super) fn reset(&mut self) {
        let files = std::mem::take(&mut self.files);
        let numbers = std::mem::take(&mut self.numbers);
        let checked = std::mem::take(&mut self.checked);
        *self = Self {
            files,
            numbers,
            checked,
            ..Self::default()
        };
    }

    /// Reads the files that have changed. Returns whether a table must be rebuilt.
    pub(super) fn refresh_files(&mut self, snapshot: &Snapshot) -> bool {
        let model = &snapshot.model;
        let common = std::iter::once(&model.shield.lists);
        let all: Vec<_> = common
            .chain(policies(model).map(|(_, _, policy)| &policy.lists))
            .collect();
        self.files.refresh(
            all.iter()
                .flat_map(|lists| lists.deny_files.iter().chain(&lists.allow_files)),
        );
        self.shared_prefixes(snapshot) != self.shared
            || policies(model).any(|(kind, name, policy)| {
                let number = self.numbers.get(&(kind, name.clone()));
                let source = PrefixSet::new(&policy.lists, snapshot.shield.get(configured_name(name)), &self.files);
                number.is_none_or(|number| self.own.get(number).cloned().unwrap_or_default() != source)
            })
    }

    /// Returns the prefixes that apply to all; none if there is no guard.
    fn shared_prefixes(&self, snapshot: &Snapshot) -> PrefixSet {
        if policies(&snapshot.model).next().is_none() {
            return PrefixSet::default();
        }
        PrefixSet::new(&snapshot.model.shield.lists, snapshot.shield.get(""), &self.files)
    }

    /// Returns the tables of userspace's own check of sources, if the lists have changed.
    pub(super) fn changed_denials(&mut self, snapshot: &Snapshot) -> Option<DeniedSources> {
        let listeners = policies(&snapshot.model).filter(|(kind, ..)| *kind == GuardKind::Listener);
        let own = |(_, name, policy): (_, &String, &ShieldPolicy)| {
            let prefixes = PrefixSet::new(&policy.lists, snapshot.shield.get(configured_name(name)), &self.files);
            (name.clone(), prefixes)
        };
        let wanted = ListenerPrefixes {
            shared: self.shared_prefixes(snapshot),
            own: listeners.map(own).collect(),
        };
        if wanted == self.checked {
            return None;
        }
        let table = |prefixes: &PrefixSet| Arc::new(prefixes.build());
        let of_listeners = wanted.own.iter().map(|(name, own)| (name.clone(), table(own)));
        let denied = DeniedSources {
            shared: table(&wanted.shared),
            of_listeners: of_listeners.collect(),
            before: None,
        };
        self.checked = wanted;
        Some(denied)
    }

    /// Returns the number of nodes that the prefix table needs.
    pub(super) fn nodes_needed(&self, snapshot: &Snapshot) -> u32 {
        if policies(&snapshot.model).next().is_none() {
            return 1;
        }
        let nodes = self.shared_prefixes(snapshot).build().len().max(DIRECT_NODES as usize) + SPARE_NODES;
        u32::try_from(nodes + nodes / 4).unwrap_or(u32::MAX / 2)
    }

    /// Brings the maps in line with a snapshot. `Ok(false)`: there is no room for the common prefixes, or for that many
    /// sources.
    pub(super) fn apply(&mut self, kernel: &Kernel, snapshot: &Snapshot, seed: u64) -> Result<bool, ServicesError> {
        let shield = &kernel.shield;
        if policies(&snapshot.model).next().is_some() && shield.buckets() < source_buckets(snapshot) {
            return Ok(false);
        }
        let common = self.shared_prefixes(snapshot);
        let mut settings = self.settings;
        if common != self.shared {
            let nodes: Vec<Node> = common.build();
            if nodes.len() > shield.max_shared_nodes() as usize {
                return Ok(false);
            }
            let first = shield.write_shared_prefixes(&nodes, self.shared_start());
            settings.shared_prefixes = first.map_err(map_error("prefixes"))?;
        } else if settings.generation == 0 {
            settings.shared_prefixes = NO_TABLE;
        }
        let wanted = self.desired(snapshot)?;
        for (number, guard) in &wanted.guards {
            if self.written.get(number) != Some(guard) {
                shield.set_guard(*number, guard).map_err(map_error("a guard"))?;
            }
        }
        self.written = wanted.guards;
        for (number, source) in &wanted.own {
            if self.own.get(number) != Some(source) {
                shield
                    .swap_own(*number, &source.build())
                    .map_err(map_error("prefixes of a guard"))?;
            }
        }
        for number in self.own.keys().filter(|number| !wanted.own.contains_key(number)) {
            shield
                .swap_own(*number, &[])
                .map_err(map_error("prefixes of a guard"))?;
        }
        self.own = wanted.own;
        let moved = wanted.targets != self.targets || wanted.prefixed != self.prefixed;
        let target = map_error("what is guarded");
        for (at, guard) in &wanted.targets {
            if self.targets.get(at) != Some(guard) {
                shield.set_target(at, Some(*guard)).map_err(&target)?;
            }
        }
        for ((bits, at), guard) in &wanted.prefixed {
            if self.prefixed.get(&(*bits, *at)) != Some(guard) {
                shield.set_prefixed(*bits, at, Some(*guard)).map_err(&target)?;
            }
        }
        for at in self.targets.keys().filter(|at| !wanted.targets.contains_key(at)) {
            shield.set_target(at, None).map_err(&target)?;
        }
        for key in self.prefixed.keys().filter(|key| !wanted.prefixed.contains_key(key)) {
            shield.set_prefixed(key.0, &key.1, None).map_err(&target)?;
        }
        (self.targets, self.prefixed) = (wanted.targets, wanted.prefixed);
        settings.seed = seed;
        settings.buckets = source_buckets(snapshot).min(shield.buckets());
        settings.drop_unparsable = u32::from(policies(&snapshot.model).any(|(_, _, policy)| policy.malformed));
        if moved || settings.generation == 0 {
            settings.generation = settings.generation.wrapping_add(1).max(1);
        }
        if settings != self.settings {
            shield
                .set_settings(&settings)
                .map_err(map_error("the shield's settings"))?;
            self.settings = settings;
        }
        // Stored only now, when the maps have it: after an earlier failure it is written again.
        self.shared = common;
        for (word, bits) in changed(&self.wildcard_ports, &wanted.wildcard_ports) {
            shield
                .set_wildcard_ports(word, bits)
                .map_err(map_error("guarded ports"))?;
        }
        for (word, bits) in changed(&self.ports, &wanted.ports) {
            shield.set_ports(word, bits).map_err(map_error("guarded ports"))?;
        }
        self.wildcard_ports = wanted.wildcard_ports;
        self.ports = wanted.ports;
        Ok(true)
    }

    /// Returns the table of common prefixes that the programs currently read.
    const fn shared_start(&self) -> u32 {
        if self.settings.generation == 0 {
            NO_TABLE
        } else {
            self.settings.shared_prefixes
        }
    }

    fn desired(&mut self, snapshot: &Snapshot) -> Result<DesiredGuards, ServicesError> {
        let model = &snapshot.model;
        let mut wanted = DesiredGuards::default();
        let named: HashSet<GuardKey> = policies(model).map(|(kind, name, _)| (kind, name.clone())).collect();
        for listener in &model.listeners {
            // A listener without a guard gets an explicit entry: otherwise a shorter prefix of another listener would
            // guard it.
            let number = match &listener.shield {
                Some(policy) => {
                    let number = self.number(GuardKind::Listener, &listener.name, &named)?;
                    self.add_guard(&mut wanted, number, policy, snapshot, &listener.name, 0);
                    number
                }
                None if named.is_empty() => continue,
                None => NO_GUARD,
            };
            for bind in &listener.listen {
                if let Some(at) = bind.single() {
                    wanted
                        .targets
                        .insert(Target::new(to_words(at.ip()), at.port(), TCP), number);
                } else {
                    let v4 = bind.prefix.addr().is_ipv4();
                    let (family, bits) = if v4 { (4, 96) } else { (6, 0) };
                    let place = SteerKey::new(bind.port, family, ipv4_mapped(bind.prefix.network()));
                    wanted
                        .prefixed
                        .insert((bits + u32::from(bind.prefix.prefix_len()), place), number);
                }
                if number != NO_GUARD {
                    add_port(&mut wanted.ports, bind.port, TCP);
                    if bind.single().is_none() {
                        add_port(&mut wanted.wildcard_ports, bind.port, TCP);
                    }
                }
            }
        }
        for service in &model.services {
            let number = match &service.shield {
                Some(policy) => {
                    let number = self.number(GuardKind::Service, &service.name, &named)?;
                    self.add_guard(&mut wanted, number, policy, snapshot, &service.name, flag::SERVICE);
                    number
                }
                None if named.is_empty() => continue,
                None => NO_GUARD,
            };
            let protocol = service.protocol.number();
            for bind in &service.listen {
                for port in bind.ports.clone() {
                    wanted
                        .targets
                        .insert(Target::new(to_words(bind.address), port, protocol), number);
                    if number != NO_GUARD {
                        add_port(&mut wanted.ports, port, protocol);
                    }
                }
            }
        }
        Ok(wanted)
    }

    fn add_guard(
        &self,
        wanted: &mut DesiredGuards,
        number: u32,
        policy: &ShieldPolicy,
        snapshot: &Snapshot,
        name: &str,
        flags: u32,
    ) {
        let source = PrefixSet::new(&policy.lists, snapshot.shield.get(configured_name(name)), &self.files);
        let mut guard = guard(policy, flags);
        if source != PrefixSet::default() {
            guard.flags |= flag::PREFIXES;
            wanted.own.insert(number, source);
        }
        wanted.guards.insert(number, guard);
    }

    /// Returns a guard's number. It stays the same for the life of the process, unless more names than numbers have
    /// been seen.
    fn number(&mut self, kind: GuardKind, name: &str, named: &HashSet<GuardKey>) -> Result<u32, ServicesError> {
        let who = (kind, name.to_owned());
        if let Some(number) = self.numbers.get(&who) {
            return Ok(*number);
        }
        if self.numbers.len() >= MAX_GUARDS as usize {
            self.numbers.retain(|who, _| named.contains(who));
        }
        let taken: HashSet<u32> = self.numbers.values().copied().collect();
        let free = (0..MAX_GUARDS)
            .find(|number| !taken.contains(number))
            .ok_or(ServicesError::TooManyGuards)?;
        self.numbers.insert(who, free);
        Ok(free)
    }

    /// Makes the programs check again whether destinations are this machine's own, if that matters: addresses change.
    pub(super) fn recheck_local(&mut self, kernel: &Kernel) {
        if self.prefixed.is_empty() || self.settings.generation == 0 {
            return;
        }
        let mut settings = self.settings;
        settings.generation = settings.generation.wrapping_add(1).max(1);
        if kernel.shield.set_settings(&settings).is_ok() {
            self.settings = settings;
        }
    }

    /// Returns kind, name and number of the configured guards.
    pub(super) fn named(&self, model: &Model) -> Vec<(GuardKind, String, u32)> {
        let all = policies(model);
        all.filter_map(|(kind, name, _)| {
            let who = (kind, name.clone());
            let number = *self.numbers.get(&who)?;
            Some((kind, who.1, number))
        })
        .collect()
    }

    pub(super) fn guard(&self, number: u32) -> Option<Guard> {
        self.written.get(&number).copied()
    }

    pub(super) fn sources(&self) -> (PrefixSet, HashMap<u32, PrefixSet>) {
        (self.shared.clone(), self.own.clone())
    }

    pub(super) const fn settings(&self) -> Settings {
        self.settings
    }

    pub(super) fn file_errors(&self) -> Vec<String> {
        self.files.errors()
    }
}

/// Returns the number of cells for sources. A cell has room for four.
fn source_buckets(snapshot: &Snapshot) -> u32 {
    snapshot.model.shield.sources.div_ceil(4)
}

/// Returns the words of a bit map that differ, with their new values.
fn changed(before: &BTreeMap<u32, u64>, after: &BTreeMap<u32, u64>) -> Vec<(u32, u64)> {
    let words: BTreeSet<u32> = before.keys().chain(after.keys()).copied().collect();
    let bits = |of: &BTreeMap<u32, u64>, word| of.get(&word).copied().unwrap_or(0);
    let all = words.into_iter().map(|word| (word, bits(after, word)));
    all.filter(|(word, now)| bits(before, *word) != *now).collect()
}

fn add_port(ports: &mut BTreeMap<u32, u64>, port: u16, protocol: u8) {
    let at = PortBit::new(port, protocol);
    *ports.entry(at.word).or_default() |= 1 << at.bit;
}

fn guard(policy: &ShieldPolicy, flags: u32) -> Guard {
    let limits = &policy.limits;
    let limit = |rate: Option<RateLimit>| rate.map_or_else(Limit::default, |rate| Limit::new(rate.rate, rate.burst));
    let on = |is_on: bool, flag: u32| if is_on { flag } else { 0 };
    Guard {
        flags: flags
            | on(policy.malformed, flag::MALFORMED)
            | on(policy.syn_cookies && flags & flag::SERVICE == 0, flag::COOKIES)
            | on(limits.packets.is_some() || limits.bytes.is_some(), flag::RATES),
        concurrent: limits.concurrent,
        syn_threshold: MIN_SYNS_PER_SECOND,
        mask_v4: mask_v4(limits.ipv4_prefix),
        mask_v6: mask_v6(limits.ipv6_prefix),
        limits: [limit(limits.connections), limit(limits.packets), limit(limits.bytes)],
    }
}
