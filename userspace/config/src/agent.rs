//! The file of `signalbox agent`: the cluster, its API server, and the balancers that the agent reports to.
//!
//! ```yaml
//! version: 1
//! cluster: east
//! kubernetes: { in_cluster: true }
//! balancers: [ { url: "https://balancer-1:8089", ca: /etc/signalbox/ca.pem, token_file: /etc/signalbox/token } ]
//! ```

use signalbox_core::model::agent::Agent;
use signalbox_core::model::kubernetes::KubernetesSource;

use super::map::MapDecoder;
use super::node::NodeRef;
use super::read::read;
use super::report::Report;
use super::{ConfigErrors, balancers, check_version, kubernetes};

/// Parses the file; on failure, with all of its mistakes.
pub fn parse(text: &str) -> Result<Agent, ConfigErrors> {
    let mut report = Report::default();
    let required = "`version`, `cluster`, `kubernetes` and `balancers`";
    let parsed = read(text, required, &mut report).and_then(|root| decode(&NodeRef::root(&root), &mut report));
    match parsed {
        Some(agent) if report.is_clean() => Ok(agent),
        _ => Err(report.into_errors(text)),
    }
}

fn decode(root: &NodeRef<'_>, report: &mut Report) -> Option<Agent> {
    let mut map = MapDecoder::open(root, report)?;
    let version = map.require("version");
    let cluster = map.require("cluster");
    let kubernetes_at = map.require("kubernetes");
    let balancers_at = map.require("balancers");
    map.finish(report);
    if let Some(version) = version {
        check_version(&version, report);
    }
    let cluster = cluster.and_then(|place| place.name(report).map(str::to_owned));
    let source: Option<KubernetesSource> = kubernetes_at
        .as_ref()
        .and_then(|place| kubernetes::source(place, report));
    if source.as_ref().is_some_and(|source| source.certificates)
        && let Some(place) = &kubernetes_at
    {
        let message =
            "an agent sends no private keys: leave `certificates` out. It is for a balancer that watches the cluster";
        place.error(report, message);
    }
    let balancers = balancers::decode_all(balancers_at.as_ref(), report)?;
    if balancers.is_empty()
        && let Some(place) = &balancers_at
    {
        place.error(report, "an agent reports to at least one balancer: name one");
    }
    Some(Agent {
        cluster: cluster?,
        source: source?,
        balancers,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_understood_or_all_its_mistakes_are_named() {
        let agent = parse(
            "version: 1\ncluster: east\nkubernetes: { in_cluster: true }\nbalancers:\n  - { url: \"https://b1:8089\", ca: /ca, token_file: /t }\n",
        )
        .unwrap();
        assert_eq!((agent.cluster.as_str(), agent.balancers.len()), ("east", 1));
        let errors = parse("version: 1\ncluster: e/f\nkubernetes: {}\nbalancers:\n  - { url: ftp://x }\n  - { url: \"http://x:1\", cert: /c }\n")
            .unwrap_err()
            .to_string();
        for part in [
            "is not a name",
            "exactly one of",
            "is not a URL",
            "`cert` and `key` go together: give both or neither",
        ] {
            assert!(errors.contains(part), "no {part:?} in {errors}");
        }
        let errors = parse("version: 1\ncluster: e\nkubernetes: { in_cluster: true }\nbalancers: []\n").unwrap_err();
        assert!(errors.to_string().contains("at least one balancer"));
        let errors = parse(
            "version: 1\ncluster: e\nkubernetes: { in_cluster: true, certificates: true }\nbalancers: [{ url: 'http://x:1', token_file: /t }]\n",
        );
        assert!(errors.unwrap_err().to_string().contains("sends no private keys"));
        let errors = parse("").unwrap_err().to_string();
        assert!(
            errors.contains("it needs `version`, `cluster`, `kubernetes` and"),
            "{errors}"
        );
    }
}
