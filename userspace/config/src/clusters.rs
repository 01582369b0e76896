//! Clusters, and the names by which the rest of the file knows them.

use std::cell::RefCell;
use std::collections::HashMap;

use signalbox_core::discovered::discovery::MAX_LIMIT;
use signalbox_core::discovered::spi::AppKey;
use signalbox_core::model::{
    Balance, Cluster, ClusterRole, DEFAULT_RESOLVE_INTERVAL, Ejection, HealthCheck, JoinPolicy, RoutingEvents,
};

use super::map::MapDecoder;
use super::node::{NodePath, NodeRef, Position};
use super::report::{Report, did_you_mean, quote};
use super::scalar::{optional_value, or_default};
use super::subset;
use super::unique::UniqueNames;
use super::{health, hosts, kubernetes, proxy, tls};

const MAX_CLUSTERS: usize = 65_535;

/// Most clusters that a message lists.
const MAX_LISTED_CLUSTERS: usize = 8;

const DEFAULT_EJECTION: Ejection = Ejection::DEFAULT;

/// Names of the clusters with their indices, including those of clusters with mistakes: a route to one of them is no
/// further mistake.
#[derive(Default)]
pub(super) struct ClusterNames {
    indices: HashMap<String, usize>,
    /// Names for suggestions, in the order of the file: a hash map's order would give a different one each time.
    in_order: Vec<String>,
    /// Whether some cluster's name has a mistake. An unknown name may refer to that cluster and is reported only once
    /// the first mistake is fixed.
    incomplete: bool,
    /// Number of clusters in the file.
    count: usize,
    /// Whether routing events may report applications, which can be named before they are reported.
    pub(super) has_applications: bool,
    /// Applications that the file names, in order of first mention. Their clusters come after the file's own.
    applications: RefCell<Vec<String>>,
}

impl ClusterNames {
    /// Index of the cluster with a name; reports an unknown one.
    pub(super) fn find(&self, name: &str, spot: Position, path: &NodePath<'_>, report: &mut Report) -> Option<usize> {
        if let Some(&index) = self.indices.get(name) {
            return Some(index);
        }
        if name.contains('/') {
            return self.application(name, spot, path, report);
        }
        if !self.incomplete {
            let guess = did_you_mean(report.suggest(name, self.in_order.iter().map(String::as_str)));
            let known = self.list();
            report.error(spot, path, format!("there is no cluster {}{guess}{known}", quote(name)));
        }
        None
    }

    /// Index of the cluster that `place` names.
    pub(super) fn find_at(&self, place: &NodeRef<'_>, report: &mut Report) -> Option<usize> {
        let name = place.text(report)?;
        self.find(name, place.position(), &place.path, report)
    }

    /// Index of an application's cluster, whether or not events have reported the application yet.
    fn application(&self, name: &str, spot: Position, path: &NodePath<'_>, report: &mut Report) -> Option<usize> {
        let shown = quote(name);
        if !self.has_applications {
            report.error(
                spot,
                path,
                format!("{shown} is an application's name, and only `routing_events` reports applications: add it"),
            );
            return None;
        }
        if AppKey::parse(name).is_none() {
            report.error(
                spot,
                path,
                format!(
                    "{shown} is not an application: write NAMESPACE/APP, each 1 to 63 letters, digits, `.`, `_` or `-`"
                ),
            );
            return None;
        }
        let mut known = self.applications.borrow_mut();
        let at = known.iter().position(|one| one == name).unwrap_or_else(|| {
            known.push(name.to_owned());
            known.len() - 1
        });
        Some(self.count + at)
    }

    /// Clusters of the applications that the file names. Routing events report their hosts.
    pub(super) fn into_applications(self, events: Option<&RoutingEvents>) -> Vec<Cluster> {
        let names = self.applications.into_inner();
        names.iter().map(|name| Cluster::application(name, events)).collect()
    }

    /// List of the clusters for a message, unless there are too many.
    fn list(&self) -> String {
        match self.in_order.len() {
            0 => " (there are none)".to_owned(),
            1..=MAX_LISTED_CLUSTERS => format!(" (known: {})", self.in_order.join(", ")),
            _ => String::new(),
        }
    }

    /// Notes a name as it is written; `right`: it is a valid one.
    fn record(&mut self, text: Option<&str>, right: bool, index: usize) {
        match text {
            // A second cluster of this name is reported elsewhere, and the name is known already.
            Some(name) if self.indices.contains_key(name) => {}
            Some(name) => {
                self.indices.insert(name.to_owned(), index);
                self.in_order.push(name.to_owned());
                self.incomplete |= !right;
            }
            None => self.incomplete = true,
        }
    }
}

/// A backup that `place` names, which must be another cluster than the one that it takes over from.
pub(super) fn as_backup(backup: usize, of: Option<usize>, place: &NodeRef<'_>, report: &mut Report) -> Option<usize> {
    if of == Some(backup) {
        place.error(report, "a cluster cannot be its own backup: name another cluster");
        return None;
    }
    Some(backup)
}

