//! Merges the file, the knowledge of sources, and the weights that operators have set into one model.
//!
//! The file is written by an operator: its hosts and routes are used unchanged. A name that the file does not have goes
//! to every cluster that serves it, by the weight that it has there. Claims that lose are shown by [`unserved_claims`].

mod policy;

use std::collections::{BTreeMap, HashMap, HashSet};

use foldhash::fast::FixedState;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::discovered::discovery::{Claim, ClusterDiscovery, Discovered, Rejected, WEIGHT_RANGE};
use crate::discovered::join::{self, ClaimShare};
use crate::model::tls::Termination;
use crate::model::{Cluster, ClusterRole, DNS_PREFIX, JoinPolicy, Model, Preference, Route};
use crate::wire::hostname::{HostnamePattern, WildcardDepth};

pub use policy::report::settings_report;

/// Most clusters, and most hosts of a cluster, as in the configuration. Further ones are left out.
const MAX_ENTRIES: usize = 65_535;

/// Clusters by name, with their weights.
pub type ClusterWeights = Vec<(String, u32)>;

/// Weights that operators have set, by the route's name. They override the file's and the sources' weights until the
/// operator removes them.
pub type WeightOverrides = BTreeMap<String, ClusterWeights>;

/// Clients that get a cluster before all others while a migration moves a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Testers {
    /// The cluster.
    pub cluster: String,
    /// Addresses of the clients.
    #[cfg_attr(feature = "schema", schemars(with = "Vec<String>"))]
    pub clients: Vec<IpNet>,
}

/// Testers by the route's name.
pub type TesterOverrides = BTreeMap<String, Testers>;

/// Adds testers to the routes of a model, before the preferences that a route has. Unknown clusters are left out.
pub fn add_testers(model: &mut Model, testers: &TesterOverrides) {
    if testers.is_empty() {
        return;
    }
    let clusters: HashMap<&str, usize> = (model.clusters.iter().enumerate())
        .map(|(at, cluster)| (cluster.name.as_str(), at))
        .collect();
    for route in &mut model.routes {
        let of_route = testers.get(&route.hostname.to_string());
        let Some((testers, cluster)) = of_route.and_then(|of| Some((of, *clusters.get(of.cluster.as_str())?))) else {
            continue;
        };
        let clients = testers.clients.clone();
        route.prefer.insert(0, Preference { cluster, clients });
    }
}

/// Builds the model to apply.
#[must_use]
pub fn merge(file: &Model, discovered: &Discovered, weights: &WeightOverrides) -> Model {
    let mut model = file.clone();
    model.routes.retain(|route| !route.is_discovered());
    let mut clusters: HashMap<String, usize, FixedState> = HashMap::default();
    for (index, cluster) in model.clusters.iter().enumerate() {
        clusters.insert(cluster.name.clone(), index);
    }
    let mut routes: HashMap<&HostnamePattern, Vec<(usize, &Claim)>, FixedState> = HashMap::default();
    for (source, name, learned) in by_cluster(discovered).filter(|(source, name, _)| file.accepts(source, name)) {
        let at = match clusters.get(name) {
            Some(&at) => at,
            // Workers number clusters in 16 bits.
            None if model.clusters.len() >= MAX_ENTRIES => continue,
            None => {
                model.clusters.push(if name.contains('/') {
                    Cluster::application(name, file.routing_events.as_ref())
                } else {
                    Cluster::discovered(name)
                });
                clusters.insert(name.to_owned(), model.clusters.len() - 1);
                model.clusters.len() - 1
            }
        };
        let mut known: HashSet<String, FixedState> = HashSet::default();
        known.extend(model.clusters[at].hosts.iter().map(|host| host.name.clone()));
        // Of a hostname only the addresses are reported: the file has the rest.
        let named = model.clusters[at].named_by(source);
        let resolved: Vec<_> = named
            .flat_map(|named| learned.hosts.iter().map(|host| named.at(host.address)))
            .collect();
        let reported = if source.starts_with(DNS_PREFIX) {
            &resolved
        } else {
            &learned.hosts
        };
        for host in reported {
            let hosts = &mut model.clusters[at].hosts;
            // Several sources, and the file, may know one host.
            if hosts.len() < MAX_ENTRIES && known.insert(host.name.clone()) {
                hosts.push(host.clone());
            }
        }
        for claim in &learned.routes {
            let shares = routes.entry(&claim.hostname).or_default();
            if !shares.iter().any(|&(cluster, _)| cluster == at) {
                shares.push((at, claim));
            }
        }
    }
    for route in file.routes.iter().filter(|route| !route.is_discovered()) {
        routes.remove(&route.hostname);
    }
    let said: HashMap<&HostnamePattern, &Route, FixedState> = file
        .routes
        .iter()
        .filter(|route| route.is_discovered())
        .map(|route| (&route.hostname, route))
        .collect();
    let mut routes: Vec<_> = routes.into_iter().collect();
    routes.sort_unstable_by_key(|(host, _)| *host);
    let joins: Vec<JoinPolicy> = model.clusters.iter().map(|cluster| cluster.join).collect();
    let discovered_routes = routes.iter().map(|(host, claims)| Route {
        hostname: (*host).clone(),
        depth: widest_depth(claims),
        clusters: shared_weights(claims, &joins),
        drain: said.get(host).and_then(|route| route.drain),
        prefer: said.get(host).map(|route| route.prefer.clone()).unwrap_or_default(),
        labels: said.get(host).map(|route| route.labels.clone()).unwrap_or_default(),
        tls: said.get(host).and_then(|route| route.tls.clone()),
        claimed_termination: claimed_termination(claims, &model.clusters),
        allow: said.get(host).and_then(|route| route.allow.clone()),
        connections: said.get(host).and_then(|route| route.connections),
        paths: Vec::new(),
        requests: said.get(host).map(|route| route.requests.clone()).unwrap_or_default(),
        claimed: None,
    });
    let first_discovered = model.routes.len();
    model.routes.extend(discovered_routes);
    if !weights.is_empty() {
        for route in &mut model.routes {
            let Some(set) = weights.get(&route.hostname.to_string()) else {
                continue;
            };
            let known = |(name, weight): &(String, u32)| Some((*clusters.get(name)?, *weight));
            let set: Vec<_> = set.iter().filter_map(known).collect();
            // Weights whose clusters are all gone decide nothing.
            if !set.is_empty() {
                route.clusters = set;
            }
        }
    }
    // By the shares that hold at last.
    for (route, (_, claims)) in model.routes.iter_mut().skip(first_discovered).zip(&routes) {
        policy::apply(route, claims, &model.clusters, &model.timeouts);
    }
    model
}

