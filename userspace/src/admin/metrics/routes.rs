//! Metrics of routes, and of the access log.

use std::collections::BTreeMap;
use std::fmt;

use signalbox_api::routing::ClusterFigures;

use super::{Labels, MetricWriter, Scrape};
use crate::state::route_stats::{RouteRefusal, RouteTotals};

/// Function that reads one number of a route in a cluster.
type RouteCounter = fn(&ClusterFigures) -> u64;

fn by_cluster<'a>(
    all: &'a BTreeMap<String, RouteTotals>,
    get: RouteCounter,
) -> impl Iterator<Item = (Labels<'a>, u64)> {
    all.iter().flat_map(move |(route, sums)| {
        let of = move |(cluster, sum): (&'a String, &'a ClusterFigures)| {
            let labels = vec![("route", route.as_str()), ("cluster", cluster.as_str())];
            (labels, get(sum))
        };
        sums.clusters.iter().map(of)
    })
}

impl Scrape {
    pub(super) fn routes(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let shared = &self.0.shared;
        let all = {
            // While it is held, the lock keeps routes from being added or removed, so that each counts once.
            let _hold = shared.route_labels.lock_changes();
            let snapshot = shared.snapshot.load();
            if snapshot.model.metrics.routes == 0 {
                return Ok(());
            }
            shared.route_labels.by_label(&snapshot.routes)
        };
        out.counter(
            "route_connections",
            "Connections of a route made to hosts of a cluster",
            by_cluster(&all, |sum| sum.connections),
        )?;
        out.gauge(
            "route_connections_active",
            "Connections of a route to hosts of a cluster now",
            by_cluster(&all, |sum| sum.active).map(|(labels, n)| (labels, n as f64)),
        )?;
        let directions: [(&str, RouteCounter); 2] = [("in", |sum| sum.bytes_in), ("out", |sum| sum.bytes_out)];
        let bytes = directions.into_iter().flat_map(|(direction, get)| {
            by_cluster(&all, get).map(move |(mut labels, n)| {
                labels.push(("direction", direction));
                (labels, n)
            })
        });
        out.counter(
            "route_bytes",
            "Bytes from clients (in) and to clients (out) of a route",
            bytes,
        )?;
        let refused = all.iter().flat_map(|(route, sums)| {
            let counts = RouteRefusal::LABELS.into_iter().zip(sums.refused);
            counts.map(|(reason, n)| (vec![("route", route.as_str()), ("reason", reason)], n))
        });
        out.counter("route_refused", "Connections refused whose route was known", refused)
    }

    /// Writes the metrics of the access log.
    pub(super) fn access_log(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let log = &self.0.shared.log;
        out.counter(
            "access_log_lines",
            "Lines written to the access log",
            [(Vec::new(), log.written.get())],
        )?;
        let dropped = log
            .dropped()
            .into_iter()
            .map(|(reason, n)| (vec![("reason", reason)], n));
        out.counter(
            "access_log_dropped",
            "Lines of the access log that were not written",
            dropped,
        )
    }
}
