//! Paths of connections: routed in the kernel, or by a worker and why.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use signalbox_core::limits::stats::Counter;
use signalbox_core::routing::obstacle::PeekObstacle;

/// Label of the connections that the program could have routed, and passed up.
pub const PASSED_UP: &str = "passed_up";

/// Connections of a listener by path, without a lock: every connection counts here.
#[derive(Debug)]
pub struct PathCounts {
    /// Connections that the kernel peek has routed.
    pub kernel: Counter,
    /// Connections of workers, by [`PeekObstacle::ALL`], and then those that were passed up.
    worker: [Counter; PeekObstacle::ALL.len() + 1],
}

impl Default for PathCounts {
    fn default() -> Self {
        Self {
            kernel: Counter::default(),
            worker: std::array::from_fn(|_| Counter::default()),
        }
    }
}

impl PathCounts {
    /// Counts a worker's connection. `None`: the program has passed it up.
    pub fn count_worker(&self, obstacle: Option<PeekObstacle>) {
        let at = obstacle.map_or(PeekObstacle::ALL.len(), |obstacle| obstacle as usize);
        self.worker[at].inc();
    }

    /// Returns the connections of workers by reason, without the reasons that none has.
    pub fn by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let labels = PeekObstacle::ALL.iter().map(|obstacle| obstacle.label());
        let counts = self.worker.iter().map(Counter::get);
        labels.chain([PASSED_UP]).zip(counts).filter(|(_, n)| *n > 0)
    }
}

/// Why workers route the connections of a listener or route, for the accept path, which takes no lock. At first the
/// program is not there.
#[derive(Debug, Default)]
pub struct PathObstacle(AtomicU8);

/// Value of a path that has no obstacle. An obstacle is its index, after this.
const IN_KERNEL: u8 = 1;

impl PathObstacle {
    pub fn set(&self, obstacle: Option<PeekObstacle>) {
        let value = obstacle.map_or(IN_KERNEL, |obstacle| obstacle as u8 + IN_KERNEL + 1);
        self.0.store(value, Relaxed);
    }

    /// Whether it was never set.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.0.load(Relaxed) == 0
    }

    #[must_use]
    pub fn get(&self) -> Option<PeekObstacle> {
        let known = usize::from(self.0.load(Relaxed)).checked_sub(usize::from(IN_KERNEL));
        let Some(at) = known else {
            return Some(PeekObstacle::Loading);
        };
        PeekObstacle::ALL.get(at.checked_sub(1)?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_kept_and_counted_by_its_label() {
        let (kept, counts) = (PathObstacle::default(), PathCounts::default());
        assert!(kept.is_unknown() && kept.get() == Some(PeekObstacle::Loading));
        for &obstacle in PeekObstacle::ALL {
            kept.set(Some(obstacle));
            assert_eq!(kept.get(), Some(obstacle));
            counts.count_worker(kept.get());
        }
        kept.set(None);
        assert!(!kept.is_unknown() && kept.get().is_none());
        counts.count_worker(None);
        let labels = PeekObstacle::ALL.iter().map(|obstacle| obstacle.label());
        let expected: Vec<_> = labels.chain([PASSED_UP]).map(|label| (label, 1)).collect();
        assert_eq!(counts.by_reason().collect::<Vec<_>>(), expected);
    }
}
