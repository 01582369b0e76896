//! What the rules for metrics say when broken.

use super::{only_mistake, plus, right};

#[test]
fn metrics() {
    assert_eq!(right(&plus("")).model.metrics.routes, 1000);
    assert_eq!(right(&plus("metrics: { routes: 0 }")).model.metrics.routes, 0);
    only_mistake(
        &plus("metrics: { routes: -1 }"),
        "metrics.routes",
        "`-1` is not a whole number from 0 to 1000000",
    );
    only_mistake(
        &plus("metrics: { route: 5 }"),
        "metrics.route",
        "did you mean `routes`?",
    );
}
