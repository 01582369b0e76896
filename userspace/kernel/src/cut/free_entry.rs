//! Search for a free entry in a region of the flow table.

use std::ops::Range;
use std::time::{Duration, Instant};

use signalbox_common::cut::flow::state;

use super::table::FlowTable;

/// Time for which a region without a free entry is not searched again.
const FULL_TTL: Duration = Duration::from_millis(100);

/// Place where the search of a region continues.
#[derive(Debug, Default)]
pub struct FreeEntrySearch {
    next: u32,
    /// Entries since the last free one.
    in_use: u32,
    full_until: Option<Instant>,
}

impl FreeEntrySearch {
    /// Claims a free entry of `region`. Looks at `limit` entries at most; the next search begins where this one ended.
    pub fn claim(&mut self, table: &FlowTable, region: Range<u32>, limit: u32) -> Option<u32> {
        let count = region.end.saturating_sub(region.start);
        if count == 0 || self.full_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        for _ in 0..count.min(limit) {
            let index = region.start + self.next % count;
            self.next = (self.next + 1) % count;
            if table.state(index) == state::FREE && table.claim(index) {
                (self.in_use, self.full_until) = (0, None);
                return Some(index);
            }
            self.in_use += 1;
        }
        if self.in_use >= count {
            (self.in_use, self.full_until) = (0, Some(Instant::now() + FULL_TTL));
        }
        None
    }
}
