//! Age of names: if several clusters claim a name, the cluster that has had it longest keeps it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use signalbox_core::discovered::discovery::ClusterDiscovery;
use signalbox_core::wire::hostname::HostnamePattern;

/// Time that a name may be missing and keep its age: some tools delete a Route and create it again.
const RETURN_TIMEOUT: Duration = Duration::from_secs(600);

/// Names that clusters have lost recently, with their age.
#[derive(Default)]
pub(super) struct RecentlyGone(HashMap<String, HashMap<HostnamePattern, (u64, Instant)>>);

impl RecentlyGone {
    /// Dates the names that a source reports: by their known age, by their own dates, or by the current time.
    pub(super) fn with_since(
        &self,
        cluster: &str,
        known: Option<&Arc<ClusterDiscovery>>,
        what: Arc<ClusterDiscovery>,
    ) -> Arc<ClusterDiscovery> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let claims = known.iter().flat_map(|known| &known.routes);
        let known: HashMap<&HostnamePattern, u64> = claims.map(|claim| (&claim.hostname, claim.since)).collect();
        let gone = self.0.get(cluster);
        let mut what = what;
        for claim in &mut Arc::make_mut(&mut what).routes {
            let lately = gone.and_then(|gone| gone.get(&claim.hostname));
            let lately = lately
                .filter(|(_, when)| when.elapsed() < RETURN_TIMEOUT)
                .map(|(since, _)| *since);
            let before = known.get(&claim.hostname).copied().or(lately);
            let said = (claim.since != 0).then_some(claim.since);
            claim.since = match (before, said) {
                (Some(before), Some(said)) => before.min(said),
                (before, said) => before.or(said).unwrap_or(now),
            };
        }
        what
    }

    /// Remembers names that were removed.
    pub(super) fn remember_gone(&mut self, cluster: &str, before: &ClusterDiscovery, now: Option<&ClusterDiscovery>) {
        let still: std::collections::HashSet<&HostnamePattern> = now
            .iter()
            .flat_map(|now| &now.routes)
            .map(|claim| &claim.hostname)
            .collect();
        let when = Instant::now();
        let left: Vec<_> = before
            .routes
            .iter()
            .filter(|claim| !still.contains(&claim.hostname))
            .collect();
        if left.is_empty() {
            return;
        }
        let gone = self.0.entry(cluster.to_owned()).or_default();
        gone.retain(|_, (_, when)| when.elapsed() < RETURN_TIMEOUT);
        gone.extend(
            left.into_iter()
                .map(|claim| (claim.hostname.clone(), (claim.since, when))),
        );
    }
}

#[cfg(test)]
mod tests {
    use signalbox_core::discovered::discovery::Claim;

    use super::*;

    fn told(since: u64) -> Arc<ClusterDiscovery> {
        let claim = Claim {
            hostname: HostnamePattern::parse("app.test").unwrap(),
            depth: signalbox_core::wire::hostname::WildcardDepth::Any,
            weight: None,
            owner: "shop".into(),
            since,
            origin: "Route shop/web".into(),
            notes: Vec::new(),
            settings: Vec::new(),
            labels: signalbox_core::model::labels::LabelSets::default(),
            termination: None,
            is_edge: false,
            insecure: signalbox_core::model::tls::InsecurePolicy::Allow,
            certificate: None,
        };
        Arc::new(ClusterDiscovery {
            routes: vec![claim],
            ..ClusterDiscovery::default()
        })
    }

    #[test]
    fn a_route_that_is_made_anew_has_not_come_later() {
        let mut gone = RecentlyGone::default();
        let first = gone.with_since("v1", None, told(100));
        assert_eq!(first.routes[0].since, 100);
        gone.remember_gone("v1", &first, None);
        assert_eq!(gone.with_since("v1", None, told(500)).routes[0].since, 100);
        assert_eq!(
            gone.with_since("v2", None, told(500)).routes[0].since,
            500,
            "another cluster's"
        );
        assert_eq!(
            gone.with_since("v1", Some(&first), told(500)).routes[0].since,
            100,
            "in place"
        );
    }

    #[test]
    fn an_undated_name_is_dated_by_its_first_report() {
        let gone = RecentlyGone::default();
        let first = gone.with_since("v1", None, told(0));
        assert!(first.routes[0].since > 1_700_000_000);
        assert_eq!(
            gone.with_since("v1", Some(&first), told(0)),
            first,
            "and reported again it is no news"
        );
    }
}
