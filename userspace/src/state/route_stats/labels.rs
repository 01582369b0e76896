//! Labels of routes in `/metrics`: which routes have their own.
//!
//! There may be many names, which come and go. So a label is assigned at a name's first connection, up to a maximum,
//! and kept. All other routes are summed up. A sum must never decrease: the counts of a removed route stay in it, and
//! no route moves from the sum to a label. A removed route that returns continues with its earlier counters.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard};

use super::RouteTotals;
use crate::state::entities::RouteState;

/// Label of the sum. A route of this name is part of the sum.
pub const OTHER_LABEL: &str = "other";

const UNDECIDED: u8 = 0;
const OWN: u8 = 1;
const OTHER: u8 = 2;

/// Labels, and the states of routes that are no longer configured.
#[derive(Debug, Default)]
pub struct RouteLabels {
    max: AtomicU32,
    table: Mutex<LabelTable>,
    change_lock: Mutex<()>,
}

#[derive(Debug, Default)]
struct LabelTable {
    /// Number of assigned labels.
    labels: u32,
    /// Routes that are no longer configured, by name. Their flows still count, and they may return.
    retired: HashMap<String, Retired>,
    /// Number of routes retired so far.
    count: u64,
    /// True if no retired route had a label to take when all were last examined.
    none_free: bool,
    /// Counts of forgotten routes in the sum.
    forgotten: RouteTotals,
}

#[derive(Debug)]
struct Retired {
    /// Order of retirement: the route retired first has the lowest number.
    number: u64,
    route: Arc<RouteState>,
}

impl RouteLabels {
    /// Sets the maximum number of labels; 0: routes are not shown in `/metrics`.
    pub fn set_max(&self, max: u32) {
        self.max.store(max, Relaxed);
    }

    /// Locks changes of routes, from the creation of a route's state until the snapshot has it, so that a name has only
    /// one state.
    pub fn lock_changes(&self) -> MutexGuard<'_, ()> {
        self.change_lock.lock()
    }

    /// Keeps the state of a route that is no longer configured.
    pub fn retire(&self, route: Arc<RouteState>) {
        let max = self.max.load(Relaxed);
        let mut kept = self.table.lock();
        if route.stats.is_used() {
            kept.label(&route, max);
            kept.retire(route);
        }
    }

    /// Forgets unused states. Called once for all routes that are retired together.
    pub fn forget_unused(&self) {
        let mut kept = self.table.lock();
        kept.forget();
    }

    /// Returns the state of a returning route, or makes one for a new route.
    #[must_use]
    pub fn revive(&self, name: &str) -> Arc<RouteState> {
        let mut kept = self.table.lock();
        let known = kept.retired.remove(name).map(|retired| retired.route);
        known.unwrap_or_else(|| {
            Arc::new(RouteState {
                hostname: name.to_owned(),
                ..RouteState::default()
            })
        })
    }

    /// Returns the state of a route that is not configured but has flows of an earlier process.
    #[must_use]
    pub fn adopt(&self, name: &str) -> Arc<RouteState> {
        let route = self.revive(name);
        let mut kept = self.table.lock();
        kept.retire(Arc::clone(&route));
        route
    }

    /// Returns figures by label: those of `routes`, which must be the active ones (see [`RouteLabels::lock_changes`]),
    /// and of routes that are no longer configured. Empty if the maximum is 0.
    #[must_use]
    pub fn by_label(&self, routes: &[Arc<RouteState>]) -> BTreeMap<String, RouteTotals> {
        let max = self.max.load(Relaxed);
        let mut kept = self.table.lock();
        kept.forget();
        if max == 0 {
            return BTreeMap::new();
        }
        // Undecided: the label of an adopted route, or of one that was removed while the maximum was 0.
        let is_undecided = |route: &&Arc<RouteState>| route.label.0.load(Relaxed) == UNDECIDED;
        let retired = kept.retired.values().map(|retired| &retired.route);
        let undecided: Vec<_> = retired.filter(is_undecided).cloned().collect();
        for route in routes.iter().chain(&undecided).filter(|route| route.stats.is_used()) {
            kept.label(route, max);
        }
        drop(undecided);
        let (mut all, mut rest) = (BTreeMap::new(), kept.forgotten.clone());
        for route in routes.iter().chain(kept.retired.values().map(|retired| &retired.route)) {
            match route.label.0.load(Relaxed) {
                OWN => {
                    all.insert(route.hostname.clone(), route.stats.totals());
                }
                OTHER => rest.add(&route.stats.totals()),
                _ => {}
            }
        }
        if rest != RouteTotals::default() {
            all.insert(OTHER_LABEL.to_owned(), rest);
        }
        all
    }
}