/// Decodes all clusters with their places; returns the names even where there are mistakes.
pub(super) fn decode_all(
    place: Option<&NodeRef<'_>>,
    report: &mut Report,
) -> (ClusterNames, Option<Vec<(Position, Cluster)>>) {
    let mut names = ClusterNames::default();
    let Some(items) = place.and_then(|place| place.items("clusters", MAX_CLUSTERS, report)) else {
        names.incomplete = true;
        return (names, None);
    };
    names.incomplete = items.cut;
    let mut unique = UniqueNames::default();
    let mut clusters = Some(Vec::new());
    for (index, item) in items.enumerate() {
        names.count = index + 1;
        let cluster = cluster(&item, index, &mut names, &mut unique, report);
        match (cluster, &mut clusters) {
            (Some(cluster), Some(clusters)) => clusters.push((item.position(), cluster)),
            _ => clusters = None,
        }
    }
    (names, clusters)
}

fn cluster(
    place: &NodeRef<'_>,
    index: usize,
    names: &mut ClusterNames,
    unique: &mut UniqueNames,
    report: &mut Report,
) -> Option<Cluster> {
    let Some(mut map) = MapDecoder::open(place, report) else {
        names.record(None, false, index);
        return None;
    };
    let name = map.require("name");
    let role = map.take("role");
    let balance = map.take("balance");
    let health = map.take("health");
    let ejection = map.take("ejection");
    let proxy_protocol = map.take("proxy_protocol");
    let drain = map.take("drain");
    let hosts = map.take("hosts");
    let resolve = map.take("resolve");
    let learn = map.take("learn");
    let kubernetes = map.take("kubernetes");
    let join = map.take("join");
    let subset = map.take("subset");
    let backend_tls = map.take("backend_tls");
    let h2c = map.take("h2c");
    let answers = map.take("answers");
    let max_host_connections = map.take("max_host_connections");
    let known = map.finish(report);

    // A `learn` with a mistake in it still counts as given; an unknown key may be a misspelling of any of the three.
    let learns = kubernetes.is_some() || learn.is_some_and(|place| place.plain() != Some("false"));
    if hosts.is_none() && !learns && known {
        place.error(
            report,
            "the key `hosts` is missing: only a cluster with `kubernetes` or `learn: true` needs none",
        );
    }
    let text = name.as_ref().and_then(NodeRef::plain);
    let name = name.and_then(|name| unique.name(&name, "cluster", report));
    names.record(text, name.is_some(), index);
    let role = or_default(role.as_ref(), ClusterRole::Routers, |place| {
        place.keyword("a role of hosts", &ClusterRole::ALL, report)
    });
    let balance = self::balance(balance.as_ref(), report);
    let ejection = self::ejection(ejection.as_ref(), report);
    let proxy_protocol = proxy::header(proxy_protocol.as_ref(), report);
    let health = health::check(health.as_ref(), proxy_protocol.is_some(), report);
    let learn = or_default(learn.as_ref(), false, |place| place.flag(report));
    let kubernetes = optional_value(kubernetes.as_ref(), |place| kubernetes::source(place, report));
    let join = or_default(join.as_ref(), JoinPolicy::None, |place| {
        place.keyword("a way to join", &JoinPolicy::ALL, report)
    });
    let backend_tls = optional_value(backend_tls.as_ref(), |place| tls::backend(place, report));
    let h2c = or_default(h2c.as_ref(), false, |place| place.flag(report));
    let readings = [("strict", false), ("lenient", true)];
    let repairs_answers = or_default(answers.as_ref(), false, |place| {
        place.keyword("a way to read answers", &readings, report)
    });
    let max_host_connections = max_host_connections.and_then(|place| place.number(1, MAX_LIMIT, report));
    let hosts = match hosts {
        Some(place) => hosts::decode_all(&place, &health.probe, report),
        None => learns.then(Default::default),
    };
    let (hosts, named_hosts) = hosts?;
    Some(Cluster {
        name: name?,
        role,
        balance,
        health: HealthCheck { h2c, ..health },
        ejection,
        proxy_protocol,
        drain: drain.and_then(|place| place.duration(report)),
        hosts,
        named_hosts,
        resolve: or_default(resolve.as_ref(), DEFAULT_RESOLVE_INTERVAL, |place| {
            place.duration(report)
        }),
        learn,
        kubernetes: kubernetes?,
        subset: subset.and_then(|place| subset::size(&place, report)),
        join,
        backend_tls: backend_tls?.unwrap_or_default(),
        h2c,
        repairs_answers,
        max_host_connections,
    })
}

/// Decodes the balancing algorithm among hosts.
pub(super) fn balance(place: Option<&NodeRef<'_>>, report: &mut Report) -> Balance {
    or_default(place, Balance::LeastConnections, |place| {
        place.keyword("a way to balance", &Balance::ALL, report)
    })
}

/// Decodes when failures of real connections eject a host.
pub(super) fn ejection(place: Option<&NodeRef<'_>>, report: &mut Report) -> Ejection {
    let Some(mut map) = place.and_then(|place| MapDecoder::open(place, report)) else {
        return DEFAULT_EJECTION;
    };
    let failures = map.take("failures");
    let time = map.take("time");
    let max_percent = map.take("max_percent");
    map.finish(report);
    Ejection {
        failures: or_default(failures.as_ref(), DEFAULT_EJECTION.failures, |place| {
            place.number(0, u32::MAX, report)
        }),
        time: or_default(time.as_ref(), DEFAULT_EJECTION.time, |place| place.duration(report)),
        max_percent: or_default(max_percent.as_ref(), DEFAULT_EJECTION.max_percent, |place| {
            place.number(0, 100, report)
        }),
    }
}
