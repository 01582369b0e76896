//! Probes of migrations: each name that moves is asked for through hosts of both clusters, before the first step, and in
//! rounds until the end.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use signalbox_core::availability::migration::probe::{
    NameAnswer, NameVerdict, ProbePlan, ProbeRound, compare, is_of_host_in_trouble,
};
use signalbox_core::availability::migration::{Migration, MigrationPlan};
use signalbox_core::model::tls::{InsecurePolicy, Termination};
use signalbox_core::model::{Model, Protocol, Route};
use signalbox_core::wire::hostname::{Hostname, HostnamePattern};
use signalbox_tls::probe::ProbeConnector;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Control;
use super::health::{NameProber, ProbeTls};
use crate::state::Snapshot;

/// Names that are asked for at once.
const MAX_AT_ONCE: usize = 32;

/// Further tries after a worse answer: only one that stays worse counts, because applications have faults now and then.
const MAX_CONFIRMATIONS: usize = 2;
/// Time before each such try; longer where the host may be in trouble, so that a health check takes it out first.
const CONFIRM_INTERVAL: Duration = Duration::from_secs(1);
/// See [`CONFIRM_INTERVAL`].
const TROUBLE_INTERVAL: Duration = Duration::from_secs(4);

/// Interval at which migrations are examined: for rounds that are due, and for ones that are over.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Way on which clients' requests for a name reach its hosts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain {
        /// Whether the client's TLS ends at the balancer.
        is_tls_ended: bool,
    },
    Passthrough,
    Reencrypt,
}

impl Way {
    const fn protocol(self) -> Protocol {
        match self {
            Self::Plain { .. } => Protocol::Http,
            Self::Passthrough | Self::Reencrypt => Protocol::Tls,
        }
    }

    const fn by(self) -> &'static str {
        match self {
            Self::Plain { .. } => "HTTP",
            Self::Passthrough | Self::Reencrypt => "TLS",
        }
    }
}

/// Ways to the hosts of a route for a path, by the listeners that there are.
fn ways(model: &Model, route: &Route, path: &str) -> Vec<Way> {
    let plain = Way::Plain { is_tls_ended: false };
    let mut ways = Vec::new();
    for listener in &model.listeners {
        let way = match (listener.protocol, listener.termination(Some(route))) {
            (Protocol::Tls, Termination::Passthrough) => Way::Passthrough,
            (Protocol::Tls, Termination::Reencrypt) => Way::Reencrypt,
            (Protocol::Tls, Termination::Edge) => Way::Plain { is_tls_ended: true },
            (Protocol::Http, _) if route.insecure(path.as_bytes()) == InsecurePolicy::Allow => plain,
            _ => continue,
        };
        if !ways.contains(&way) {
            ways.push(way);
        }
    }
    ways
}

/// A host of a cluster that takes connections now.
#[derive(Clone, PartialEq, Eq)]
struct AskedHost {
    name: String,
    target: SocketAddr,
    sends_header: bool,
}

/// Hosts of a cluster that take connections of a protocol now.
fn hosts_of(snapshot: &Snapshot, cluster: &str, protocol: Protocol) -> Vec<AskedHost> {
    let mut clusters = snapshot.model.clusters.iter().enumerate();
    let Some((at, configured)) = clusters.find(|(_, known)| known.name == cluster) else {
        return Vec::new();
    };
    let asked = |(host, _): &(u16, u32)| {
        let host = configured.hosts.get(usize::from(*host))?;
        Some(AskedHost {
            name: host.name.clone(),
            target: SocketAddr::new(host.address, host.port(protocol)?),
            sends_header: configured.proxy_protocol.is_some(),
        })
    };
    snapshot.view.usable(at, protocol).iter().filter_map(asked).collect()
}

/// A round over the names of a migration.
struct ProbeTask {
    control: Control,
    plan: MigrationPlan,
    probe: ProbePlan,
    connector: Option<ProbeConnector>,
    /// Turn by which one host is asked for each name; `None`: all hosts of the new cluster are.
    turn: Option<usize>,
}

impl ProbeTask {
    fn snapshot(&self) -> Arc<Snapshot> {
        self.control.shared.snapshot.load_full()
    }

    /// Asks for one name. The verdicts come with the hosts that they are about.
    async fn ask(&self, at: usize, name: &str) -> Vec<(String, NameVerdict)> {
        let unknown = |why: &str| vec![(self.plan.to.clone(), NameVerdict::Unknown(why.to_owned()))];
        let (Ok(hostname), Ok(pattern)) = (Hostname::parse(name.as_bytes()), HostnamePattern::parse(name)) else {
            return unknown("a wildcard has no name to ask for");
        };
        let snapshot = self.snapshot();
        let model = &snapshot.model;
        let route = model.routes.iter().find(|route| route.hostname == pattern);
        let is_of_new =
            |(cluster, _): &(usize, u32)| model.clusters.get(*cluster).is_some_and(|c| c.name == self.plan.to);
        let serves = |route: &&Route| !route.is_discovered() || route.clusters.iter().any(is_of_new);
        let Some(route) = route.filter(serves) else {
            return unknown("it is not served any more");
        };
        let ways = ways(model, route, &self.probe.path);
        if ways.is_empty() {
            return unknown("no listener takes requests for it");
        }
        drop(snapshot);
        let mut verdicts = Vec::new();
        for way in ways {
            verdicts.extend(self.ask_by(way, at, &hostname).await);
        }
        verdicts
    }

