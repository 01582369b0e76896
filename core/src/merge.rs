//! One model of what the file says, what sources have learnt, and what operators have set.
//!
//! The file is an operator's word: its hosts and routes stand as they are. A name that the file does not have goes to
//! every cluster that serves it, by the weight that it has there. What loses is not lost: [`lost`] says to whom.

use std::collections::{BTreeMap, HashMap, HashSet};

use foldhash::fast::FixedState;

use crate::learned::{Learned, Lore, Rejected};
use crate::model::{Balance, Cluster, Ejection, HealthCheck, Model, Route};
use crate::name::HostPattern;

/// Clusters, and hosts of a cluster, at the most: as in the configuration. What is more is left out.
const MOST: usize = 65_535;

/// Weights that operators have set: for a route, clusters by name.
pub type Weights = BTreeMap<String, Vec<(String, u32)>>;

impl Cluster {
    /// A cluster that is known by what a source has learnt alone.
    #[must_use]
    pub fn learnt(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            balance: Balance::LeastConnections,
            health: HealthCheck::DEFAULT,
            ejection: Ejection::DEFAULT,
            proxy_protocol: false,
            drain: None,
            hosts: Vec::new(),
            learn: true,
            kubernetes: None,
        }
    }
}

/// The model that is to be in force.
#[must_use]
pub fn merge(file: &Model, lore: &Lore, weights: &Weights) -> Model {
    let mut model = file.clone();
    let mut clusters: HashMap<String, usize, FixedState> = HashMap::default();
    for (index, cluster) in model.clusters.iter().enumerate() {
        clusters.insert(cluster.name.clone(), index);
    }
    let mut routes: HashMap<&HostPattern, Vec<(usize, u32)>, FixedState> = HashMap::default();
    let taught = |name: &str| {
        file.clusters
            .iter()
            .find(|c| c.name == name)
            .is_none_or(Cluster::learns)
    };
    for (name, learned) in by_cluster(lore).filter(|(name, _)| taught(name)) {
        let at = match clusters.get(name) {
            Some(&at) => at,
            // Workers number them in 16 bits.
            None if model.clusters.len() >= MOST => continue,
            None => {
                model.clusters.push(Cluster::learnt(name));
                clusters.insert(name.to_owned(), model.clusters.len() - 1);
                model.clusters.len() - 1
            }
        };
        let mut known: HashSet<String, FixedState> = HashSet::default();
        known.extend(model.clusters[at].hosts.iter().map(|host| host.name.clone()));
        for host in &learned.hosts {
            let hosts = &mut model.clusters[at].hosts;
            // Several sources may know the same host, and the file.
            if hosts.len() < MOST && known.insert(host.name.clone()) {
                hosts.push(host.clone());
            }
        }
        for claim in &learned.routes {
            let shares = routes.entry(&claim.host).or_default();
            if !shares.iter().any(|&(cluster, _)| cluster == at) {
                shares.push((at, claim.weight));
            }
        }
    }
    for route in &file.routes {
        routes.remove(&route.host);
    }
    let mut routes: Vec<_> = routes.into_iter().collect();
    routes.sort_unstable_by_key(|(host, _)| *host);
    let learnt = routes.into_iter().map(|(host, clusters)| Route {
        host: host.clone(),
        clusters,
        drain: None,
    });
    model.routes.extend(learnt);
    if !weights.is_empty() {
        for route in &mut model.routes {
            let Some(set) = weights.get(&route.host.to_string()) else {
                continue;
            };
            let known = |(name, weight): &(String, u32)| Some((*clusters.get(name)?, *weight));
            let set: Vec<_> = set.iter().filter_map(known).collect();
            // Of clusters that are all gone, nothing can be said any more.
            if !set.is_empty() {
                route.clusters = set;
            }
        }
    }
    model
}

/// What all sources know, source by source.
fn by_cluster(lore: &Lore) -> impl Iterator<Item = (&str, &Learned)> {
    lore.values()
        .flatten()
        .map(|(cluster, learned)| (cluster.as_str(), &**learned))
}