/// Number of labels that a wildcard's star stands for: the most that any claim means. A cluster whose claim means fewer
/// labels treats deeper names as unknown.
fn widest_depth(claims: &[(usize, &Claim)]) -> WildcardDepth {
    claims.iter().map(|(_, claim)| claim.depth).max().unwrap_or_default()
}

/// Place where TLS ends by the claims: at the host if any claim says that, else where all agree.
fn claimed_termination(claims: &[(usize, &Claim)], clusters: &[Cluster]) -> Option<Termination> {
    let has_servers = |at: usize| {
        clusters
            .get(at)
            .is_some_and(|cluster| cluster.role == ClusterRole::Servers)
    };
    let mut said = claims.iter().map(|&(at, claim)| match claim.termination {
        Some(Termination::Reencrypt) if claim.is_edge && has_servers(at) => Some(Termination::Edge),
        termination => termination,
    });
    if said
        .clone()
        .any(|termination| termination == Some(Termination::Passthrough))
    {
        return Some(Termination::Passthrough);
    }
    let first = said.next()??;
    said.all(|termination| termination == Some(first)).then_some(first)
}

/// Clusters that claim a name, with their weights.
fn shared_weights(claims: &[(usize, &Claim)], joins: &[JoinPolicy]) -> Vec<(usize, u32)> {
    let share = |&(cluster, claim): &(usize, _)| ClaimShare {
        cluster,
        join: joins.get(cluster).copied().unwrap_or_default(),
        claim,
    };
    let shares: Vec<_> = claims.iter().map(share).collect();
    let Some(first) = join::oldest(&shares) else {
        return Vec::new();
    };
    shares
        .iter()
        .map(|share| (share.cluster, share.weight(&first)))
        .collect()
}