    async fn ask_by(&self, way: Way, at: usize, name: &Hostname) -> Vec<(String, NameVerdict)> {
        let by = way.by();
        let of_cluster = |verdict| vec![(format!("{} ({by})", self.plan.to), verdict)];
        if way.protocol() == Protocol::Http
            && [&self.plan.from, &self.plan.to]
                .into_iter()
                .any(|of| self.speaks_h2c(of))
        {
            return of_cluster(NameVerdict::Unknown("hosts with h2c are not asked".to_owned()));
        }
        let mut tries = 0;
        let new = loop {
            let [old, new] = [&self.plan.from, &self.plan.to].map(|cluster| self.hosts(cluster, way));
            if old.is_empty() {
                return of_cluster(self.nothing_to_compare());
            }
            if !new.is_empty() {
                break new;
            }
            if tries == MAX_CONFIRMATIONS {
                return of_cluster(NameVerdict::Worse(format!(
                    "no host takes {by}, unlike in the old cluster"
                )));
            }
            tries += 1;
            sleep(TROUBLE_INTERVAL).await;
        };
        let one = self.turn.map(|turn| turn.wrapping_add(at) % new.len());
        let mut verdicts = Vec::new();
        for (place, host) in new.iter().enumerate() {
            if one.is_none_or(|one| one == place) {
                let verdict = self.judge(way, name, at, host).await;
                let lacks =
                    || NameVerdict::Unasked("this machine lacks descriptors, ports or settings of TLS".to_owned());
                verdicts.push((format!("{} ({by})", host.name), verdict.unwrap_or_else(lacks)));
            }
        }
        verdicts
    }

    /// Judges a name by a host of the new cluster. `None`: this machine cannot ask.
    async fn judge(&self, way: Way, name: &Hostname, at: usize, host: &AskedHost) -> Option<NameVerdict> {
        let mut tries = 0;
        let (verdict, is_in_trouble) = loop {
            let (verdict, is_in_trouble) = self.compare(way, name, at, host).await?;
            if !matches!(verdict, NameVerdict::Worse(_)) {
                return Some(verdict);
            }
            if tries == MAX_CONFIRMATIONS {
                break (verdict, is_in_trouble);
            }
            tries += 1;
            sleep(if is_in_trouble {
                TROUBLE_INTERVAL
            } else {
                CONFIRM_INTERVAL
            })
            .await;
        };
        if !self.hosts(&self.plan.to, way).contains(host) {
            return Some(NameVerdict::Unknown("the host has left in the meantime".to_owned()));
        }
        // The first round has asked all hosts. In a later one, a host that has been in trouble since is not the name's fault.
        if !is_in_trouble || self.turn.is_none() {
            return Some(verdict);
        }
        for other in self.hosts(&self.plan.to, way).iter().filter(|other| *other != host) {
            let (of_other, _) = self.compare(way, name, at, other).await?;
            if !matches!(of_other, NameVerdict::Worse(_)) {
                let why = format!("the host is in trouble, and {} is not", other.name);
                return Some(NameVerdict::Unknown(why));
            }
            // A host that has left in the meantime says nothing about the name: the next one is asked.
            if self.hosts(&self.plan.to, way).contains(other) {
                break;
            }
        }
        Some(verdict)
    }

    /// Compares the answers of a host of each cluster. Returns also whether the new host may be in trouble. `None`: this
    /// machine cannot ask.
    async fn compare(&self, way: Way, name: &Hostname, at: usize, new: &AskedHost) -> Option<(NameVerdict, bool)> {
        let old = self.hosts(&self.plan.from, way);
        let Some(old) = old.get(self.turn.unwrap_or(0).wrapping_add(at) % old.len().max(1)) else {
            return Some((self.nothing_to_compare(), false));
        };
        let was = self.answer(way, name, &self.plan.from, old).await?;
        let is = self.answer(way, name, &self.plan.to, new).await?;
        Some((compare(&was, &is), is_of_host_in_trouble(&was, &is)))
    }

