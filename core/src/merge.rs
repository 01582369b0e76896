//! Merges the file, the knowledge of sources, and the weights that operators have set into one model.
//!
//! The file is an operator's word: its hosts and routes stand as they are. A name that the file does not have goes to
//! every cluster that serves it, by the weight that it has there. Claims that lose are shown by [`unserved_claims`].

use std::collections::{BTreeMap, HashMap, HashSet};

use foldhash::fast::FixedState;

use crate::discovery::{Claim, ClusterDiscovery, Discovered, Rejected, WEIGHT_RANGE};
use crate::hostname::{HostnamePattern, WildcardDepth};
use crate::join::{self, ClaimShare, JoinPolicy};
use crate::model::{Cluster, Model, Route};

/// Most clusters, and most hosts of a cluster, as in the configuration. Further ones are left out.
const MAX_ENTRIES: usize = 65_535;

/// Clusters by name, with their weights.
pub type ClusterWeights = Vec<(String, u32)>;

/// Weights that operators have set, by the route's name. They override the file's and the sources' weights until the
/// operator removes them.
pub type WeightOverrides = BTreeMap<String, ClusterWeights>;

/// Builds the model that is to be in force.
#[must_use]
pub fn merge(file: &Model, discovered: &Discovered, weights: &WeightOverrides) -> Model {
    let mut model = file.clone();
    model.routes.retain(|route| !route.is_discovered());
    let mut clusters: HashMap<String, usize, FixedState> = HashMap::default();
    for (index, cluster) in model.clusters.iter().enumerate() {
        clusters.insert(cluster.name.clone(), index);
    }
    let mut routes: HashMap<&HostnamePattern, Vec<(usize, &Claim)>, FixedState> = HashMap::default();
    for (name, learned) in by_cluster(discovered).filter(|(name, _)| file.accepts_discovery(name)) {
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
        for host in &learned.hosts {
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
    let discovered_routes = routes.into_iter().map(|(host, claims)| Route {
        hostname: host.clone(),
        depth: widest_depth(&claims),
        clusters: shared_weights(&claims, &joins),
        drain: said.get(host).and_then(|route| route.drain),
        prefer: said.get(host).map(|route| route.prefer.clone()).unwrap_or_default(),
        labels: said.get(host).map(|route| route.labels.clone()).unwrap_or_default(),
    });
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
    model
}

/// Number of labels that a wildcard's star stands for: the most that any claim means. A cluster whose claim means fewer
/// answers deeper names as names that nobody has.
fn widest_depth(claims: &[(usize, &Claim)]) -> WildcardDepth {
    claims.iter().map(|(_, claim)| claim.depth).max().unwrap_or_default()
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
    // Clusters that the file does not name come behind those that it names, in the order of sources, as in `merge`.
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
fn by_cluster(discovered: &Discovered) -> impl Iterator<Item = (&str, &ClusterDiscovery)> {
    discovered
        .values()
        .flatten()
        .map(|(cluster, learned)| (cluster.as_str(), &**learned))
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

/// Claims to a name that have been discovered and are not in force, each with the reason.
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
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::discovery::Claim;
    use crate::labels::LabelSets;
    use crate::model::Host;

    /// Model whose two clusters both accept discovery.
    fn model() -> Model {
        let mut model = crate::view::tests::model();
        model.clusters.iter_mut().for_each(|cluster| cluster.learn = true);
        model
    }

    fn host(name: &str, last: u8) -> Host {
        Host {
            name: name.into(),
            address: [10, 9, 0, last].into(),
            http: Some(80),
            https: None,
            tcp: None,
            ports: std::collections::BTreeMap::new(),
            weight: 1,
            health_page: None,
        }
    }

    fn learned(hosts: &[Host], routes: &[(&str, u32)]) -> Arc<ClusterDiscovery> {
        let claim = |&(host, weight): &(&str, u32)| Claim {
            hostname: HostnamePattern::parse(host).unwrap(),
            depth: WildcardDepth::Any,
            weight: Some(weight),
            owner: "test".into(),
            since: 1,
            origin: format!("Route test/{host}"),
            notes: Vec::new(),
            labels: LabelSets::default(),
        };
        Arc::new(ClusterDiscovery {
            hosts: hosts.to_vec(),
            routes: routes.iter().map(claim).collect(),
            rejected: Vec::new(),
            endpoints: Vec::new(),
        })
    }

    fn discovered(all: &[(&str, &str, Arc<ClusterDiscovery>)]) -> Discovered {
        let mut discovered = Discovered::new();
        for (source, cluster, learned) in all {
            let of = discovered.entry((*source).to_owned()).or_default();
            of.insert((*cluster).to_owned(), Arc::clone(learned));
        }
        discovered
    }

    fn shares<'a>(model: &'a Model, host: &str) -> Option<Vec<(&'a str, u32)>> {
        let route = model.routes.iter().find(|route| route.hostname.to_string() == host)?;
        let name = |&(at, weight): &(usize, u32)| (model.clusters[at].name.as_str(), weight);
        Some(route.clusters.iter().map(name).collect())
    }

    #[test]
    fn a_name_goes_to_every_cluster_that_serves_it() {
        let discovered = discovered(&[
            ("kube:west", "west", learned(&[], &[("shop.test", 80), ("app.test", 1)])),
            ("kube:east", "east", learned(&[], &[("shop.test", 10)])),
            ("api", "new", learned(&[host("n1", 1)], &[("*.new.test", 1)])),
        ]);
        let file = model();
        let merged = merge(&file, &discovered, &WeightOverrides::new());
        // Claims of sources stand in a fixed order, whichever source tells first.
        assert_eq!(shares(&merged, "shop.test"), Some(vec![("east", 10), ("west", 80)]));
        assert_eq!(shares(&merged, "*.new.test"), Some(vec![("new", 1)]));
        assert_eq!(
            shares(&merged, "app.test"),
            Some(vec![("east", 10), ("west", 80)]),
            "the file's"
        );
        assert_eq!(merged.clusters[2].hosts, [host("n1", 1)]);
        let app = HostnamePattern::parse("app.test").unwrap();
        let [(by, rejected)] = &unserved_claims(&file, &discovered, &WeightOverrides::new(), &app)[..] else {
            panic!()
        };
        assert_eq!(
            (by.as_str(), rejected.origin.as_str()),
            ("kube:west in west", "Route test/app.test")
        );
        let app = &merged.routes[0];
        assert_eq!(
            app.hostname.to_string(),
            "app.test",
            "the file's routes keep their places"
        );
    }

    #[test]
    fn a_star_stands_for_as_many_labels_as_one_of_its_claims_means() {
        let of = |depth: WildcardDepth| {
            let mut learned = (*learned(&[], &[("*.shop.test", 1)])).clone();
            learned.routes[0].depth = depth;
            Arc::new(learned)
        };
        let depth = |discovered: &Discovered| {
            let merged = merge(&model(), discovered, &WeightOverrides::new());
            let route = merged
                .routes
                .iter()
                .find(|route| route.hostname.to_string() == "*.shop.test");
            route.unwrap().depth
        };
        let one = discovered(&[("kube:west", "west", of(WildcardDepth::One))]);
        assert_eq!(depth(&one), WildcardDepth::One);
        let both = discovered(&[
            ("kube:west", "west", of(WildcardDepth::One)),
            ("kube:east", "east", of(WildcardDepth::Any)),
        ]);
        assert_eq!(depth(&both), WildcardDepth::Any);
    }

    #[test]
    fn who_comes_later_waits_and_is_shown_with_who_was_first() {
        let with = |since: u64, owner: &str, weight: Option<u32>| {
            let mut learned = (*learned(&[], &[("shop.test", 1)])).clone();
            learned.routes[0].since = since;
            learned.routes[0].weight = weight;
            learned.routes[0].owner = owner.into();
            learned.routes[0].origin = format!("Route {owner}/web");
            Arc::new(learned)
        };
        let shop = HostnamePattern::parse("shop.test").unwrap();
        let mut file = model();
        let discovered = |weight, owner: &str| {
            discovered(&[
                ("kube:east", "east", with(20, owner, weight)),
                ("kube:west", "west", with(10, "shop", None)),
            ])
        };
        let none = WeightOverrides::new();
        let same = discovered(None, "shop");
        assert_eq!(
            shares(&merge(&file, &same, &none), "shop.test"),
            Some(vec![("east", 0), ("west", 1)])
        );
        let [(by, waits)] = &unserved_claims(&file, &same, &none, &shop)[..] else {
            panic!()
        };
        assert_eq!(
            (by.as_str(), waits.rival.as_deref()),
            ("kube:east in east", Some("Route shop/web"))
        );
        assert!(waits.reason.starts_with("it joins at nothing"), "{}", waits.reason);
        let rival = discovered(Some(50), "thief");
        assert_eq!(
            shares(&merge(&file, &rival, &none), "shop.test"),
            Some(vec![("east", 0), ("west", 1)])
        );
        assert!(
            unserved_claims(&file, &rival, &none, &shop)[0]
                .1
                .reason
                .starts_with("somebody else has the name")
        );
        // Weights by an operator, for the name or for the cluster.
        let set = WeightOverrides::from([(
            "shop.test".to_owned(),
            vec![("east".to_owned(), 3), ("west".to_owned(), 0)],
        )]);
        assert_eq!(
            shares(&merge(&file, &rival, &set), "shop.test"),
            Some(vec![("east", 3), ("west", 0)])
        );
        assert_eq!(unserved_claims(&file, &rival, &set, &shop), []);
        file.clusters[0].join = JoinPolicy::Share;
        assert_eq!(
            shares(&merge(&file, &rival, &none), "shop.test"),
            Some(vec![("east", 50), ("west", 1)])
        );
        assert_eq!(unserved_claims(&file, &rival, &none, &shop), []);
    }

    #[test]
    fn two_sources_of_one_cluster_are_not_two_clusters() {
        let shop = HostnamePattern::parse("shop.test").unwrap();
        let twice = discovered(&[
            ("agent:new", "new", learned(&[], &[("shop.test", 1)])),
            ("api:new", "new", learned(&[], &[("shop.test", 1)])),
        ]);
        assert_eq!(
            shares(&merge(&model(), &twice, &WeightOverrides::new()), "shop.test"),
            Some(vec![("new", 1)])
        );
        assert_eq!(unserved_claims(&model(), &twice, &WeightOverrides::new(), &shop), []);
    }

    #[test]
    fn a_cluster_that_does_not_learn_is_what_the_file_says() {
        let mut file = model();
        let discovered = discovered(&[("agent:east", "east", learned(&[host("n1", 1)], &[("shop.test", 10)]))]);
        assert_eq!(
            merge(&file, &discovered, &WeightOverrides::new()).clusters[0]
                .hosts
                .len(),
            3
        );
        file.clusters[0].learn = false;
        let merged = merge(&file, &discovered, &WeightOverrides::new());
        assert_eq!(
            (merged.clusters[0].hosts.len(), shares(&merged, "shop.test")),
            (2, None)
        );
    }

    #[test]
    fn hosts_are_known_by_name_and_the_files_come_first() {
        let twice = discovered(&[
            ("agent:east", "east", learned(&[host("h1", 7), host("n1", 1)], &[])),
            ("kube:east", "east", learned(&[host("n1", 2), host("n2", 3)], &[])),
        ]);
        let file = model();
        let merged = merge(&file, &twice, &WeightOverrides::new());
        let hosts: Vec<_> = merged.clusters[0]
            .hosts
            .iter()
            .map(|h| (h.name.as_str(), h.address))
            .collect();
        let of_file = file.clusters[0].hosts[0].address;
        assert_eq!(hosts[0], ("h1", of_file));
        assert_eq!(hosts[2..], [("n1", [10, 9, 0, 1].into()), ("n2", [10, 9, 0, 3].into())]);
    }

    #[test]
    fn weights_that_an_operator_has_set_win_as_long_as_a_cluster_of_them_is_there() {
        let discovered = discovered(&[("kube:west", "west", learned(&[], &[("shop.test", 80)]))]);
        let set = |host: &str, clusters: &[(&str, u32)]| {
            let clusters = clusters
                .iter()
                .map(|&(name, weight)| (name.to_owned(), weight))
                .collect();
            WeightOverrides::from([(host.to_owned(), clusters)])
        };
        let merged = merge(&model(), &discovered, &set("shop.test", &[("east", 3), ("gone", 1)]));
        assert_eq!(shares(&merged, "shop.test"), Some(vec![("east", 3)]));
        let merged = merge(&model(), &discovered, &set("shop.test", &[("gone", 1)]));
        assert_eq!(shares(&merged, "shop.test"), Some(vec![("west", 80)]));
        let merged = merge(&model(), &discovered, &set("app.test", &[("west", 1)]));
        assert_eq!(
            shares(&merged, "app.test"),
            Some(vec![("west", 1)]),
            "also of the file's routes"
        );
    }
}
