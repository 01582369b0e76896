//! Packet filters of this machine that may decide on connections: nftables (which iptables-nft writes too), the older
//! iptables, and IPVS. Their rules are read when they have changed.

mod chains;
mod program;
mod read;
pub mod schedule;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use signalbox_core::firewall::FilterRuleset;
use signalbox_core::firewall::ipvs::virtual_services;

use crate::interfaces;
use chains::ChainKey;
use schedule::{RulesState, Schedule, Step};

/// Where the module is shown once it is loaded.
const NFTABLES_MODULE: &str = "/sys/module/nf_tables";

/// Files with the names of the older iptables' tables, for IPv4 and for IPv6.
const LEGACY_TABLES: [&str; 2] = [
    "/proc/thread-self/net/ip_tables_names",
    "/proc/thread-self/net/ip6_tables_names",
];

/// Virtual services of IPVS.
const VIRTUAL_SERVICES: &str = "/proc/thread-self/net/ip_vs";

/// Why changed rules are not known.
const NOT_READ: &str = "rules have changed, or may have, and have not been read yet";

/// All rules, or why they are not known.
pub type KnownRules = Result<Arc<FilterRuleset>, String>;

/// Packet filters of the network namespace, and what has been read of them.
#[derive(Debug, Default)]
pub struct PacketFilter {
    /// The kernel has reported that it has no nftables: if that changes, a module was loaded.
    lacks_nftables: bool,
    /// Generation of nftables with which `chains` were asked for.
    generation: Option<u32>,
    chains: BTreeSet<ChainKey>,
    read: Option<Rules>,
    schedule: Schedule,
    /// Why the last attempt failed.
    failure: Option<String>,
}

/// Rules that have been read.
#[derive(Debug)]
struct Rules {
    ruleset: Arc<FilterRuleset>,
    generation: Option<u32>,
    chains: BTreeSet<ChainKey>,
    legacy: [String; 2],
    /// Names of interfaces by index: nftables keeps indexes, and has shown these names instead.
    interfaces: BTreeMap<u32, String>,
    /// Fingerprint of what has to be polled; `None`: nothing.
    polled: Option<u64>,
}

impl PacketFilter {
    /// Returns whether rules apply to packets that this machine receives or sends for itself: forwarded packets do not
    /// count. Needs CAP_NET_ADMIN, and fails for an ordinary user where the older iptables is loaded: the names of its
    /// tables are root's.
    pub fn has_rules(&mut self) -> io::Result<bool> {
        let legacy = legacy_tables()?;
        self.follow_chains()?;
        Ok(!self.chains.is_empty() || legacy.iter().any(|names| !names.is_empty()))
    }

    /// Returns all rules. Runs programs if rules have changed, which may take long. Until changed rules are read, the
    /// former ones are returned for two seconds, unless a base chain is new or has a new policy.
    pub fn look(&mut self) -> KnownRules {
        let legacy = legacy_tables().map_err(|error| format!("the tables of iptables cannot be listed: {error}"))?;
        self.follow_chains()
            .map_err(|error| format!("the kernel does not list chains: {error}"))?;
        let services = known_file(VIRTUAL_SERVICES).map_err(|error| format!("IPVS is not known: {error}"))?;
        let services = virtual_services(&services);
        if self.chains.is_empty() && legacy.iter().all(String::is_empty) {
            self.read = Some(Rules {
                ruleset: self
                    .read
                    .take()
                    .map(|read| read.ruleset)
                    .filter(|known| known.tables.is_empty())
                    .unwrap_or_default(),
                generation: self.generation,
                chains: BTreeSet::new(),
                legacy: legacy.clone(),
                interfaces: BTreeMap::new(),
                polled: None,
            });
        }
        let mut step = self.schedule.step(Instant::now(), self.state(&legacy));
        if step == Step::Read {
            self.read_now(legacy.clone());
            // Rules that take long to read may have changed before they can be read again.
            step = self.schedule.step(Instant::now(), self.state(&legacy));
        }
        if step == Step::Distrust {
            return Err(NOT_READ.to_owned());
        }
        let Some(read) = &mut self.read else {
            let failure = self.failure.clone();
            return Err(failure.unwrap_or_else(|| "the rules have not been read yet".to_owned()));
        };
        if !self.chains.is_subset(&read.chains) || read.legacy != legacy {
            return Err("a chain or a table is new, and its rules have not been read yet".to_owned());
        }
        if read.ruleset.virtual_services != services {
            Arc::make_mut(&mut read.ruleset).virtual_services = services;
        }
        Ok(Arc::clone(&read.ruleset))
    }

