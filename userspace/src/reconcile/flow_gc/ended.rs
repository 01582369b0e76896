//! Ended flows whose entries are kept for a while, in the order in which they are due.

use std::collections::VecDeque;

use signalbox_common::net::seq;

/// Ticks until an ended flow is examined again: half a second.
const RECHECK_TICKS: u32 = 477;

/// Queue of flow table entries by the tick at which they are due. The cost of a pass depends on the due entries only.
pub(super) struct EndedQueue {
    /// Pairs (tick, entry). A tick may be out of date: the one in `due` counts.
    queue: VecDeque<(u32, u32)>,
    /// Tick at which each entry is due, by index.
    due: Vec<Option<u32>>,
}

impl EndedQueue {
    /// Makes the queue for a flow table of `entries`.
    pub(super) fn new(entries: u32) -> Self {
        Self {
            queue: VecDeque::new(),
            due: vec![None; entries as usize],
        }
    }

    /// Adds the entry of an ended flow, due at once.
    pub(super) fn push(&mut self, index: u32, now: u32) {
        if let Some(due) = self.due.get_mut(index as usize) {
            *due = Some(now);
            self.queue.push_front((now, index));
        }
    }

    /// Adds an examined entry again, due after `RECHECK_TICKS`.
    pub(super) fn requeue(&mut self, index: u32, now: u32) {
        if let Some(due) = self.due.get_mut(index as usize) {
            let when = now.wrapping_add(RECHECK_TICKS);
            *due = Some(when);
            self.queue.push_back((when, index));
        }
    }

    /// Takes a due entry. Each is returned once.
    pub(super) fn pop(&mut self, now: u32) -> Option<u32> {
        while let Some(&(when, index)) = self.queue.front().filter(|(when, _)| !seq::after(*when, now)) {
            self.queue.pop_front();
            if self.due[index as usize] == Some(when) {
                self.due[index as usize] = None;
                return Some(index);
            }
        }
        None
    }

    /// Forgets an entry that has been freed.
    pub(super) fn forget(&mut self, index: u32) {
        if let Some(due) = self.due.get_mut(index as usize) {
            *due = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(ended: &mut EndedQueue, now: u32) -> Vec<u32> {
        std::iter::from_fn(|| ended.pop(now)).collect()
    }

    #[test]
    fn ended_flows_are_due_at_once_then_each_half_second_over_wraps() {
        let mut ended = EndedQueue::new(8);
        let now = u32::MAX - 100;
        ended.push(3, now);
        ended.push(5, now);
        assert_eq!(all(&mut ended, now), [5, 3]);
        ended.requeue(3, now);
        ended.requeue(5, now.wrapping_add(10));
        assert_eq!(ended.pop(now.wrapping_add(RECHECK_TICKS - 1)), None);
        assert_eq!(all(&mut ended, now.wrapping_add(RECHECK_TICKS)), [3]);
        assert_eq!(all(&mut ended, now.wrapping_add(RECHECK_TICKS + 10)), [5]);
        assert!(ended.queue.is_empty());
    }

    #[test]
    fn an_entry_that_is_told_of_again_is_due_at_once_and_only_once() {
        let mut ended = EndedQueue::new(8);
        ended.push(1, 0);
        ended.push(1, 0);
        assert_eq!(all(&mut ended, 0), [1]);
        ended.requeue(1, 0);
        ended.push(1, 5);
        assert_eq!(all(&mut ended, 5), [1]);
        assert!(all(&mut ended, RECHECK_TICKS + 5).is_empty());
    }

    #[test]
    fn a_freed_entry_is_not_due_and_its_next_flow_is() {
        let mut ended = EndedQueue::new(8);
        ended.push(1, 0);
        assert_eq!(all(&mut ended, 0), [1]);
        ended.requeue(1, 0);
        ended.forget(1);
        ended.requeue(2, 0);
        assert_eq!(all(&mut ended, RECHECK_TICKS), [2]);
        ended.push(1, RECHECK_TICKS);
        assert_eq!(all(&mut ended, RECHECK_TICKS), [1]);
        ended.push(99, 0);
        assert!(all(&mut ended, RECHECK_TICKS).is_empty(), "no entry of the table");
    }
}
