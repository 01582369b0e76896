//! Connections of each route and cluster in the last minute: differences between two answers of `/api/v1/figures`.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use signalbox_api::routing::FiguresAnswer;

/// Time over which connections are counted.
const SHARE_INTERVAL: Duration = Duration::from_secs(60);

/// Counts of connections by route and cluster.
type Counts = HashMap<(String, String), f64>;

/// The counts of the last minute's answers, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct ShareCounter(VecDeque<(Instant, Counts)>);

impl ShareCounter {
    /// Handles an answer that arrived at `now`.
    pub(super) fn add(&mut self, figures: &FiguresAnswer, now: Instant) {
        self.0.push_back((now, counts(figures)));
        // The newest sample older than a minute stays, so that the difference covers the whole minute.
        while self
            .0
            .get(1)
            .is_some_and(|(at, _)| now.duration_since(*at) >= SHARE_INTERVAL)
        {
            self.0.pop_front();
        }
    }

    /// Connections of a route to a cluster in the last minute.
    pub(super) fn connections(&self, route: &str, cluster: &str) -> f64 {
        let key = (route.to_owned(), cluster.to_owned());
        let of = |counts: Option<&(Instant, Counts)>| counts.and_then(|(_, counts)| counts.get(&key).copied());
        let since = of(self.0.front()).unwrap_or(0.0);
        (of(self.0.back()).unwrap_or(0.0) - since).max(0.0)
    }
}

fn counts(figures: &FiguresAnswer) -> Counts {
    let routes = figures.routes.iter();
    let clusters = routes.flat_map(|(route, of)| of.clusters.iter().map(move |(cluster, sum)| (route, cluster, sum)));
    clusters
        .map(|(route, cluster, sum)| ((route.clone(), cluster.clone()), sum.connections as f64))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(value: serde_json::Value) -> FiguresAnswer {
        serde_json::from_value(value).unwrap()
    }

    fn answer(east: u64, west: u64) -> FiguresAnswer {
        parsed(
            json!({ "routes": { "a.test": { "clusters": { "east": { "connections": east }, "west": { "connections": west } } } } }),
        )
    }

    #[test]
    fn only_connections_of_the_last_minute_count() {
        let (mut shares, start) = (ShareCounter::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        shares.add(&answer(100, 100), at(0));
        assert_eq!(shares.connections("a.test", "east"), 0.0, "those before do not");
        shares.add(&answer(120, 180), at(30));
        let both = |shares: &ShareCounter| ["east", "west"].map(|cluster| shares.connections("a.test", cluster));
        assert_eq!(both(&shares), [20.0, 80.0]);
        shares.add(&answer(130, 190), at(100));
        assert_eq!(both(&shares), [10.0, 10.0]);
        assert_eq!(shares.connections("a.test", "north"), 0.0);
    }

    #[test]
    fn all_connections_of_a_new_route_count_for_the_last_minute() {
        let (mut shares, start) = (ShareCounter::default(), Instant::now());
        shares.add(&FiguresAnswer::default(), start);
        shares.add(&answer(3, 1), start + Duration::from_secs(2));
        assert_eq!(shares.connections("a.test", "east"), 3.0);
    }
}
