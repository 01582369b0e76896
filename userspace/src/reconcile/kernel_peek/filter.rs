//! Rules of packet filters, judged for the listeners with `peek: auto`, as rules and connections change.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak, mpsc};
use std::time::{Duration, Instant};

use signalbox_core::availability::ha::floating::FloatingSources;
use signalbox_core::firewall::{FilterRuleset, FilterVerdict, HostWay, IpFamily, ListenerFacts, judge};
use signalbox_core::model::{Listener, Model, PeekPlace};
use signalbox_core::routing::obstacle::PeekObstacle;

use crate::datapath::cut::{program_ports, source_address};
use crate::kernel::conntrack::{self, Conntrack};
use crate::kernel::interfaces;
use crate::kernel::netlink::Netlink;
use crate::kernel::packet_filter::PacketFilter;
use crate::kernel::packet_filter::schedule::{RulesState, Schedule, Step};
use crate::state::Shared;
use crate::state::filter_verdicts::{FamilyVerdict, FilterVerdicts, ListenerVerdict, NOT_JUDGED};

/// Interval at which it is asked whether rules have changed.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Time for which the ways to hosts are taken as known.
const WAYS_TTL: Duration = Duration::from_secs(5);

/// Why there is no verdict at the moment.
const NOT_JUDGED_AGAIN: &str = "rules, hosts or addresses have changed, and have not been judged yet";

/// Address from which a host is reached, and the interface.
type HostPath = (IpAddr, String);

/// Ways to hosts, and since when they are known.
#[derive(Default)]
struct HostWays {
    since: Option<Instant>,
    paths: HashMap<IpAddr, HostPath>,
    /// Names of the interfaces that others belong to, by those of the others.
    masters: HashMap<String, String>,
}

