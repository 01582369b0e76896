//! Orders and reports of a migration's steps between the balancers of a set.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use signalbox_core::availability::migration::guard::QualityFigures;
use signalbox_core::discovered::merge::{ClusterWeights, TesterOverrides};
use signalbox_core::model::Model;

/// Path at which balancers receive orders from the balancer that runs the migration.
pub const FOLLOW_PATH: &str = "/api/v1/migrations/follow";

/// Order to another balancer: the weights and testers that it must apply.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StepOrder {
    /// Number of the migration on the balancer that sends the order.
    pub migration: u64,
    pub from: String,
    pub to: String,
    /// Weights of each name; null: no weights by operators.
    pub weights: BTreeMap<String, Option<ClusterWeights>>,
    #[serde(default)]
    pub testers: TesterOverrides,
    /// False to get only the differing weights, without setting any.
    pub set: bool,
}

/// Answer of another balancer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StepReport {
    /// Number of the process to which the counts belong.
    pub process: u64,
    /// Figures of the names in the old and in the new cluster.
    pub old: QualityFigures,
    pub new: QualityFigures,
    /// Whether the new cluster has a host that accepts connections.
    pub is_usable: bool,
    /// Names with other weights.
    pub differing: Vec<String>,
    /// Names without a route.
    pub unknown: Vec<String>,
}

/// Counts of a balancer since its first report, across restarts of its process and names that go.
#[derive(Clone, Debug, Default)]
pub struct PeerCounts {
    process: Option<u64>,
    last: [QualityFigures; 2],
    pub counted: [QualityFigures; 2],
}

impl PeerCounts {
    /// Adds the counts of the old and the new cluster since the last report of the process.
    pub fn add(&mut self, process: u64, figures: [&QualityFigures; 2]) {
        let now = figures.map(Clone::clone);
        let since = match self.process {
            Some(known) if known == process => &self.last,
            Some(_) => &<[QualityFigures; 2]>::default(),
            // Counts from before the migration are left out.
            None => &now,
        };
        for (at, counted) in self.counted.iter_mut().enumerate() {
            *counted = counted.plus(&now[at].since(&since[at]));
        }
        (self.process, self.last) = (Some(process), now);
    }
}

/// Answers of all other balancers to one order.
#[derive(Debug, Default)]
pub struct PeerReports {
    pub reports: Vec<(String, StepReport)>,
    /// Balancers that have not answered, with the reasons.
    pub silent: Vec<String>,
}

impl PeerReports {
    /// Names whose weights differ from the order, with their balancers.
    #[must_use]
    pub fn differing(&self) -> Vec<String> {
        let differ = |(url, report): &(String, StepReport)| Some(format!("{} at {url}", report.differing.first()?));
        self.reports.iter().filter_map(differ).collect()
    }

    /// Returns the first balancer on which the new cluster has no host.
    #[must_use]
    pub fn unusable(&self) -> Option<&str> {
        let mut all = self.reports.iter();
        all.find(|(_, report)| !report.is_usable).map(|(url, _)| url.as_str())
    }

    /// Balancers on which a step is not applied yet.
    #[must_use]
    pub fn waits_for(&self) -> Vec<String> {
        self.silent.iter().cloned().chain(self.differing()).collect()
    }
}

/// Returns an error if nodes that may get the addresses would keep the old weights, otherwise `None`.
pub(super) fn forgotten_nodes(model: &Model) -> Option<String> {
    let nodes = model.ha.as_ref().map_or(0, |ha| ha.nodes.len());
    let told = model.balancers.len() + 1;
    (model.etcd.is_none() && nodes > told).then(|| {
        format!(
            "{nodes} nodes share the addresses, and this balancer knows the API of {told}, its own included: a node that \
             is not told keeps the old weights. Name the others in `balancers`, or share a table in etcd (`store`); \
             --only-here moves the names here alone"
        )
    })
}

/// Sums the counts of a set: those of this balancer and of all others.
pub(super) fn plus_peers(own: &PeerCounts, peers: &BTreeMap<String, PeerCounts>) -> [QualityFigures; 2] {
    peers.values().fold(own.counted.clone(), |sum, peer| {
        let [old, new] = &peer.counted;
        [sum[0].plus(old), sum[1].plus(new)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(process: u64, old: u64, new: u64) -> StepReport {
        let connects = |connects| QualityFigures {
            connects,
            ..QualityFigures::default()
        };
        StepReport {
            process,
            old: connects(old),
            new: connects(new),
            is_usable: true,
            differing: Vec::new(),
            unknown: Vec::new(),
        }
    }

    #[test]
    fn a_peers_counts_start_at_its_first_report_and_survive_restart() {
        let mut counts = PeerCounts::default();
        let mut after = |report: StepReport| {
            counts.add(report.process, [&report.old, &report.new]);
            (counts.counted[0].connects, counts.counted[1].connects)
        };
        assert_eq!(after(report(1, 1000, 50)), (0, 0), "what went before does not count");
        assert_eq!(after(report(1, 1010, 53)), (10, 3));
        assert_eq!(after(report(2, 4, 1)), (14, 4), "another process has begun at nothing");
        assert_eq!(after(report(2, 5, 1)), (15, 4));
        assert_eq!(after(report(2, 1, 1)), (15, 4), "a name has gone, and its counts stay");
        assert_eq!(after(report(2, 3, 2)), (17, 5));
    }

    #[test]
    fn nodes_that_share_addresses_must_be_told() {
        let forgotten = |more: &str| {
            let text = format!(
                "version: 1\nlisteners: [{{ name: tcp, protocol: tcp, listen: [\"127.0.0.1:9\"], cluster: east }}]\n\
                 clusters: [{{ name: east, hosts: [{{ name: east-1, address: 127.0.0.1, tcp: 9 }}] }}]\n{more}"
            );
            forgotten_nodes(&crate::config::parse(&text).unwrap().model)
        };
        let ha = "ha:\n  name: pair\n  nodes: [{ name: a, address: 10.1.0.11 }, { name: b, address: 10.1.0.12 }]\n  \
                  groups: [{ name: g1, vips: 10.1.0.101 }]\n";
        let other = "balancers: [{ url: \"http://10.1.0.12:8089\", token_file: /t }]\n";
        let etcd = "store: { etcd: { endpoints: [\"http://10.1.0.9:2379\"] } }\n";
        assert_eq!(forgotten(""), None);
        let why = forgotten(ha).unwrap();
        assert!(
            why.contains("2 nodes share the addresses") && why.contains("`balancers`"),
            "{why}"
        );
        assert_eq!(forgotten(&format!("{ha}{other}")), None);
        assert_eq!(forgotten(&format!("{ha}{etcd}")), None);
    }

    #[test]
    fn balancers_that_keep_a_step_from_being_in_force_are_named() {
        let mut all = PeerReports::default();
        assert!(all.waits_for().is_empty() && all.unusable().is_none());
        let mut other = report(1, 0, 0);
        (other.differing, other.is_usable) = (vec!["a.test".into()], false);
        all.reports = vec![("http://b:1".into(), report(1, 0, 0)), ("http://c:1".into(), other)];
        all.silent = vec!["http://d:1 does not answer".into()];
        assert_eq!(all.waits_for(), ["http://d:1 does not answer", "a.test at http://c:1"]);
        assert_eq!(all.unusable(), Some("http://c:1"));
    }
}
