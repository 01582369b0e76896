//! Elements of a map, each assigned to a key.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Time before an element is reused. Connections that wait for a host know it by its element, and are forgotten before
/// that.
const REUSE_INTERVAL: Duration = Duration::from_secs(30);

/// Numbers of a map's elements.
pub(super) struct Slots<K> {
    taken: HashMap<K, u32>,
    /// Free elements, the one given back first at the front.
    free: VecDeque<(Instant, u32)>,
    used: u32,
    len: u32,
}

impl<K: Eq + Hash + Clone> Slots<K> {
    /// All elements of a map of this length are free.
    pub(super) fn new(len: u32) -> Self {
        Self {
            taken: HashMap::new(),
            free: VecDeque::new(),
            used: 0,
            len,
        }
    }

    pub(super) fn get(&self, key: &K) -> Option<u32> {
        self.taken.get(key).copied()
    }

    /// Returns the element of `key`, and whether it is new. `None` if the map is full.
    pub(super) fn take(&mut self, key: &K, now: Instant) -> Option<(u32, bool)> {
        if let Some(index) = self.get(key) {
            return Some((index, false));
        }
        let is_rested = |(since, _): &(Instant, u32)| now.duration_since(*since) >= REUSE_INTERVAL;
        let index = if self.free.front().is_some_and(is_rested) {
            self.free.pop_front()?.1
        } else if self.used < self.len {
            self.used += 1;
            self.used - 1
        } else {
            return None;
        };
        self.taken.insert(key.clone(), index);
        Some((index, true))
    }

    /// Gives back elements that are no longer wanted.
    pub(super) fn retain(&mut self, now: Instant, is_wanted: impl Fn(&K) -> bool) {
        let free = &mut self.free;
        self.taken.retain(|key, index| {
            let wanted = is_wanted(key);
            if !wanted {
                free.push_back((now, *index));
            }
            wanted
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_given_again_once_nobody_can_know_them() {
        let mut slots = Slots::new(2);
        let begin = Instant::now();
        assert_eq!(slots.take(&"a", begin), Some((0, true)));
        assert_eq!(slots.take(&"b", begin), Some((1, true)));
        assert_eq!(slots.take(&"a", begin), Some((0, false)));
        assert_eq!(slots.take(&"c", begin), None, "full");
        slots.retain(begin, |key| *key != "a");
        assert_eq!(slots.get(&"a"), None);
        assert_eq!(slots.take(&"c", begin + Duration::from_secs(1)), None, "not yet");
        assert_eq!(slots.take(&"c", begin + REUSE_INTERVAL), Some((0, true)));
        assert_eq!(slots.get(&"b"), Some(1));
    }
}
