//! Session affinity: which cluster or host a client's cookie names.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::model::{Cluster, Model};

/// Length of a cookie's value in bytes: 64 bits as hexadecimal digits.
const VALUE_BYTES: usize = 16;

/// Cluster that a cookie names, with the host if it names one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stickiness {
    /// Index of the cluster.
    pub cluster: usize,
    /// Index of the host in the cluster.
    pub host: Option<u16>,
}

/// Clusters and hosts by the values of cookies. Empty where no route has an affinity.
#[derive(Debug, Default)]
pub struct AffinityTable(HashMap<u64, Stickiness, FixedState>);

impl AffinityTable {
    /// Builds the table of a model's clusters and hosts.
    #[must_use]
    pub fn new(model: &Model) -> Self {
        if !model
            .routes
            .iter()
            .any(|route| route.policies().any(|policy| policy.affinity.is_some()))
        {
            return Self::default();
        }
        let of_cluster = |(cluster, configured): (usize, &Cluster)| {
            let name = &configured.name;
            let hosts = (0..)
                .zip(&configured.hosts)
                .map(|(host, of)| (hash(name, Some(&of.name)), Some(host)));
            let all: Vec<_> = hosts.chain([(hash(name, None), None)]).collect();
            all.into_iter()
                .map(move |(value, host)| (value, Stickiness { cluster, host }))
        };
        Self(model.clusters.iter().enumerate().flat_map(of_cluster).collect())
    }

    /// Cluster and host of a cookie's value; `None` if it is not one of [`cookie_value`] for these clusters.
    #[must_use]
    pub fn find(&self, value: &[u8]) -> Option<Stickiness> {
        let digits = std::str::from_utf8(value)
            .ok()
            .filter(|text| text.len() == VALUE_BYTES)?;
        self.0.get(&u64::from_str_radix(digits, 16).ok()?).copied()
    }
}

/// Value of the cookie for a cluster, or for a host in it. It is equal on every balancer and after a restart, and tells
/// clients neither names nor addresses.
#[must_use]
pub fn cookie_value(cluster: &str, host: Option<&str>) -> String {
    format!("{:016x}", hash(cluster, host))
}

/// Hash of a cluster's name, or of those of a cluster and a host. No name has a NUL.
fn hash(cluster: &str, host: Option<&str>) -> u64 {
    let host = host.map(|host| format!("\0{host}")).unwrap_or_default();
    signalbox_common::hash::bytes(0, format!("{cluster}{host}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::http::{AffinityScope, CookieAffinity, RequestPolicy};
    use crate::routing::view::tests::model;

    #[test]
    fn a_value_finds_what_it_was_made_for() {
        let mut model = model();
        let value = cookie_value("east", Some("h2"));
        assert_eq!(
            AffinityTable::new(&model).find(value.as_bytes()),
            None,
            "no route has an affinity"
        );
        model.routes[0].requests = RequestPolicy {
            affinity: Some(CookieAffinity {
                cookie: crate::wire::http::cookie::StickyCookie::new("sb", None).unwrap(),
                scope: AffinityScope::Host,
            }),
            ..RequestPolicy::default()
        };
        let table = AffinityTable::new(&model);
        for (cluster, host, expected) in [("east", Some("h2"), (0, Some(1))), ("west", None, (1, None))] {
            let (cluster_index, host_index) = expected;
            let found = table.find(cookie_value(cluster, host).as_bytes());
            assert_eq!(
                found,
                Some(Stickiness {
                    cluster: cluster_index,
                    host: host_index
                })
            );
        }
        for other in [
            "",
            "east",
            "+123456789abcdef",
            "zzzzzzzzzzzzzzzz",
            &cookie_value("north", None),
            &value[1..],
        ] {
            assert_eq!(table.find(other.as_bytes()), None, "{other:?}");
        }
        assert_eq!(
            cookie_value("east", None),
            "f1026e28e6f84d07",
            "cookies outlive versions"
        );
    }
}
