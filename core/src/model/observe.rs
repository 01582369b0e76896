//! What is shown of traffic: metrics.

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
