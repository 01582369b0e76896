//! Rotation: subjects that operators have taken out get no new flow until they are taken in again.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::model::{Model, Route};

/// Subject: something that can be taken out of rotation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// Host of a cluster.
    Host {
        /// Name of the cluster.
        cluster: String,
        /// Name of the host.
        host: String,
    },
    /// Cluster: all its hosts, future ones included.
    Cluster(String),
    /// Application: a route, by its name or wildcard.
    Application(String),
    /// Gear: all its endpoints, in any cluster.
    Gear(String),
    /// Machine: every host at an IP address, in any cluster, future ones included.
    Machine(IpAddr),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host { cluster, host } => write!(f, "host:{cluster}/{host}"),
            Self::Cluster(name) => write!(f, "cluster:{name}"),
            Self::Application(name) => write!(f, "application:{name}"),
            Self::Gear(id) => write!(f, "gear:{id}"),
            Self::Machine(address) => write!(f, "machine:{address}"),
        }
    }
}

/// Error of a name that is no subject.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    /// Nothing has the name.
    #[error("there is no host, cluster, application or gear {0:?}")]
    Unknown(String),
    /// The text for a machine is no IP address.
    #[error("{0:?} is not a machine's IP address; write it such as 10.2.0.2 or 2001:db8::2")]
    Address(String),
    /// Several subjects have the name.
    #[error("{name:?} can be {}; write one of these", .all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or "))]
    Ambiguous {
        /// Ambiguous name.
        name: String,
        /// Subjects that have the name.
        all: Vec<Subject>,
    },
}