impl HostWays {
    /// Returns interfaces, and the VRFs, bridges and bonds that they belong to: rules may see these instead.
    fn with_masters(&self, names: &[String]) -> Vec<String> {
        let masters = names.iter().filter_map(|name| self.masters.get(name));
        let mut all: Vec<String> = names.iter().chain(masters).cloned().collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// Rules with the verdicts on them.
#[derive(Default)]
pub struct FilterWatch {
    filter: PacketFilter,
    judged: Option<(Arc<FilterRuleset>, BTreeMap<String, ListenerFacts>, FilterVerdicts)>,
    ways: HostWays,
    /// When rules are judged again.
    schedule: Schedule,
}

impl FilterWatch {
    /// Returns the current verdicts. `carriers`: interfaces by which clients come.
    pub fn look(&mut self, model: &Model, carriers: &[String]) -> FilterVerdicts {
        let ruleset = match self.filter.look() {
            Ok(ruleset) => ruleset,
            Err(why) => return FilterVerdicts::Unknown(why),
        };
        if ruleset.tables.is_empty() && ruleset.virtual_services.is_empty() {
            return FilterVerdicts::NoRules;
        }
        if conntrack::is_loaded()
            && let Err(error) = Conntrack::open().and_then(|mut conntrack| conntrack.check())
        {
            return FilterVerdicts::Unknown(format!("connection tracking takes no entries: {error}"));
        }
        let facts = match self.facts(model, carriers) {
            Ok(facts) => facts,
            Err(error) => return FilterVerdicts::Unknown(format!("interfaces are not known: {error}")),
        };
        let begun = Instant::now();
        let state = match &self.judged {
            None => RulesState::Missing { has_failed: false },
            Some((of, known, _)) if Arc::ptr_eq(of, &ruleset) && *known == facts => RulesState::Same,
            Some(_) => RulesState::Changed,
        };
        match (self.schedule.step(begun, state), &self.judged) {
            (Step::Distrust, _) => return FilterVerdicts::Unknown(NOT_JUDGED_AGAIN.to_owned()),
            (Step::Keep, Some((of, _, verdicts))) if Arc::ptr_eq(of, &ruleset) => return verdicts.clone(),
            _ => {}
        }
        let judged = facts
            .iter()
            .map(|(name, facts)| (name.clone(), verdict(&ruleset, facts)));
        let verdicts = FilterVerdicts::Judged(judged.collect());
        let ended = Instant::now();
        self.filter.charge(ended - begun);
        self.schedule.has_read(begun, ended, ended - begun);
        self.judged = Some((ruleset, facts, verdicts.clone()));
        verdicts
    }

    /// Facts of each listener with `peek: auto`. All clusters' hosts count for each of them.
    fn facts(&mut self, model: &Model, carriers: &[String]) -> io::Result<BTreeMap<String, ListenerFacts>> {
        if self.ways.since.is_none_or(|since| since.elapsed() > WAYS_TTL) {
            self.ways = HostWays {
                since: Some(Instant::now()),
                paths: HashMap::new(),
                masters: interfaces::masters()?,
            };
        }
        let addresses = interfaces::named_addresses();
        // Their packets are judged before they come.
        let floating = FloatingSources::new(model.ha.as_ref());
        let all_addresses: Vec<_> = addresses
            .iter()
            .map(|(_, address)| *address)
            .chain(floating.vips())
            .filter(|address| !address.is_loopback())
            .collect();
        let moving: Vec<_> = floating.vips().chain(floating.sources()).collect();
        let (first, last) = program_ports().map_or((1024, u16::MAX), std::ops::RangeInclusive::into_inner);
        let mut of = |listener: &Listener| {
            let hosts = self.hosts(model, listener, &addresses, &moving);
            let interfaces = self.ways.with_masters(carriers);
            let mut names = interfaces.iter().chain(hosts.iter().flat_map(|host| &host.interfaces));
            ListenerFacts {
                binds: binds(listener, &all_addresses),
                has_masters: names.any(|name| self.ways.masters.contains_key(name)),
                hosts,
                interfaces,
                own_ports: (first, last),
            }
        };
        let listeners = model
            .listeners
            .iter()
            .filter(|listener| listener.datapath.peek == PeekPlace::Auto);
        Ok(listeners
            .map(|listener| (listener.name.clone(), of(listener)))
            .collect())
    }

    /// `addresses`: of this machine, with their interfaces; `moving`: those that move between nodes.
    fn hosts(
        &mut self,
        model: &Model,
        listener: &Listener,
        addresses: &[(String, IpAddr)],
        moving: &[IpAddr],
    ) -> Vec<HostWay> {
        let netlink = Netlink::open().ok();
        let mut found = Vec::new();
        for host in model.clusters.iter().flat_map(|cluster| &cluster.hosts) {
            let Some(port) = host.port(listener.protocol) else {
                continue;
            };
            let known = self.ways.paths.get(&host.address).cloned();
            // A host that is not reached gets no connections from the kernel.
            let Some(way) = known.or_else(|| way_to(netlink.as_ref()?, host.address)) else {
                continue;
            };
            self.ways.paths.insert(host.address, way.clone());
            let (source, interface) = way;
            let sources: Vec<IpAddr> = moving
                .iter()
                .copied()
                .filter(|address| address.is_ipv4() == host.address.is_ipv4())
                .chain([source])
                .collect();
            let of_interface = addresses.iter().filter(|(name, address)| {
                *name == interface && address.is_ipv4() == source.is_ipv4() && !is_link_local(*address)
            });
            found.push(HostWay {
                address: SocketAddr::new(host.address, port),
                has_sole_address: sources.len() == 1 && of_interface.count() == 1,
                sources,
                interfaces: self.ways.with_masters(&[interface]),
            });
        }
        found.sort();
        found.dedup();
        found
    }
}

fn verdict(ruleset: &FilterRuleset, facts: &ListenerFacts) -> ListenerVerdict {
    ListenerVerdict([IpFamily::V4, IpFamily::V6].map(|family| {
        let is_of = |bind: &SocketAddr| bind.is_ipv4() == (family == IpFamily::V4);
        if !facts.binds.iter().any(is_of) {
            return FamilyVerdict::Unused;
        }
        match judge(ruleset, facts, family) {
            FilterVerdict::Free => FamilyVerdict::Free,
            FilterVerdict::FreeExcept(left) => FamilyVerdict::FreeExcept(left.into()),
            FilterVerdict::Left(reason) => FamilyVerdict::Left(reason.to_string()),
        }
    }))
}

/// Addresses that a listener has, with its ports.
fn binds(listener: &Listener, addresses: &[IpAddr]) -> Vec<SocketAddr> {
    let mut found: Vec<_> = addresses
        .iter()
        .copied()
        .flat_map(|address| {
            let of = listener
                .listen
                .iter()
                .filter(move |bind| bind.prefix.contains(&address));
            of.map(move |bind| SocketAddr::new(address, bind.port))
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

const fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Source address and interface of connections to a host; `None` if they are not routed in the kernel.
fn way_to(netlink: &Netlink, host: IpAddr) -> Option<HostPath> {
    let way = netlink.route_get(host).ok().flatten().filter(|way| !way.is_local)?;
    Some((
        source_address::kernel_choice(host).ok()?,
        interfaces::name_of_index(way.ifindex)?,
    ))
}

/// Starts a thread that keeps the verdicts, and waits until it has looked once.
pub(super) fn start(shared: &Arc<Shared>, carriers: impl Fn() -> Vec<String> + Send + 'static) -> std::io::Result<()> {
    let (first, looked) = mpsc::sync_channel(1);
    let shared = Arc::downgrade(shared);
    std::thread::Builder::new()
        .name("packet-filter".into())
        .spawn(move || {
            let mut watch = FilterWatch::default();
            while look_once(&mut watch, &shared, &carriers).is_some() {
                // Nobody waits after the first time.
                let _ = first.try_send(());
                std::thread::sleep(LOOK_INTERVAL);
            }
        })?;
    // Until there are verdicts, connections are left to workers.
    let _ = looked.recv_timeout(super::START_TIMEOUT);
    Ok(())
}

/// Looks at the rules, if that matters. `None`: the process ends.
fn look_once(watch: &mut FilterWatch, shared: &Weak<Shared>, carriers: &impl Fn() -> Vec<String>) -> Option<()> {
    let shared = shared.upgrade()?;
    let tracks = conntrack::is_loaded() && watch.filter.has_rules().unwrap_or(true);
    shared.kernel.tracks_connections.store(tracks, Relaxed);
    let model = Arc::clone(&shared.snapshot.load().model);
    let is_auto = |listener: &Listener| listener.datapath.peek == PeekPlace::Auto;
    if !model.listeners.iter().any(is_auto) {
        return Some(());
    }
    let verdicts = watch.look(&model, &carriers());
    let known = shared.kernel.filter_verdicts.load();
    if **known != verdicts {
        let matters = |listener: &&Listener| PeekObstacle::of_configuration(listener).is_empty();
        for listener in model.listeners.iter().filter(matters) {
            tell(
                &listener.name,
                known.cause(&listener.name),
                verdicts.cause(&listener.name),
            );
            tell_ranges(&listener.name, &known, &verdicts);
        }
        shared.kernel.filter_verdicts.store(Arc::new(verdicts));
    }
    Some(())
}

/// Logs which clients of a listener are left to workers, if that has changed.
fn tell_ranges(listener: &str, before: &FilterVerdicts, now: &FilterVerdicts) {
    if before.left_of_each_family(listener) == now.left_of_each_family(listener) {
        return;
    }
    match now.left_ranges(listener) {
        Some((ranges, rule)) => tracing::info!(
            listener,
            ranges,
            rule,
            "Connections of some clients are left to userspace: a packet filter may do something to them."
        ),
        None if now.cause(listener).is_none() => {
            tracing::info!(
                listener,
                "No rule of a packet filter does anything to some clients alone."
            );
        }
        None => {}
    }
}

/// Logs what has changed for a listener as a whole.
fn tell(listener: &str, before: Option<&str>, now: Option<&str>) {
    match (before, now) {
        (before, Some(rule)) if before != now => tracing::info!(
            listener,
            rule,
            "Connections are left to userspace: a packet filter may do something to them."
        ),
        (Some(before), None) if before != NOT_JUDGED => {
            tracing::info!(listener, "No rule of a packet filter does anything to connections.");
        }
        _ => {}
    }
}
