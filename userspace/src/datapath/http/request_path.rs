//! Paths of requests that hosts may read differently from the route lookup: they are normalized or refused.

use signalbox_core::http::path_reading::{normalize, readings};
use signalbox_core::http1::limits::MessageLimits;
use signalbox_core::http1::parse::{self, ParsedRequest};
use signalbox_core::model::http::AmbiguousPaths;
use signalbox_core::model::{Listener, Route};

use super::attempt::Request;
use super::refusal::Refusal;
use crate::state::Snapshot;

impl Request {
    /// Replaces the path with the normalized one.
    pub(super) fn normalize_path(&mut self, limits: &MessageLimits) {
        let path = self.head.path(&self.bytes);
        let Some(normalized) = normalize(path) else { return };
        let (_, path_and_query) = self.head.path_and_query(&self.bytes);
        let start = self.head.target.end() - path_and_query.len();
        let end = start + path.len();
        let bytes = [&self.bytes[..start], &normalized, &self.bytes[end..]].concat();
        if let Ok(ParsedRequest::Head(head)) = parse::request(&bytes, limits) {
            (self.head, self.bytes) = (*head, bytes);
        }
    }

    /// Refuses the request if its path, as some host may read it, belongs to another route of its name.
    pub(super) fn check_path(&self, listener: Option<&Listener>, snapshot: &Snapshot) -> Result<(), Refusal> {
        let treatment = listener.map_or_else(Default::default, |listener| listener.http.ambiguous_paths);
        let (name, path) = (self.name(), self.head.path(&self.bytes));
        let route = snapshot.route(name).filter(|route| has_paths(route));
        let Some(route) = route.filter(|_| treatment != AmbiguousPaths::Pass) else {
            return Ok(());
        };
        let fallback = listener.and_then(Listener::fallback);
        let place = |path: &[u8]| {
            let to = snapshot.view.request_destination(name, path, fallback);
            (to, route.path_policy(path).map(|claimed| &*claimed.path))
        };
        let own = place(path);
        if readings(path).all(|other| place(&other) == own) {
            return Ok(());
        }
        let text = "The request's path can be read in more than one way.";
        Err(Refusal::new(400, "ambiguous_path", text))
    }
}

/// Whether the paths of a name's requests matter.
fn has_paths(route: &Route) -> bool {
    let claimed = route.claimed.as_ref().map_or(&[][..], |claimed| &claimed.paths);
    !(route.paths.is_empty() && claimed.is_empty())
}