/// Whether a host is an endpoint of a gear: it is named by the gear's id, a dot and the port's name, and its cluster is
/// an application, `NAMESPACE/APP`.
#[must_use]
pub fn is_of_gear(cluster: &str, host: &str, gear: &str) -> bool {
    let rest = host.strip_prefix(gear).filter(|_| cluster.contains('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

impl Subject {
    /// Finds the subject of a name: `east-1`, `east/east-1`, `east`, `app.example.com`, a gear's id. An ambiguous name
    /// needs its kind in front, as subjects are displayed. A machine always needs its kind, and need not have a host
    /// yet.
    pub fn parse(text: &str, model: &Model) -> Result<Self, SubjectError> {
        if let Some(address) = text.strip_prefix("machine:") {
            let parsed = address.parse::<IpAddr>().map(|address| address.to_canonical());
            return parsed
                .map(Self::Machine)
                .map_err(|_| SubjectError::Address(address.to_owned()));
        }
        let (kind, name) = match text.split_once(':') {
            Some((kind @ ("host" | "cluster" | "application" | "gear"), name)) => (Some(kind), name),
            _ => (None, text),
        };
        let wanted = |this: &str| kind.is_none_or(|kind| kind == this);
        let mut all = Vec::new();
        let mut gear = false;
        for cluster in &model.clusters {
            if wanted("cluster") && cluster.name == name {
                all.push(Self::Cluster(name.to_owned()));
            }
            for host in &cluster.hosts {
                let full = || {
                    name.strip_prefix(&*cluster.name)
                        .and_then(|rest| rest.strip_prefix('/'))
                };
                if wanted("host") && (host.name == name || full() == Some(&*host.name)) {
                    all.push(Self::Host {
                        cluster: cluster.name.clone(),
                        host: host.name.clone(),
                    });
                }
                gear |= is_of_gear(&cluster.name, &host.name, name) && (kind.is_some() || host.name != name);
            }
        }
        if gear && wanted("gear") {
            all.push(Self::Gear(name.to_owned()));
        }
        let folded = name.to_ascii_lowercase();
        if wanted("application") && model.routes.iter().any(|route| route.hostname.to_string() == folded) {
            all.push(Self::Application(folded));
        }
        match <[Self; 1]>::try_from(all) {
            Ok([one]) => Ok(one),
            Err(none) if none.is_empty() => Err(SubjectError::Unknown(text.to_owned())),
            Err(all) => Err(SubjectError::Ambiguous {
                name: text.to_owned(),
                all,
            }),
        }
    }

    /// Whether the subject takes out this host at this address.
    #[must_use]
    pub fn takes_out(&self, cluster: &str, host: &str, address: IpAddr) -> bool {
        match self {
            Self::Machine(machine) => *machine == address.to_canonical(),
            other => other.covers(cluster, host),
        }
    }

    /// Whether the subject means this host by its names. A machine has none; [`Self::takes_out`] compares addresses.
    #[must_use]
    pub fn covers(&self, cluster: &str, host: &str) -> bool {
        match self {
            Self::Host { cluster: c, host: h } => c == cluster && h == host,
            // An application also has the clusters of its exposed services.
            Self::Cluster(name) => {
                let rest = cluster.strip_prefix(name.as_str());
                rest.is_some_and(|rest| rest.is_empty() || (rest.starts_with(':') && name.contains('/')))
            }
            Self::Gear(id) => is_of_gear(cluster, host, id),
            Self::Application(_) | Self::Machine(_) => false,
        }
    }
}

/// Record of a subject that is out of rotation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RotatedOut {
    /// Time since when the subject is out, in seconds since 1970.
    pub since: u64,
    /// Job that took the subject out.
    pub job: u64,
    /// Time when remaining flows are closed, in milliseconds since 1970.
    #[serde(default)]
    pub until: u64,
    /// Reason that the operator gave; empty where none was given.
    #[serde(default)]
    pub reason: String,
    /// Operator who took the subject out; empty in records from before this was noted.
    #[serde(default)]
    pub by: String,
}

/// All subjects that are out of rotation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rotation(pub BTreeMap<Subject, RotatedOut>);

impl Rotation {
    /// Whether a host gets no new flow.
    #[must_use]
    pub fn is_out(&self, cluster: &str, host: &str, address: IpAddr) -> bool {
        self.taken_out_by(cluster, host, address).is_some()
    }

    /// Subject that takes a host out, if any.
    #[must_use]
    pub fn taken_out_by(&self, cluster: &str, host: &str, address: IpAddr) -> Option<&Subject> {
        self.0.keys().find(|subject| subject.takes_out(cluster, host, address))
    }

    /// Whether a route gets no new flow.
    #[must_use]
    pub fn is_closed(&self, route: &Route) -> bool {
        // The table is nearly always empty, and building the subject would be wasted work.
        !self.0.is_empty() && self.0.contains_key(&Subject::Application(route.hostname.to_string()))
    }
}

/// Returns whether one of the subjects covers a flow. Machines cover none: they are replaced
/// by their hosts before.
#[must_use]
pub fn covers(subjects: &[Subject], cluster: &str, host: &str, route: Option<&str>) -> bool {
    subjects.iter().any(|subject| match subject {
        Subject::Application(name) => route == Some(name),
        other => other.covers(cluster, host),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::view::tests::model;

    fn host(cluster: &str, host: &str) -> Subject {
        Subject::Host {
            cluster: cluster.into(),
            host: host.into(),
        }
    }

    #[test]
    fn a_name_is_what_it_can_only_be() {
        let mut model = model();
        assert_eq!(Subject::parse("h1", &model), Ok(host("east", "h1")));
        assert_eq!(Subject::parse("east/h1", &model), Ok(host("east", "h1")));
        assert_eq!(Subject::parse("host:east/h1", &model), Ok(host("east", "h1")));
        assert_eq!(Subject::parse("west", &model), Ok(Subject::Cluster("west".into())));
        let app = Subject::Application("app.test".into());
        assert_eq!(Subject::parse("App.test", &model), Ok(app));
        let unknown = Err(SubjectError::Unknown("west/h1".into()));
        assert_eq!(Subject::parse("west/h1", &model), unknown);
        assert_eq!(
            Subject::parse("gear:none", &model),
            Err(SubjectError::Unknown("gear:none".into()))
        );
        model.clusters[1].hosts[0].name = "h1".into();
        model.clusters[0].hosts[1].name = "5f3c.haproxy".into();
        model.clusters[0].name = "shop/web".into();
        let both = vec![host("shop/web", "h1"), host("west", "h1")];
        let ambiguous = Subject::parse("h1", &model).unwrap_err();
        assert_eq!(
            ambiguous.to_string(),
            "\"h1\" can be host:shop/web/h1 or host:west/h1; write one of these"
        );
        assert_eq!(
            ambiguous,
            SubjectError::Ambiguous {
                name: "h1".into(),
                all: both
            }
        );
        assert_eq!(Subject::parse("5f3c", &model), Ok(Subject::Gear("5f3c".into())));
        for subject in [
            host("shop/web", "h1"),
            Subject::Cluster("west".into()),
            Subject::Gear("5f3c".into()),
        ] {
            assert_eq!(
                Subject::parse(&subject.to_string(), &model),
                Ok(subject),
                "as it is displayed"
            );
        }
    }

    #[test]
    fn an_application_out_of_rotation_is_out_wherever_it_is_exposed() {
        let of = |cluster: &str| Subject::Cluster("shop/db".into()).covers(cluster, "g.mysql");
        assert!(of("shop/db") && of("shop/db:mysql"));
        assert!(!of("shop/db2") && !of("shop/db2:mysql") && !of("shop"));
        let alone = Subject::Cluster("shop/db:mysql".into());
        assert!(alone.covers("shop/db:mysql", "g.mysql") && !alone.covers("shop/db", "g.mysql"));
        assert!(Subject::Gear("g".into()).covers("shop/db:mysql", "g.mysql"));
    }

    #[test]
    fn a_machine_is_every_host_at_its_address_in_whatever_spelling() {
        let machine = Subject::parse("machine:::ffff:10.0.0.1", &model()).unwrap();
        assert_eq!(machine, Subject::Machine([10, 0, 0, 1].into()));
        assert_eq!(Subject::parse(&machine.to_string(), &model()), Ok(machine.clone()));
        let mapped = "::ffff:10.0.0.1".parse().unwrap();
        assert!(machine.takes_out("east", "h1", [10, 0, 0, 1].into()) && machine.takes_out("west", "x", mapped));
        assert!(!machine.takes_out("east", "h1", [10, 0, 0, 2].into()) && !machine.covers("east", "h1"));
        assert!(host("east", "h1").takes_out("east", "h1", [10, 0, 0, 2].into()));
        let error = Subject::parse("machine:east-1", &model()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "\"east-1\" is not a machine's IP address; write it such as 10.2.0.2 or 2001:db8::2"
        );
    }

    #[test]
    fn a_gear_is_all_of_its_endpoints_and_no_other() {
        let gear = Subject::Gear("5f3c".into());
        assert!(gear.covers("a/b", "5f3c.haproxy") && gear.covers("b/c", "5f3c"));
        assert!(!gear.covers("a/b", "5f3cc.haproxy") && !gear.covers("a", "5f3c.haproxy"));
    }
}
