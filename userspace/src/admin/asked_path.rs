//! The path in a request to `explain`, as a listener reads it.

use std::borrow::Cow;

use signalbox_core::model::Listener;
use signalbox_core::model::http::AmbiguousPaths;
use signalbox_core::wire::hostname::Hostname;
use signalbox_core::wire::http::path_reading::normalize;

use crate::state::Snapshot;

/// Verdict on a request that is refused for its path.
pub(super) const AMBIGUOUS: &str = "refused: hosts may read the path as that of another route (`ambiguous_paths`)";

/// A path, after the listener's `ambiguous_paths`.
pub(super) struct AskedPath<'a> {
    /// The path that routes are found by, and that hosts get.
    pub(super) path: Cow<'a, str>,
    /// Whether a request with the path is refused.
    pub(super) is_refused: bool,
}

impl<'a> AskedPath<'a> {
    pub(super) fn read(snapshot: &Snapshot, listener: &Listener, name: &Hostname, path: &'a str) -> Self {
        let treatment = listener.http.ambiguous_paths;
        let normalized = (treatment == AmbiguousPaths::Normalize)
            .then(|| normalize(path.as_bytes()))
            .flatten();
        let path = normalized.map_or(Cow::Borrowed(path), |path| {
            Cow::Owned(String::from_utf8_lossy(&path).into_owned())
        });
        let route = snapshot.route(Some(name)).filter(|_| treatment != AmbiguousPaths::Pass);
        Self {
            is_refused: route.is_some_and(|route| snapshot.view.is_ambiguous(name, route, path.as_bytes())),
            path,
        }
    }

    /// How the path changes on the way, as a line for people.
    pub(super) fn change(&self) -> Option<String> {
        matches!(self.path, Cow::Owned(_)).then(|| format!("the path becomes {}", self.path))
    }
}
