//! Shadows: flows of other balancers, kept in the flow table for the case that their addresses move to this machine.
//!
//! Shadows have a region of the table of their own, behind the workers' shares: however many there are, this balancer's
//! flows find room.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use signalbox_common::cut::CutFlow;
use signalbox_common::cut::flow::{FlowRef, RESYNC, state};
use signalbox_common::net::Tuple;

use super::Cut;

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

/// Cursor of the search for a free entry among shadows.
#[derive(Debug, Default)]
pub struct ShadowCursor(u32);

impl ShadowCursor {
    /// Claims a free entry of the region; the search begins where the last one ended.
    fn claim(&mut self, cut: &Cut) -> Option<u32> {
        let (first, count) = (cut.table.own_len(), cut.table.len() - cut.table.own_len());
        for _ in 0..count {
            let index = first + self.0 % count;
            self.0 = self.0.wrapping_add(1) % count;
            if cut.table.claim(index) {
                return Some(index);
            }
        }
        None
    }
}

impl Cut {
    /// Enters another balancer's flow as a shadow.
    pub fn install_shadow(&self, cursor: &mut ShadowCursor, shadow: &CutFlow) -> io::Result<ShadowPlace> {
        if let Some(known) = self.tuples.get::<Tuple, FlowRef>(&shadow.tuple(0))? {
            let flow = self.table.read(known.index);
            if flow.tuple(0) == shadow.tuple(0) && flow.tuple(1) == shadow.tuple(1) {
                match flow.state {
                    // The other balancer knows offsets that it did not know before, or has fixed others.
                    state::SHADOW => self.rewrite_shadow(known.index, shadow),
                    // It has carried packets of a flow of ours.
                    state::CUT => self.table.forget_numbers(known.index),
                    _ => {}
                }
                return Ok(ShadowPlace::Known(known.index));
            }
            return Ok(ShadowPlace::Occupied(known.index));
        }
        let Some(index) = cursor.claim(self) else {
            return Ok(ShadowPlace::Full);
        };
        self.table.install(index, shadow);
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
        Ok(ShadowPlace::New(index))
    }

    /// Writes a shadow anew, unless a packet has promoted it.
    fn rewrite_shadow(&self, index: u32, shadow: &CutFlow) {
        let marks = self.table.read(index).marks;
        // Packets are dropped for the moment.
        if self.table.exchange_state(index, state::SHADOW, state::ALLOCATED) {
            self.table.install(index, &CutFlow { marks, ..*shadow });
        }
    }

    /// Has this machine carry a shadow from now on, whether packets of it have come or not. False if it is none.
    pub fn promote(&self, index: u32) -> bool {
        self.table.exchange_state(index, state::SHADOW, state::CUT)
    }

    /// Begins to remove a shadow, unless a packet has promoted it: [`Cut::remove`] is to follow. Returns whether it is
    /// one.
    pub fn retire_shadow(&self, index: u32) -> bool {
        self.table.exchange_state(index, state::SHADOW, state::DELETING)
    }

    /// Leaves a flow to another balancer: it becomes a shadow, unless it has ended meanwhile.
    pub fn demote(&self, index: u32) -> bool {
        self.table.forget_numbers(index);
        self.table.changes.add(index);
        self.table.exchange_state(index, state::CUT, state::SHADOW)
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

    /// Has the next packet of each direction say the flow's numbers.
    fn forget_numbers(&self, index: u32) {
        for way in 0..2 {
            // SAFETY: as above.
            let flags = unsafe { AtomicU32::from_ptr(&raw mut (*self.entry(index)).dirs[way].flags) };
            flags.fetch_or(RESYNC, Ordering::Relaxed);
        }
    }
}
