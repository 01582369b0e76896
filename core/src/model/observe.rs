//! Traffic as it is shown: metrics, and an access log.

use serde::Serialize;
use std::path::PathBuf;

/// Settings of `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Metrics {
    /// Most routes with their own label; the rest is summed. 0: no route is shown.
    pub routes: u32,
}

impl Metrics {
    /// Settings where the configuration says nothing else.
    pub const DEFAULT: Self = Self { routes: 1000 };
}

/// Log of ended connections: which are logged, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AccessLog {
    /// Destination of the lines.
    pub to: LogTarget,
    /// Number of connections that are logged, in a million.
    pub sample_ppm: u32,
    /// Most lines in a second.
    pub max_per_second: u32,
    /// Ends of connections that are logged.
    pub only: EndSet,
}

/// Destination of log lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogTarget {
    /// Standard output.
    Stdout,
    /// File that lines are appended to.
    File(PathBuf),
}

impl std::fmt::Display for LogTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stdout => f.write_str("stdout"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// Ends of a connection: the words of the log, and of `signalbox_connections_closed_total`.
pub const END_LABELS: [&str; 8] = [
    "finished",
    "client_reset",
    "host_reset",
    "idle_timeout",
    "failed",
    "drained",
    "moved",
    "refused",
];

/// Subset of [`END_LABELS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct EndSet(u8);

impl EndSet {
    /// Every end.
    pub const ALL: Self = Self(u8::MAX);

    /// Subset of the ends at these indices of [`END_LABELS`].
    #[must_use]
    pub fn from_indices(places: impl IntoIterator<Item = usize>) -> Self {
        Self(places.into_iter().fold(0, |ends, place| ends | 1 << place))
    }

    /// Whether the end at this index of [`END_LABELS`] is in the subset.
    #[must_use]
    pub const fn contains(self, place: usize) -> bool {
        self.0 & 1 << place != 0
    }
}
