//! Differences that a new model makes, for a person to read before the model is in force.

use std::collections::BTreeMap;
use std::fmt::Debug;

use serde::Serialize;

use crate::model::{Cluster, Host, Listener, Model, Route};

/// Difference between two models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelChange {
    /// Kind of the changed object: `listener`, `cluster`, `host`, `route` or `setting`.
    pub kind: &'static str,
    /// Name of the changed object.
    pub name: String,
    /// Present state; `None`: the object is new.
    pub before: Option<String>,
    /// State in the new model; `None`: the object is removed.
    pub after: Option<String>,
}

/// All differences: settings first, then by kind and name.
#[must_use]
pub fn diff(before: &Model, after: &Model) -> Vec<ModelChange> {
    let mut all = settings(before, after);
    all.extend(compare("listener", before, after, listeners));
    all.extend(compare("cluster", before, after, clusters));
    all.extend(compare("host", before, after, hosts));
    all.extend(compare("route", before, after, routes));
    all
}

fn compare(
    kind: &'static str,
    before: &Model,
    after: &Model,
    list: impl Fn(&Model) -> BTreeMap<String, String>,
) -> Vec<ModelChange> {
    let (mut old, new) = (list(before), list(after));
    let mut all = Vec::new();
    for (name, after) in new {
        let before = old.remove(&name);
        if before.as_ref() != Some(&after) {
            all.push(ModelChange {
                kind,
                name,
                before,
                after: Some(after),
            });
        }
    }
    all.extend(old.into_iter().map(|(name, before)| ModelChange {
        kind,
        name,
        before: Some(before),
        after: None,
    }));
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

fn settings(before: &Model, after: &Model) -> Vec<ModelChange> {
    let shown = |model: &Model| {
        // Each entry is a part of the file of its own.
        [
            ("admin", debug_text(&model.admin)),
            ("timeouts", debug_text(&model.timeouts)),
            ("limits", debug_text(&model.limits)),
            ("datapath", debug_text(&model.datapath)),
            ("store", debug_text(&(&model.store, &model.etcd))),
            ("balancers", debug_text(&model.balancers)),
            ("subset", debug_text(&model.subset)),
            ("metrics", debug_text(&model.metrics)),
            ("log", debug_text(&model.connection_log)),
            ("unmatched", unmatched_text(model)),
        ]
    };
    let pairs = shown(before).into_iter().zip(shown(after));
    pairs
        .filter(|((_, before), (_, after))| before != after)
        .map(|((name, before), (_, after))| ModelChange {
            kind: "setting",
            name: name.into(),
            before: Some(before),
            after: Some(after),
        })
        .collect()
}

fn debug_text(value: &impl Debug) -> String {
    format!("{value:?}")
}

/// Name of the cluster at an index: the index says nothing to a person, and may change where the cluster does not.
fn cluster_name(model: &Model, at: usize) -> &str {
    model.clusters.get(at).map_or("?", |cluster| &cluster.name)
}

fn unmatched_text(model: &Model) -> String {
    match model.unmatched {
        crate::model::Unmatched::Cluster(at) => format!("cluster {}", cluster_name(model, at)),
        other => debug_text(&other).to_lowercase(),
    }
}

fn listeners(model: &Model) -> BTreeMap<String, String> {
    let shown = |listener: &Listener| {
        let binds: Vec<_> = listener.listen.iter().map(ToString::to_string).collect();
        let cluster = listener.cluster.map(|at| cluster_name(model, at));
        let rest = (listener.routing, &listener.datapath, &listener.trusted_proxies);
        format!(
            "{} on {}{}, {rest:?}",
            listener.protocol.as_str(),
            binds.join(" "),
            cluster.map_or(String::new(), |name| format!(" to {name}"))
        )
    };
    model.listeners.iter().map(|l| (l.name.clone(), shown(l))).collect()
}

fn clusters(model: &Model) -> BTreeMap<String, String> {
    let shown = |cluster: &Cluster| {
        let bare = Cluster {
            name: String::new(),
            hosts: Vec::new(),
            ..cluster.clone()
        };
        debug_text(&bare)
    };
    model.clusters.iter().map(|c| (c.name.clone(), shown(c))).collect()
}

fn hosts(model: &Model) -> BTreeMap<String, String> {
    let shown = |host: &Host| {
        let ports = [("http", host.http), ("https", host.https), ("tcp", host.tcp)];
        let ports = ports
            .into_iter()
            .filter_map(|(name, port)| Some(format!(" {name}:{}", port?)))
            .chain(host.ports.iter().map(|(service, port)| format!(" {service}:{port}")));
        format!("{}{} weight {}", host.address, ports.collect::<String>(), host.weight)
    };
    let all = model.clusters.iter().flat_map(|cluster| {
        let name = move |host: &Host| format!("{}/{}", cluster.name, host.name);
        cluster.hosts.iter().map(move |host| (name(host), shown(host)))
    });
    all.collect()
}

fn routes(model: &Model) -> BTreeMap<String, String> {
    let shown = |route: &Route| {
        let shares = |clusters: &[(usize, u32)]| {
            let share = |&(at, weight): &(usize, u32)| format!("{}:{weight}", cluster_name(model, at));
            clusters.iter().map(share).collect::<Vec<_>>().join(" ")
        };
        let tls = route.tls.as_ref().map(|tls| format!("tls {tls:?}"));
        let rest = (!route.clusters.is_empty()).then(|| shares(&route.clusters));
        let paths = route
            .paths
            .iter()
            .map(|path| format!("{} {}", path.path, shares(&path.clusters)));
        rest.into_iter().chain(paths).chain(tls).collect::<Vec<_>>().join(", ")
    };
    model
        .routes
        .iter()
        .map(|r| (r.hostname.to_string(), shown(r)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::model;

    #[test]
    fn nothing_is_nothing_and_the_order_of_clusters_is_nothing_either() {
        assert_eq!(diff(&model(), &model()), []);
        let mut turned = model();
        turned.clusters.reverse();
        turned.routes[0].clusters = vec![(1, 10), (0, 80)];
        assert_eq!(diff(&model(), &turned), []);
    }

    #[test]
    fn each_difference_is_named_with_what_it_was_and_would_be() {
        let mut new = model();
        new.clusters[0].hosts[0].weight = 5;
        new.clusters[1].hosts.clear();
        new.routes[0].clusters = vec![(1, 1)];
        new.unmatched = crate::model::Unmatched::Cluster(1);
        let some = |text: &str| Some(text.to_owned());
        let change = |kind, name: &str, before, after| ModelChange {
            kind,
            name: name.into(),
            before,
            after,
        };
        let expected = [
            change("setting", "unmatched", some("any"), some("cluster west")),
            change(
                "host",
                "east/h1",
                some("10.0.0.1 http:80 https:443 weight 1"),
                some("10.0.0.1 http:80 https:443 weight 5"),
            ),
            change("host", "west/h3", some("10.0.0.3 http:80 https:443 weight 1"), None),
            change("route", "app.test", some("east:10 west:80"), some("west:1")),
        ];
        assert_eq!(diff(&model(), &new), expected);
    }
}
