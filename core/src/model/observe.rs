//! What is shown of traffic: metrics, and a log of connections.

use std::path::PathBuf;

/// What `/metrics` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// Routes with a label of their own at the most; the rest is summed. 0: none is shown.
    pub routes: u32,
}

impl Metrics {
    /// Where nothing else is said.
    pub const DEFAULT: Self = Self { routes: 1000 };
}

/// Which connections are logged when they have ended, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionLog {
    /// Where the lines go.
    pub to: LogTarget,
    /// How many of a million connections are logged.
    pub sample_ppm: u32,
    /// Lines in a second at the most.
    pub max_per_second: u32,
    /// How a connection must have ended.
    pub only: Ends,
}

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard output.
    Stdout,
    /// A file, which is appended to.
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

/// How a connection may end: the words of the log, and of `signalbox_connections_closed_total`.
pub const ENDS: [&str; 7] = [
    "finished",
    "client_reset",
    "host_reset",
    "idle_timeout",
    "failed",
    "drained",
    "refused",
];

/// Some of [`ENDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends(u8);

impl Ends {
    /// Each of them.
    pub const ALL: Self = Self(u8::MAX);

    /// Those at these places of [`ENDS`].
    #[must_use]
    pub fn of(places: impl IntoIterator<Item = usize>) -> Self {
        Self(places.into_iter().fold(0, |ends, place| ends | 1 << place))
    }

    /// Whether the one at this place of [`ENDS`] is among them.
    #[must_use]
    pub const fn contains(self, place: usize) -> bool {
        self.0 & 1 << place != 0
    }
}
