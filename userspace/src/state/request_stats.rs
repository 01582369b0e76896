//! Requests of a listener, by cluster and class of the status code. Workers add to atomics and take no lock.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use signalbox_core::limits::stats::{Counter, Gauge};

/// Classes of status codes: metric labels.
pub const CODE_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Requests of a listener that went to one cluster.
#[derive(Debug, Default)]
struct ClusterRequests {
    /// Name of the cluster; empty for requests without one.
    cluster: String,
    by_class: [Counter; CODE_CLASSES.len()],
    /// Requests whose answers the kernel carries: their status codes are unknown.
    cut: Counter,
}

/// Metric label of cut requests, instead of a class.
const CUT_LABEL: &str = "cut";

/// HTTP/2 of a listener's clients, or to a cluster's hosts.
#[derive(Debug, Default)]
pub struct Http2Stats {
    pub connections: Counter,
    /// Messages with malformed fields, each of which has ended its stream.
    pub malformed: Counter,
    /// Open streams.
    pub streams: Gauge,
}

/// Requests of a listener.
#[derive(Debug, Default)]
pub struct RequestStats(ArcSwapOption<Vec<Arc<ClusterRequests>>>);

impl RequestStats {
    /// Counts an answered request. `cluster` is empty if the request had none.
    pub fn count(&self, cluster: &str, status: u16) {
        let class = usize::from(status / 100).clamp(1, CODE_CLASSES.len()) - 1;
        self.inc(cluster, |counts| &counts.by_class[class]);
    }

    /// Counts a cut request.
    pub fn count_cut(&self, cluster: &str) {
        self.inc(cluster, |counts| &counts.cut);
    }

    fn inc(&self, cluster: &str, counter: impl Fn(&ClusterRequests) -> &Counter) {
        let find = || {
            let known = self.0.load();
            let mut all = known.iter().flat_map(|all| all.iter());
            all.find(|counts| counts.cluster == cluster)
                .map(|counts| counter(counts).inc())
        };
        if find().is_some() {
            return;
        }
        self.0.rcu(|known| {
            let mut all = known.as_deref().cloned().unwrap_or_default();
            if !all.iter().any(|counts| counts.cluster == cluster) {
                all.push(Arc::new(ClusterRequests {
                    cluster: cluster.to_owned(),
                    ..ClusterRequests::default()
                }));
            }
            Some(Arc::new(all))
        });
        find();
    }

    /// Requests by cluster and class, with `cut` for cut ones. Counts of 0 are left out.
    #[must_use]
    pub fn get(&self) -> Vec<(String, &'static str, u64)> {
        let known = self.0.load();
        let all = known.iter().flat_map(|all| all.iter());
        let by_class = |counts: &Arc<ClusterRequests>| {
            let numbers = CODE_CLASSES
                .into_iter()
                .zip(counts.by_class.each_ref().map(Counter::get))
                .chain([(CUT_LABEL, counts.cut.get())]);
            let used = numbers.filter(|(_, n)| *n > 0);
            used.map(|(class, n)| (counts.cluster.clone(), class, n))
                .collect::<Vec<_>>()
        };
        all.flat_map(by_class).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_cluster_and_class() {
        let stats = RequestStats::default();
        for (cluster, status) in [("east", 200), ("west", 503), ("east", 204), ("", 404), ("east", 999)] {
            stats.count(cluster, status);
        }
        stats.count_cut("west");
        let mut all = stats.get();
        all.sort();
        let named = |cluster: &str, class, n| (cluster.to_owned(), class, n);
        assert_eq!(
            all,
            [
                named("", "4xx", 1),
                named("east", "2xx", 2),
                named("east", "5xx", 1),
                named("west", "5xx", 1),
                named("west", "cut", 1)
            ]
        );
    }
}
