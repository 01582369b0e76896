//! States of routes across configuration changes.

use super::Store;

impl Store {
    /// Keeps the states of names that stay. Flows of a removed route still count, and the route may come back.
    pub(super) fn keep_routes(&mut self) {
        let book = &self.shared.route_labels;
        book.set_max(self.model.metrics.routes);
        let mut before = std::mem::take(&mut self.routes);
        for route in &self.model.routes {
            let known = before.remove(&route.hostname);
            let state = known.unwrap_or_else(|| book.revive(&route.hostname.to_string()));
            self.routes.insert(route.hostname.clone(), state);
        }
        for gone in before.into_values() {
            book.retire(gone);
        }
        book.forget_unused();
    }
}
