//! Set of entries of the flow table, such as those to be reported to other balancers.
//!
//! The table itself is the queue: a flow that changes twice before it is sent is sent once, in its last state.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bit set of entries, changed by any thread without a lock.
#[derive(Debug)]
pub struct EntrySet(Box<[AtomicU64]>);

impl EntrySet {
    /// Makes an empty set of entries below `count`.
    #[must_use]
    pub fn new(count: u32) -> Self {
        Self((0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    /// Adds an entry.
    pub fn add(&self, index: u32) {
        if let Some(word) = self.0.get((index / 64) as usize) {
            word.fetch_or(1 << (index % 64), Ordering::Release);
        }
    }

    /// Removes an entry. Returns whether it was in the set.
    pub fn remove(&self, index: u32) -> bool {
        let bit = 1 << (index % 64);
        let word = self.0.get((index / 64) as usize);
        word.is_some_and(|word| word.fetch_and(!bit, Ordering::AcqRel) & bit != 0)
    }

    /// Returns whether an entry is in the set.
    #[must_use]
    pub fn contains(&self, index: u32) -> bool {
        let word = self.0.get((index / 64) as usize);
        word.is_some_and(|word| word.load(Ordering::Acquire) & 1 << (index % 64) != 0)
    }

    /// Takes entries out of the set, in ascending order, until `each` breaks: the entry that it breaks at is taken.
    pub fn take(&self, mut each: impl FnMut(u32) -> ControlFlow<()>) {
        for (at, word) in self.0.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::Acquire);
            while bits != 0 {
                let index = at as u32 * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                if each(index).is_break() {
                    word.fetch_or(bits, Ordering::Release);
                    return;
                }
            }
        }
    }

    /// Empties the set.
    pub fn clear(&self) {
        for word in &self.0 {
            word.store(0, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(set: &EntrySet, most: usize) -> Vec<u32> {
        let mut all = Vec::new();
        set.take(|index| {
            all.push(index);
            if all.len() == most {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        all
    }

    #[test]
    fn each_entry_is_taken_once_and_the_rest_stays() {
        let set = EntrySet::new(130);
        for index in [0, 63, 64, 129, 64, 1000] {
            set.add(index);
        }
        assert_eq!(taken(&set, 2), [0, 63]);
        assert_eq!(taken(&set, 9), [64, 129]);
        assert_eq!(taken(&set, 9), [0; 0]);
    }

    #[test]
    fn entries_are_known_until_they_are_removed() {
        let set = EntrySet::new(70);
        set.add(69);
        assert!(set.contains(69) && !set.contains(68) && !set.contains(1000));
        assert!(set.remove(69) && !set.remove(69) && !set.remove(1000));
        set.add(3);
        set.clear();
        assert!(!set.contains(3));
    }
}