    /// Counts time that was spent with the rules elsewhere, for the pause before they are read again.
    pub fn charge(&mut self, spent: Duration) {
        self.schedule.charge(spent);
    }

    /// Asks for the chains again, if rules have changed.
    fn follow_chains(&mut self) -> io::Result<()> {
        // Asking for nftables where it is not loaded has the kernel start modprobe.
        let has_none = || self.lacks_nftables && !std::path::Path::new(NFTABLES_MODULE).exists();
        if !has_netfilter_sockets() || has_none() {
            (self.generation, self.chains) = (None, BTreeSet::new());
            return Ok(());
        }
        let generation = match chains::generation() {
            // This kernel has no nftables.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPROTONOSUPPORT | libc::EINVAL)) => {
                self.lacks_nftables = true;
                (self.generation, self.chains) = (None, BTreeSet::new());
                return Ok(());
            }
            answer => answer?,
        };
        if self.generation != Some(generation) {
            self.chains = chains::in_the_way()?;
            self.generation = Some(generation);
        }
        Ok(())
    }

    /// Returns what is known of the rules that have been read.
    fn state(&self, legacy: &[String; 2]) -> RulesState {
        match &self.read {
            None => RulesState::Missing {
                has_failed: self.failure.is_some(),
            },
            Some(read) if read.generation != self.generation || read.legacy != *legacy => RulesState::Changed,
            Some(read) if read.has_renamed() => RulesState::Changed,
            Some(read) if read.polled.is_some() => RulesState::Polled,
            Some(_) => RulesState::Same,
        }
    }

    fn read_now(&mut self, legacy: [String; 2]) {
        let (begun, before) = (Instant::now(), cpu_time());
        let is_same = |read: &Rules| {
            read.generation == self.generation
                && read.legacy == legacy
                && !read.has_renamed()
                && read
                    .polled
                    .is_some_and(|known| read::polled(&legacy).is_ok_and(|now| now.fingerprint() == known))
        };
        if !self.read.as_ref().is_some_and(is_same) {
            let interfaces = interfaces::names_by_index();
            let found = read::all(self.generation.is_some(), &legacy);
            self.failure = found.as_ref().err().cloned();
            self.read = found.ok().map(|(ruleset, polled)| Rules {
                ruleset: Arc::new(ruleset),
                generation: self.generation,
                chains: self.chains.clone(),
                legacy,
                interfaces,
                polled,
            });
        }
        let cost = cpu_time().saturating_sub(before);
        self.schedule.has_read(begun, Instant::now(), cost);
    }
}

impl Rules {
    /// Whether an interface has another name than when the rules were read.
    fn has_renamed(&self) -> bool {
        let now = interfaces::names_by_index();
        let is_renamed = |(index, name): (&u32, &String)| now.get(index).is_some_and(|now| now != name);
        self.interfaces.iter().any(is_renamed)
    }
}

/// Names of the older iptables' tables.
fn legacy_tables() -> io::Result<[String; 2]> {
    let mut found = [const { String::new() }; 2];
    for (path, names) in LEGACY_TABLES.iter().zip(&mut found) {
        *names = known_file(path)?.trim().to_owned();
    }
    Ok(found)
}

/// Text of a file, which is empty where the kernel has none.
fn known_file(path: &str) -> io::Result<String> {
    match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        answer => answer,
    }
}

/// Whether the kernel has its side of netfilter's netlink protocol: without it there is no nftables.
fn has_netfilter_sockets() -> bool {
    let Ok(sockets) = std::fs::read_to_string("/proc/thread-self/net/netlink") else {
        return true;
    };
    let protocol = |line: &str| line.split_whitespace().nth(1)?.parse::<isize>().ok();
    sockets.lines().any(|line| protocol(line) == Some(NETLINK_NETFILTER))
}

/// CPU time of this thread and of all programs that have ended.
fn cpu_time() -> Duration {
    let of = |who| {
        let usage = getrusage(who).ok()?;
        let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        Some(Duration::from_micros(micros.try_into().ok()?))
    };
    [UsageWho::RUSAGE_THREAD, UsageWho::RUSAGE_CHILDREN]
        .into_iter()
        .filter_map(of)
        .sum()
}