impl LabelTable {
    fn retire(&mut self, route: Arc<RouteState>) {
        self.count += 1;
        let number = self.count;
        self.retired.insert(route.hostname.clone(), Retired { number, route });
    }

    /// Decides a route's label once: when it first has counts to show.
    fn label(&mut self, route: &RouteState, max: u32) {
        if route.label.0.load(Relaxed) != UNDECIDED {
            return;
        }
        // Labels are off: left undecided, because the maximum may be raised.
        if max == 0 {
            return;
        }
        if route.hostname != OTHER_LABEL && (self.labels < max || self.free_label()) {
            self.labels += 1;
            route.label.0.store(OWN, Relaxed);
        } else {
            route.label.0.store(OTHER, Relaxed);
        }
    }

    /// Takes the label of the unused route that was retired first. False if there is none.
    fn free_label(&mut self) -> bool {
        if self.none_free {
            return false;
        }
        let is_free = |retired: &&Retired| retired.route.label.0.load(Relaxed) == OWN && is_unused(&retired.route);
        let first = self
            .retired
            .values()
            .filter(is_free)
            .min_by_key(|retired| retired.number);
        let Some(name) = first.map(|retired| retired.route.hostname.clone()) else {
            self.none_free = true;
            return false;
        };
        self.retired.remove(&name);
        self.labels -= 1;
        true
    }

    /// Forgets unused retired routes without a label.
    fn forget(&mut self) {
        self.none_free = false;
        let Self { retired, forgotten, .. } = self;
        retired.retain(|_, Retired { route, .. }| {
            let keep = route.label.0.load(Relaxed) == OWN || !is_unused(route);
            if !keep && route.label.0.load(Relaxed) == OTHER {
                forgotten.add(&route.stats.totals());
            }
            keep
        });
    }
}

