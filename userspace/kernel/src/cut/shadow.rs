//! Shadows: flows of other balancers, kept in the flow table for the case that their addresses move to this machine.
//!
//! Shadows have a separate region of the table, after the workers' shares: however many there are, this balancer's
//! flows find room.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use signalbox_common::cut::CutFlow;
use signalbox_common::cut::flow::{FlowRef, RESYNC, SOCKETS_CLOSED, state};
use signalbox_common::net::Tuple;

use super::Cut;
use super::free_entry::FreeEntrySearch;
use super::table::tick;

/// Place of a shadow in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShadowPlace {
    /// The shadow has a new entry.
    New(u32),
    /// The flow had an entry already: it was a shadow before, or this machine carries it or has carried it.
    Known(u32),
    /// Another flow, that of this entry, has the addresses and ports of one of its legs.
    Occupied(u32),
    /// The region of shadows, or the map of tuples, is full.
    Full,
}

impl Cut {
    /// Enters another balancer's flow as a shadow.
    pub fn install_shadow(&self, search: &mut FreeEntrySearch, shadow: &CutFlow) -> io::Result<ShadowPlace> {
        if let Some(known) = self.tuples.get::<Tuple, FlowRef>(&shadow.tuple(0))? {
            let flow = self.table.read(known.index);
            let is_same = flow.tuple(0) == shadow.tuple(0)
                && flow.tuple(1) == shadow.tuple(1)
                && (flow.seq_delta_in, flow.seq_delta_out) == (shadow.seq_delta_in, shadow.seq_delta_out);
            if is_same {
                match flow.state {
                    // The other balancer knows offsets that it did not know before, or has fixed others.
                    state::SHADOW => self.table.update_shadow(known.index, shadow),
                    // The other balancer has carried packets of our flow.
                    state::CUT if flow.handoff_state == SOCKETS_CLOSED => self.table.forget_numbers(known.index),
                    _ => {}
                }
                return Ok(ShadowPlace::Known(known.index));
            }
            return Ok(ShadowPlace::Occupied(known.index));
        }
        let region = self.table.own_len()..self.table.len();
        let Some(index) = search.claim(&self.table, region, u32::MAX) else {
            return Ok(ShadowPlace::Full);
        };
        // Packets that find a tuple before all is done are dropped, and come again.
        self.table.write_claimed(index, shadow);
        for way in 0..2 {
            if let Err(error) = self.tuples.insert(&shadow.tuple(way), &FlowRef::new(index, way)) {
                if way == 1 {
                    self.tuples.delete(&shadow.tuple(0))?;
                }
                self.table.set_state(index, state::FREE);
                return match error.raw_os_error() {
                    Some(libc::EEXIST) => {
                        let other = self.tuples.get::<Tuple, FlowRef>(&shadow.tuple(way))?;
                        Ok(other.map_or(ShadowPlace::Full, |other| ShadowPlace::Occupied(other.index)))
                    }
                    Some(libc::E2BIG | libc::ENOMEM) => Ok(ShadowPlace::Full),
                    _ => Err(error),
                };
            }
        }
        self.table.set_state(index, state::SHADOW);
        Ok(ShadowPlace::New(index))
    }

    /// Has this machine carry a shadow from now on, whether packets of it have come or not. False if it is none.
    pub fn promote(&self, index: u32) -> bool {
        // Its idle time begins now: it is not known what its former owner has seen since the last report.
        self.table.touch(index);
        self.table.exchange_state(index, state::SHADOW, state::CUT)
    }

    /// Begins to remove a shadow, unless a packet has promoted it; the caller must then call [`Cut::remove`]. Returns
    /// whether the entry is a shadow.
    pub fn retire_shadow(&self, index: u32) -> bool {
        self.table.exchange_state(index, state::SHADOW, state::DELETING)
    }

    /// Leaves a flow to another balancer: it becomes a shadow, unless it has ended already.
    pub fn demote(&self, index: u32) -> bool {
        let is_demoted = self.table.exchange_state(index, state::CUT, state::SHADOW);
        self.table.forget_numbers(index);
        self.table.changes.add(index);
        is_demoted
    }
}

impl super::table::FlowTable {
    /// Replaces a state, unless a program or another thread has done so.
    fn exchange_state(&self, index: u32, from: u32, to: u32) -> bool {
        // SAFETY: aligned, within the mapping, and accessed whole by the programs too; also below.
        let state = unsafe { AtomicU32::from_ptr(&raw mut (*self.entry(index)).state) };
        state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Updates fields that another balancer may know better by now: offsets and clocks of timestamps, and interfaces.
    /// The entry stays a shadow during the update, and packets may promote it.
    fn update_shadow(&self, index: u32, shadow: &CutFlow) {
        let entry = self.entry(index);
        // SAFETY: as above, also below; a number and the flag that marks it as known are written in this order.
        let number = |field: *mut u32| unsafe { AtomicU32::from_ptr(field) };
        // SAFETY: fields of the entry.
        unsafe {
            number(&raw mut (*entry).ts_delta_in).store(shadow.ts_delta_in, Ordering::Relaxed);
            number(&raw mut (*entry).ts_delta_out).store(shadow.ts_delta_out, Ordering::Relaxed);
            number(&raw mut (*entry).isn_b).store(shadow.isn_b, Ordering::Relaxed);
            number(&raw mut (*entry).isn_host).store(shadow.isn_host, Ordering::Relaxed);
            number(&raw mut (*entry).dirs[1].ts_val).store(shadow.dirs[1].ts_val, Ordering::Relaxed);
            for (dir, known) in shadow.dirs.iter().enumerate() {
                let dir = &raw mut (*entry).dirs[dir];
                if known.hop_ifindex != 0 {
                    number(&raw mut (*dir).hop_ifindex).store(known.hop_ifindex, Ordering::Relaxed);
                }
                number(&raw mut (*dir).flags).store(known.flags, Ordering::Release);
            }
        }
    }

    /// Restarts the idle time of a flow.
    fn touch(&self, index: u32) {
        let now = tick();
        for way in 0..2 {
            // SAFETY: as above.
            let last_seen = unsafe { AtomicU32::from_ptr(&raw mut (*self.entry(index)).dirs[way].last_seen) };
            last_seen.store(now, Ordering::Relaxed);
        }
    }

    /// Has the flow's numbers determined again from the next packet of each direction.
    fn forget_numbers(&self, index: u32) {
        for way in 0..2 {
            // SAFETY: as above.
            let flags = unsafe { AtomicU32::from_ptr(&raw mut (*self.entry(index)).dirs[way].flags) };
            flags.fetch_or(RESYNC, Ordering::Relaxed);
        }
    }
}
