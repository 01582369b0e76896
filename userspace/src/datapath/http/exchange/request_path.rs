//! Paths of requests that hosts may read differently from the route lookup: they are normalized or refused.

use signalbox_core::model::Listener;
use signalbox_core::model::http::AmbiguousPaths;
use signalbox_core::wire::http::path_reading::normalize;
use signalbox_core::wire::http1::limits::MessageLimits;
use signalbox_core::wire::http1::parse::{self, ParsedRequest};

use super::attempt::Request;
use super::refusal::Refusal;
use crate::state::Snapshot;

/// Text of the page with which such a request is refused.
pub const AMBIGUOUS_PATH: &str = "The request's path can be read in more than one way.";

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
        let named = name
            .zip(snapshot.route(name))
            .filter(|_| treatment != AmbiguousPaths::Pass);
        if !named.is_some_and(|(name, route)| snapshot.view.is_ambiguous(name, route, path)) {
            return Ok(());
        }
        Err(Refusal::new(400, "ambiguous_path", AMBIGUOUS_PATH))
    }
}