/// What has been learnt of a name and is not in force, with the reason.
#[must_use]
pub fn lost(file: &Model, lore: &Lore, host: &HostPattern) -> Vec<(String, Rejected)> {
    let in_file = file.routes.iter().any(|route| route.host == *host);
    let text = host.to_string();
    let mut all = Vec::new();
    for (source, clusters) in lore {
        for (cluster, learned) in clusters {
            let by = format!("{source} in {cluster}");
            all.extend(
                learned
                    .rejected
                    .iter()
                    .filter(|rejected| rejected.host.eq_ignore_ascii_case(&text))
                    .map(|rejected| (by.clone(), rejected.clone())),
            );
            let claim = learned.routes.iter().find(|claim| claim.host == *host);
            if in_file && let Some(claim) = claim {
                let rejected = Rejected {
                    host: text.clone(),
                    origin: claim.origin.clone(),
                    reason: "the configuration file has a route of this name".into(),
                    rival: Some("the configuration file".into()),
                };
                all.push((by, rejected));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::learned::Claim;
    use crate::model::Host;

    /// Both clusters of it learn.
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
        }
    }

    fn learned(hosts: &[Host], routes: &[(&str, u32)]) -> Arc<Learned> {
        let claim = |&(host, weight): &(&str, u32)| Claim {
            host: HostPattern::parse(host).unwrap(),
            weight,
            origin: format!("Route test/{host}"),
            notes: Vec::new(),
        };
        Arc::new(Learned {
            hosts: hosts.to_vec(),
            routes: routes.iter().map(claim).collect(),
            rejected: Vec::new(),
        })
    }

    fn lore(all: &[(&str, &str, Arc<Learned>)]) -> Lore {
        let mut lore = Lore::new();
        for (source, cluster, learned) in all {
            let of = lore.entry((*source).to_owned()).or_default();
            of.insert((*cluster).to_owned(), Arc::clone(learned));
        }
        lore
    }

    fn shares<'a>(model: &'a Model, host: &str) -> Option<Vec<(&'a str, u32)>> {
        let route = model.routes.iter().find(|route| route.host.to_string() == host)?;
        let name = |&(at, weight): &(usize, u32)| (model.clusters[at].name.as_str(), weight);
        Some(route.clusters.iter().map(name).collect())
    }

    #[test]
    fn a_name_goes_to_every_cluster_that_serves_it() {
        let lore = lore(&[
            ("kube:west", "west", learned(&[], &[("shop.test", 80), ("app.test", 1)])),
            ("kube:east", "east", learned(&[], &[("shop.test", 10)])),
            ("api", "new", learned(&[host("n1", 1)], &[("*.new.test", 1)])),
        ]);
        let file = model();
        let merged = merge(&file, &lore, &Weights::new());
        // Sources in their order, so that it is the same whoever told first.
        assert_eq!(shares(&merged, "shop.test"), Some(vec![("east", 10), ("west", 80)]));
        assert_eq!(shares(&merged, "*.new.test"), Some(vec![("new", 1)]));
        assert_eq!(
            shares(&merged, "app.test"),
            Some(vec![("east", 10), ("west", 80)]),
            "the file's"
        );
        assert_eq!(merged.clusters[2].hosts, [host("n1", 1)]);
        let app = HostPattern::parse("app.test").unwrap();
        let [(by, rejected)] = &lost(&file, &lore, &app)[..] else {
            panic!()
        };
        assert_eq!(
            (by.as_str(), rejected.origin.as_str()),
            ("kube:west in west", "Route test/app.test")
        );
        let app = &merged.routes[0];
        assert_eq!(app.host.to_string(), "app.test", "the file's routes keep their places");
    }

    #[test]
    fn a_cluster_that_does_not_learn_is_what_the_file_says() {
        let mut file = model();
        let lore = lore(&[("agent:east", "east", learned(&[host("n1", 1)], &[("shop.test", 10)]))]);
        assert_eq!(merge(&file, &lore, &Weights::new()).clusters[0].hosts.len(), 3);
        file.clusters[0].learn = false;
        let merged = merge(&file, &lore, &Weights::new());
        assert_eq!(
            (merged.clusters[0].hosts.len(), shares(&merged, "shop.test")),
            (2, None)
        );
    }

    #[test]
    fn hosts_are_known_by_name_and_the_files_come_first() {
        let twice = lore(&[
            ("agent:east", "east", learned(&[host("h1", 7), host("n1", 1)], &[])),
            ("kube:east", "east", learned(&[host("n1", 2), host("n2", 3)], &[])),
        ]);
        let file = model();
        let merged = merge(&file, &twice, &Weights::new());
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
        let lore = lore(&[("kube:west", "west", learned(&[], &[("shop.test", 80)]))]);
        let set = |host: &str, clusters: &[(&str, u32)]| {
            let clusters = clusters
                .iter()
                .map(|&(name, weight)| (name.to_owned(), weight))
                .collect();
            Weights::from([(host.to_owned(), clusters)])
        };
        let merged = merge(&model(), &lore, &set("shop.test", &[("east", 3), ("gone", 1)]));
        assert_eq!(shares(&merged, "shop.test"), Some(vec![("east", 3)]));
        let merged = merge(&model(), &lore, &set("shop.test", &[("gone", 1)]));
        assert_eq!(shares(&merged, "shop.test"), Some(vec![("west", 80)]));
        let merged = merge(&model(), &lore, &set("app.test", &[("west", 1)]));
        assert_eq!(
            shares(&merged, "app.test"),
            Some(vec![("west", 1)]),
            "also of the file's routes"
        );
    }
}