    async fn answer(&self, way: Way, name: &Hostname, cluster: &str, host: &AskedHost) -> Option<NameAnswer> {
        let snapshot = self.snapshot();
        let tls = match way {
            Way::Plain { .. } => None,
            Way::Passthrough => Some(ProbeTls::Client(self.connector.as_ref()?)),
            Way::Reencrypt => Some(ProbeTls::Balancer(snapshot.tls.hosts(cluster)?)),
        };
        self.control.migrations.pace().turn().await;
        let prober = NameProber {
            target: host.target,
            tls,
            is_tls_ended: matches!(way, Way::Plain { is_tls_ended: true } | Way::Reencrypt),
            sends_header: host.sends_header,
        };
        let limit = Duration::from_millis(self.probe.timeout_ms);
        prober.ask(name, &self.probe.path, limit).await
    }

    fn hosts(&self, cluster: &str, way: Way) -> Vec<AskedHost> {
        hosts_of(&self.snapshot(), cluster, way.protocol())
    }

    fn speaks_h2c(&self, name: &str) -> bool {
        let snapshot = self.snapshot();
        let mut clusters = snapshot.model.clusters.iter();
        clusters.any(|cluster| cluster.name == name && cluster.h2c)
    }

    fn nothing_to_compare(&self) -> NameVerdict {
        NameVerdict::Unknown(format!("{} has no host to compare with", self.plan.from))
    }
}

impl Control {
    /// Begins the rounds that are due. Never returns.
    pub async fn run_probes(self) {
        loop {
            for known in self.migrations.running() {
                let migration = known.migration;
                let Some(plan) = migration.plan.probe.clone().filter(|_| self.goes_on(migration.id)) else {
                    continue;
                };
                let Some(round) = known.probes.begin(&plan, migration.plan.hold_ms) else {
                    continue;
                };
                // The first round asks all hosts: nobody has seen them serve the names.
                let turn = (!migration.awaits_probes()).then_some(round.number as usize);
                let control = self.clone();
                tokio::spawn(async move {
                    let stops_early = turn.is_some() || !migration.plan.leaves_out;
                    let goes_on = || control.goes_on(migration.id);
                    let names = control.probe_names(&migration, plan, turn, (stops_early, &goes_on), || round.count());
                    if let Some(results) = names.await {
                        let number = round.number;
                        round.end(ProbeRound { number, ..results });
                    }
                });
            }
            sleep(LOOK_INTERVAL).await;
        }
    }

    /// Whether this process still moves the names of a migration.
    fn goes_on(&self, id: u64) -> bool {
        self.migrations.is_moving(id) && !self.shared.life.is_being_replaced.load(Relaxed)
    }

    /// Makes one round over all hosts and names of a migration that is only tried. An error: another trial is being made.
    pub(super) async fn probe_once(&self, migration: &Migration) -> Result<Option<ProbeRound>, String> {
        let Some(plan) = migration.plan.probe.clone() else {
            return Ok(None);
        };
        let Ok(_place) = self.migrations.pace().trials.try_acquire() else {
            return Err("another dry run asks for its names: try again when it has ended".to_owned());
        };
        let until_end = (!migration.plan.leaves_out, &(|| true) as &(dyn Fn() -> bool + Sync));
        Ok(self.probe_names(migration, plan, None, until_end, || ()).await)
    }

    /// Asks for all names of a migration. `None`: it has ended meanwhile.
    async fn probe_names(
        &self,
        migration: &Migration,
        probe: ProbePlan,
        turn: Option<usize>,
        (stops_early, goes_on): (bool, &(dyn Fn() -> bool + Sync)),
        count: impl Fn(),
    ) -> Option<ProbeRound> {
        // The connector reads trusted authorities from files, which would block.
        let connector = tokio::task::spawn_blocking(ProbeConnector::new).await.ok()?.ok();
        let task = Arc::new(ProbeTask {
            control: self.clone(),
            plan: migration.plan.clone(),
            probe,
            connector,
            turn,
        });
        let room = Arc::new(Semaphore::new(MAX_AT_ONCE));
        let (mut asked, mut names) = (JoinSet::new(), HashMap::new());
        for (at, name) in migration.names.keys().enumerate() {
            let (task, room, of) = (Arc::clone(&task), Arc::clone(&room), name.clone());
            let handle = asked.spawn(async move {
                let _place = room.acquire().await;
                task.ask(at, &of).await
            });
            names.insert(handle.id(), name);
        }
        let mut round = ProbeRound::default();
        while goes_on() {
            match timeout(LOOK_INTERVAL, asked.join_next_with_id()).await {
                Err(_) => {}
                Ok(None) => return Some(round),
                Ok(Some(Ok((id, verdicts)))) => {
                    count();
                    let Some(name) = names.get(&id) else { continue };
                    for (host, verdict) in verdicts {
                        round.add(name, &host, verdict);
                    }
                    if stops_early && !round.worse.is_empty() {
                        return Some(round);
                    }
                }
                Ok(Some(Err(failed))) => {
                    let Some(name) = names.get(&failed.id()) else { continue };
                    round.add(name, &migration.plan.to, NameVerdict::Unasked(failed.to_string()));
                }
            }
        }
        None
    }
}
