//! Numbers in memory that programs of the kernel may share: gauges get their words from a pool.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use super::Gauge;

/// An array of numbers: memory that is shared with programs, or ordinary memory, which is allocated at its first use.
#[derive(Debug)]
pub enum CountWords {
    /// Memory that programs change, too.
    Shared(&'static [AtomicU64]),
    /// Number of words, and the words.
    Own(usize, OnceLock<Box<[AtomicU64]>>),
}

impl CountWords {
    /// CountWords of this process alone, all zero.
    #[must_use]
    pub const fn own(count: usize) -> Self {
        Self::Own(count, OnceLock::new())
    }
}

impl Deref for CountWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        match self {
            Self::Shared(words) => words,
            Self::Own(count, words) => words.get_or_init(|| (0..*count).map(|_| AtomicU64::new(0)).collect()),
        }
    }
}

/// CountWords of gauges that programs of the kernel change, too. The default has none.
#[derive(Debug, Default)]
pub struct WordPool {
    words: &'static [AtomicU64],
    /// CountWords that no gauge has. The one that has been free for the longest time is given first: a program may still
    /// change another.
    free: Mutex<VecDeque<u32>>,
}

/// Word of a gauge, which goes back to its pool.
#[derive(Debug)]
pub struct PooledWord {
    index: u32,
    pool: &'static WordPool,
}

impl WordPool {
    /// A pool of words, all zero, of which the first `reserved` are not given out. It is for the whole process.
    #[must_use]
    pub fn new(words: &'static [AtomicU64], reserved: u32) -> &'static Self {
        let free = (reserved..words.len() as u32).collect();
        Box::leak(Box::new(Self {
            words,
            free: Mutex::new(free),
        }))
    }

    /// A gauge with a word of the pool or, if none is free, of its own.
    #[must_use]
    pub fn gauge(&'static self) -> Gauge {
        let free = self.free.lock().pop_front();
        free.map_or_else(Gauge::default, |index| self.gauge_of(index))
    }

    /// A gauge with a reserved word, which programs know.
    #[must_use]
    pub fn gauge_of(&'static self, index: u32) -> Gauge {
        let word = self.words.get(index as usize);
        if let Some(word) = word {
            word.store(0, Relaxed);
        }
        Gauge::with_word(word.map(|_| PooledWord { index, pool: self }))
    }

    /// Counts one less in the word of a gauge that may be gone.
    pub fn leave(&self, index: u32) {
        if let Some(word) = self.words.get(index as usize) {
            word.fetch_sub(1, Relaxed);
        }
    }
}

impl PooledWord {
    pub(super) fn word(&self) -> Option<&'static AtomicU64> {
        self.pool.words.get(self.index as usize)
    }

    pub(super) const fn index(&self) -> u32 {
        self.index
    }
}

impl Drop for PooledWord {
    fn drop(&mut self) {
        let mut free = self.pool.free.lock();
        free.push_back(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(count: usize) -> &'static WordPool {
        let words: Vec<_> = (0..count).map(|_| AtomicU64::new(0)).collect();
        WordPool::new(Box::leak(words.into_boxed_slice()), 1)
    }

    #[test]
    fn a_gauge_counts_in_its_word_which_comes_back_empty_and_last() {
        let pool = pool(4);
        let all = pool.gauge_of(0);
        let (first, second) = (pool.gauge(), pool.gauge());
        assert_eq!([all.word(), first.word(), second.word()], [Some(0), Some(1), Some(2)]);
        pool.words[1].fetch_add(5, Relaxed);
        assert!(!first.try_enter(5) && first.try_enter(6));
        assert_eq!((first.get(), second.get()), (6, 0));
        pool.leave(1);
        assert_eq!(first.get(), 5);
        drop(first);
        let third = pool.gauge();
        assert_eq!(third.word(), Some(3), "the word that was free for longer");
        let again = pool.gauge();
        assert_eq!((again.word(), again.get()), (Some(1), 0));
    }

    #[test]
    fn without_a_free_word_a_gauge_has_its_own() {
        let pool = pool(2);
        let (first, second) = (pool.gauge(), pool.gauge());
        second.enter();
        assert_eq!((first.word(), first.get()), (Some(1), 0));
        assert_eq!((second.word(), second.get()), (None, 1));
    }
}
