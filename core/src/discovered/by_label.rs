//! Labels of names: those of the file's routes, and of the objects that sources know.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::discovered::discovery::Discovered;
use crate::model::Model;
use crate::model::labels::Labels;
use crate::wire::hostname::HostnamePattern;

/// Labels of every claim to a name: of the file's route, and of the objects of every cluster that accepts discovery.
///
/// A route of the file that leaves its clusters to be discovered is no claim: it counts only if it has labels.
#[must_use]
pub fn by_name<'a>(
    file: &'a Model,
    discovered: &'a Discovered,
) -> HashMap<&'a HostnamePattern, Vec<&'a Labels>, FixedState> {
    let mut names: HashMap<_, Vec<_>, _> = HashMap::with_hasher(FixedState::default());
    for route in &file.routes {
        if !route.is_discovered() || !route.labels.is_empty() {
            names.entry(&route.hostname).or_default().push(&route.labels);
        }
    }
    let learned = discovered
        .values()
        .flatten()
        .filter(|(cluster, _)| file.accepts_discovery(cluster));
    for claim in learned.flat_map(|(_, learned)| &learned.routes) {
        names.entry(&claim.hostname).or_default().extend(claim.labels.iter());
    }
    names
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::discovered::discovery::{Claim, ClusterDiscovery};
    use crate::model::Route;
    use crate::model::labels::Selector;
    use crate::wire::hostname::WildcardDepth;

    fn labels(text: &str) -> Labels {
        let pairs = text.split_whitespace().map(|pair| pair.split_once('=').unwrap());
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn claim(host: &str, all: &[&str]) -> Claim {
        Claim {
            hostname: HostnamePattern::parse(host).unwrap(),
            depth: WildcardDepth::Any,
            weight: None,
            owner: "shop".into(),
            since: 1,
            origin: format!("Route shop/{host}"),
            notes: Vec::new(),
            settings: Vec::new(),
            labels: all.iter().map(|text| labels(text)).collect(),
            termination: None,
            is_edge: false,
            insecure: crate::model::tls::InsecurePolicy::Allow,
            certificate: None,
        }
    }

    fn route(host: &str, clusters: &[(usize, u32)], text: &str) -> Route {
        Route {
            hostname: HostnamePattern::parse(host).unwrap(),
            depth: WildcardDepth::Any,
            clusters: clusters.to_vec(),
            drain: None,
            prefer: Vec::new(),
            labels: labels(text),
            tls: None,
            claimed_termination: None,
            claimed: None,
            allow: None,
            connections: None,
            paths: Vec::new(),
            requests: Default::default(),
        }
    }

    #[test]
    fn a_name_is_selected_if_one_of_its_claims_is() {
        let mut file = crate::routing::view::tests::model();
        (file.clusters[0].learn, file.clusters[1].learn) = (true, false);
        file.routes = vec![
            route("file.test", &[(0, 1)], "app=file"),
            route("bare.test", &[(0, 1)], ""),
            route("both.test", &[(0, 1)], "tier=web"),
            // Routes without clusters: only their labels are counted.
            route("learnt.test", &[], ""),
            route("more.test", &[], "team=blue"),
        ];
        let learned = |claims: &[Claim]| {
            let routes = claims.to_vec();
            Arc::new(ClusterDiscovery {
                routes,
                ..ClusterDiscovery::default()
            })
        };
        let (east, west, new) = (
            learned(&[
                claim("learnt.test", &["app=shop tier=web"]),
                claim("paths.test", &["app=shop", "tier=batch"]),
                claim("both.test", &["tier=batch"]),
                claim("more.test", &["app=shop"]),
            ]),
            learned(&[claim("file.test", &["app=west"])]),
            learned(&[claim("learnt.test", &["app=bank"])]),
        );
        let source = |all: &[(&str, &Arc<ClusterDiscovery>)]| {
            let clusters = all
                .iter()
                .map(|(name, learned)| ((*name).to_owned(), Arc::clone(learned)));
            clusters.collect()
        };
        let discovered = Discovered::from([
            ("agent:east".to_owned(), source(&[("east", &east), ("west", &west)])),
            ("api".to_owned(), source(&[("new", &new)])),
        ]);
        let names = by_name(&file, &discovered);
        let selected = |text: &str| {
            let selector = Selector::parse(text).unwrap();
            let is_selected = |sets: &Vec<&Labels>| selector.matches_any(sets);
            let mut hosts: Vec<_> = names
                .iter()
                .filter(|(_, sets)| is_selected(sets))
                .map(|(host, _)| host.to_string())
                .collect();
            hosts.sort();
            hosts.join(" ")
        };
        assert_eq!(selected("app=shop"), "learnt.test more.test paths.test");
        assert_eq!(selected("app=bank"), "learnt.test", "a second cluster's claim");
        assert_eq!(selected("app=west"), "", "a cluster that does not learn claims nothing");
        assert_eq!(selected("app=file"), "file.test");
        assert_eq!(selected("tier in (web),tier!=batch"), "both.test learnt.test");
        assert_eq!(selected("app=shop,tier=batch"), "", "not by two objects together");
        assert_eq!(selected("team=blue"), "more.test");
        assert_eq!(selected("!app"), "bare.test both.test more.test paths.test");
    }
}