/// Clusters that claim a name and get no share of it, by source, each with the cluster that has the name.
fn claims_without_share(file: &Model, discovered: &Discovered, hostname: &HostnamePattern) -> Vec<(String, Rejected)> {
    let place = |name: &str| file.clusters.iter().position(|cluster| cluster.name == name);
    // Clusters that the file does not name follow those that it names, in the order of sources, as in `merge`.
    let mut others: Vec<&str> = Vec::new();
    let mut found: Vec<(String, ClaimShare<'_>)> = Vec::new();
    for (source, clusters) in discovered {
        for (cluster, learned) in clusters {
            let at = place(cluster);
            if at.is_some_and(|at| !file.clusters.get(at).is_some_and(Cluster::accepts_discovery)) {
                continue;
            }
            let Some(claim) = learned.routes.iter().find(|claim| claim.hostname == *hostname) else {
                continue;
            };
            if at.is_none() && !others.contains(&cluster.as_str()) {
                others.push(cluster);
            }
            let behind = others.iter().position(|other| other == cluster).unwrap_or(0);
            let cluster_at = at.unwrap_or(file.clusters.len() + behind);
            let join = at
                .and_then(|at| file.clusters.get(at))
                .map_or(JoinPolicy::None, |cluster| cluster.join);
            let share = ClaimShare {
                cluster: cluster_at,
                join,
                claim,
            };
            if !found.iter().any(|(_, known)| known.cluster == share.cluster) {
                found.push((format!("{source} in {cluster}"), share));
            }
        }
    }
    let shares: Vec<_> = found.iter().map(|(_, share)| *share).collect();
    let Some(first) = join::oldest(&shares) else {
        return Vec::new();
    };
    let nothing = found.into_iter().filter_map(|(by, share)| {
        let rejected = Rejected {
            hostname: hostname.to_string(),
            origin: share.claim.origin.clone(),
            reason: share.zero_weight_reason(&first)?,
            rival: (share.cluster != first.cluster).then(|| first.claim.origin.clone()),
        };
        Some((by, rejected))
    });
    nothing.collect()
}

/// Knowledge of all sources, source by source.
fn by_cluster(discovered: &Discovered) -> impl Iterator<Item = (&str, &str, &ClusterDiscovery)> {
    discovered.iter().flat_map(|(source, clusters)| {
        let of_source = clusters.iter();
        of_source.map(|(cluster, learned)| (source.as_str(), cluster.as_str(), &**learned))
    })
}

/// Refuses weights that name an unknown route or cluster, that are out of range, or that leave a route without any. The
/// error lists every problem.
pub fn check_weights(
    model: &Model,
    known: &WeightOverrides,
    set: &BTreeMap<String, Option<ClusterWeights>>,
) -> Result<(), String> {
    let problem =
        |(host, shares): (&String, &Option<ClusterWeights>)| weights_error(model, known, host, shares.as_ref());
    let problems: Vec<String> = set.iter().filter_map(problem).collect();
    if problems.is_empty() {
        Ok(())
    } else {
        Err(problems.join("; "))
    }
}

fn weights_error(
    model: &Model,
    known: &WeightOverrides,
    hostname: &str,
    shares: Option<&ClusterWeights>,
) -> Option<String> {
    let Some(shares) = shares else {
        return (!known.contains_key(hostname)).then(|| format!("no weights are set for {hostname}"));
    };
    if !model.routes.iter().any(|route| route.hostname.to_string() == hostname) {
        return Some(format!("there is no route {hostname}"));
    }
    for (name, weight) in shares {
        if !model.clusters.iter().any(|cluster| cluster.name == *name) {
            let application = if name.contains('/') {
                ": no routing event has reported such an application, nor does the configuration name it"
            } else {
                ""
            };
            return Some(format!("{hostname}: there is no cluster {name}{application}"));
        }
        if !WEIGHT_RANGE.contains(weight) {
            return Some(format!(
                "{hostname}: the weight of {name} is {weight}; it must be 0 to 100"
            ));
        }
    }
    shares.iter().all(|(_, weight)| *weight == 0).then(|| {
        format!(
            "{hostname}: at least one cluster needs a weight above 0 (`signalbox rotate out application:{hostname}` takes it out of \
             service)"
        )
    })
}

/// Claims to a name that have been discovered and are not served, each with the reason.
#[must_use]
pub fn unserved_claims(
    file: &Model,
    discovered: &Discovered,
    weights: &WeightOverrides,
    hostname: &HostnamePattern,
) -> Vec<(String, Rejected)> {
    let in_file = file
        .routes
        .iter()
        .any(|route| route.hostname == *hostname && !route.is_discovered());
    let text = hostname.to_string();
    let mut all = Vec::new();
    for (source, clusters) in discovered {
        for (cluster, learned) in clusters {
            let by = format!("{source} in {cluster}");
            all.extend(
                learned
                    .rejected
                    .iter()
                    .filter(|rejected| rejected.hostname.eq_ignore_ascii_case(&text))
                    .map(|rejected| (by.clone(), rejected.clone())),
            );
            let claim = learned.routes.iter().find(|claim| claim.hostname == *hostname);
            if in_file && let Some(claim) = claim {
                let rejected = Rejected {
                    hostname: text.clone(),
                    origin: claim.origin.clone(),
                    reason: "the configuration file has a route of this name".into(),
                    rival: Some("the configuration file".into()),
                };
                all.push((by, rejected));
            }
        }
    }
    // Weights that an operator has set overrule the reasons for giving a cluster no share.
    if !in_file && !weights.contains_key(&text) {
        all.extend(claims_without_share(file, discovered, hostname));
    }
    all
}

#[cfg(test)]
mod tests;