/// Returns whether a retired route will count nothing any more: no flow and no worker's snapshot refers to it.
fn is_unused(route: &Arc<RouteState>) -> bool {
    route.stats.active() == 0 && Arc::strong_count(route) == 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn used(name: &str, connections: u64) -> Arc<RouteState> {
        let route = Arc::new(RouteState {
            hostname: name.to_owned(),
            ..RouteState::default()
        });
        route.stats.for_cluster("east").connections.add(connections);
        route
    }

    fn connections(shown: &BTreeMap<String, RouteTotals>, label: &str) -> Option<u64> {
        Some(shown.get(label)?.clusters["east"].connections)
    }

    #[test]
    fn the_rest_is_summed_and_a_label_is_for_keeps() {
        let book = RouteLabels::default();
        book.set_max(2);
        let idle = book.revive("idle.test");
        let mut routes = vec![
            idle,
            used("a.test", 1),
            used(OTHER_LABEL, 8),
            used("b.test", 2),
            used("c.test", 4),
        ];
        let shown = book.by_label(&routes);
        assert_eq!(shown.keys().collect::<Vec<_>>(), ["a.test", "b.test", OTHER_LABEL]);
        assert_eq!(
            connections(&shown, OTHER_LABEL),
            Some(12),
            "a route called `other` is of the rest"
        );
        book.set_max(10);
        routes.push(used("d.test", 16));
        let shown = book.by_label(&routes);
        assert_eq!(
            (connections(&shown, OTHER_LABEL), connections(&shown, "c.test")),
            (Some(12), None)
        );
        assert_eq!(connections(&shown, "d.test"), Some(16));
        book.set_max(0);
        assert!(book.by_label(&routes).is_empty());
    }

    #[test]
    fn a_route_that_comes_back_goes_on_counting() {
        let book = RouteLabels::default();
        book.set_max(1);
        let (a, b) = (used("a.test", 1), used("b.test", 2));
        let _ = book.by_label(&[Arc::clone(&a), Arc::clone(&b)]);
        b.stats.for_cluster("east").active.enter();
        book.retire(a);
        book.retire(b);
        let shown = book.by_label(&[]);
        assert_eq!(
            (connections(&shown, "a.test"), connections(&shown, OTHER_LABEL)),
            (Some(1), Some(2))
        );
        // A flow of b.test still exists: its end must be counted.
        let b = book.revive("b.test");
        assert_eq!(b.stats.active(), 1);
        b.stats.for_cluster("east").active.leave();
        book.retire(b);
        assert_eq!(
            connections(&book.by_label(&[]), OTHER_LABEL),
            Some(2),
            "forgotten, not lost"
        );
        assert_eq!(book.revive("b.test").stats.active(), 0);
        let a = book.revive("a.test");
        assert_eq!(a.stats.totals().clusters["east"].connections, 1);
        // The label of a removed route is given to a new one.
        book.retire(a);
        let shown = book.by_label(&[used("new.test", 7)]);
        assert_eq!(
            (connections(&shown, "new.test"), connections(&shown, "a.test")),
            (Some(7), None)
        );
    }

    #[test]
    fn a_route_that_is_adopted_is_shown_and_found_again() {
        let book = RouteLabels::default();
        book.set_max(1);
        let route = book.adopt("a.test");
        route.stats.for_cluster("east").active.enter();
        drop(route);
        assert_eq!(book.by_label(&[])["a.test"].total().active, 1);
        assert_eq!(book.revive("a.test").stats.active(), 1);
    }

    #[test]
    fn a_route_that_somebody_may_still_count_for_is_not_forgotten() {
        let book = RouteLabels::default();
        book.set_max(1);
        let (a, b) = (used("a.test", 1), used("b.test", 2));
        let _ = book.by_label(&[Arc::clone(&a), Arc::clone(&b)]);
        book.retire(Arc::clone(&b));
        b.stats.for_cluster("east").connections.add(5);
        assert_eq!(connections(&book.by_label(&[a]), OTHER_LABEL), Some(7));
    }

    proptest! {
        /// Adds and removes routes at random: no remaining series decreases, and nothing is counted twice.
        #[test]
        fn sums_never_go_down(steps in prop::collection::vec((0usize..6, 0u8..4, 1u32..4), 1..60)) {
            let book = RouteLabels::default();
            book.set_max(2);
            let mut routes: BTreeMap<usize, Arc<RouteState>> = BTreeMap::new();
            let (mut before, mut counted) = (BTreeMap::new(), 0);
            for (name, action, max) in steps {
                match action {
                    0 => { routes.entry(name).or_insert_with(|| book.revive(&format!("{name}.test"))); }
                    1 => if let Some(route) = routes.remove(&name) { book.retire(route); },
                    2 => book.set_max(max),
                    _ => if let Some(route) = routes.get(&name) {
                        route.stats.for_cluster("east").connections.inc();
                        counted += 1;
                    },
                }
                let configured: Vec<_> = routes.values().cloned().collect();
                let shown = book.by_label(&configured);
                drop(configured);
                for (label, sums) in &shown {
                    let now = sums.clusters["east"].connections;
                    let then = before.get(label).copied().unwrap_or(0);
                    prop_assert!(now >= then, "{label}: {then}, then {now}");
                }
                before = shown.iter().map(|(label, sums)| (label.clone(), sums.clusters["east"].connections)).collect();
                prop_assert!(before.values().sum::<u64>() <= counted);
            }
        }
    }
}
