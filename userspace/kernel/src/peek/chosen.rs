//! Hosts that the program has chosen for connections that it has passed up.

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use signalbox_common::net::Tuple;
use signalbox_common::peek::abi::PeekChosen;

use crate::cut::table::tick;
use crate::map::MmapArray;

/// Ticks for which a choice holds: about two seconds. A worker gets the connection within milliseconds.
const CHOICE_TICKS: u32 = 1907;

/// A choice of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChosenHost {
    /// Number of the host in the flow table.
    pub number: u32,
    /// Whether the host takes no connections now: another one of its cluster is to be chosen.
    pub is_away: bool,
}

/// The latest choices: map `PEEK_CHOSEN`.
pub struct ChosenHosts(MmapArray<PeekChosen>);

impl ChosenHosts {
    pub(super) const fn new(choices: MmapArray<PeekChosen>) -> Self {
        Self(choices)
    }

    /// Takes the choice for a client's connection, if there is one: it counts once.
    #[must_use]
    pub fn take(&self, client: &Tuple) -> Option<ChosenHost> {
        let (place, check) = PeekChosen::place(client);
        let chosen = self.0.at(place);
        // SAFETY: aligned, within the mapping; programs write each number whole, the check last.
        let (is_here, chosen) = unsafe {
            let current = AtomicU32::from_ptr(ptr::addr_of_mut!((*chosen).check));
            if check == 0 || current.load(Ordering::Acquire) != check {
                return None;
            }
            let read = chosen.read_volatile();
            let taken = current.compare_exchange(check, 0, Ordering::AcqRel, Ordering::Relaxed);
            (taken.is_ok(), read)
        };
        let is_recent = tick().wrapping_sub(chosen.tick).wrapping_add(CHOICE_TICKS) <= 2 * CHOICE_TICKS;
        (is_here && is_recent && chosen.host != 0).then_some(ChosenHost {
            number: chosen.host,
            is_away: chosen.is_away != 0,
        })
    }
}
