//! What is shown of traffic: metrics.

use signalbox_core::model::Metrics;

use super::map::Map;
use super::node::Place;
use super::report::Report;
use super::scalar::optional;

/// Each label costs some ten series of a Prometheus server.
const MAX_ROUTE_LABELS: u32 = 1_000_000;

/// What `/metrics` shows.
pub(super) fn metrics(place: Option<&Place<'_>>, report: &mut Report) -> Metrics {
    let Some(mut map) = place.and_then(|place| Map::open(place, report)) else {
        return Metrics::DEFAULT;
    };
    let routes = map.take("routes");
    map.finish(report);
    Metrics {
        routes: optional(routes.as_ref(), Metrics::DEFAULT.routes, |place| {
            place.number(0, MAX_ROUTE_LABELS, report)
        }),
    }
}
