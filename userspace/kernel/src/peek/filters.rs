//! Filters of clsact qdiscs that run the program where the kernel has no tcx links (before 6.6).
//!
//! A filter stays when its process dies; the settings of its program say what that does without a process. The filters of
//! two processes coexist during a takeover: whichever is asked first leaves to the other what it does not route.

use std::collections::BTreeMap;

use aya::programs::{SchedClassifier, TcAttachType};

use super::PROGRAM;
use crate::attach::{attach_filter, has_filter, has_tcx, remove_filter};
use crate::cut;
use crate::interfaces::{self, Interface};

const SIDE: TcAttachType = TcAttachType::Ingress;

/// Priorities of the filters: after those of tier `cut`. A process takes the one that its predecessor does not have.
pub(crate) const PRIORITIES: [u16; 2] = [cut::hooks::LAST_PRIORITY + 1, cut::hooks::LAST_PRIORITY + 2];

/// Filters of this process.
pub(super) struct PeekFilters {
    priority: u16,
    attached: BTreeMap<u32, Interface>,
}

impl PeekFilters {
    /// `None` where the kernel has links.
    pub(super) fn new() -> Option<Self> {
        let is_taken = |priority: u16| interfaces::all().iter().any(|at| has_filter(at.index, SIDE, priority));
        (!has_tcx()).then(|| Self {
            priority: PRIORITIES[usize::from(is_taken(PRIORITIES[0]))],
            attached: BTreeMap::new(),
        })
    }

    pub(super) fn is_attached(&self, index: u32) -> bool {
        self.attached.contains_key(&index)
    }

    /// Attaches to the interfaces in `wanted`, and to no other; again where another process has removed a filter.
    pub(super) fn reconcile(&mut self, program: &mut SchedClassifier, wanted: &[Interface]) {
        let priority = self.priority;
        self.attached.retain(|_, interface| {
            let is_wanted = wanted.contains(interface);
            if !is_wanted {
                remove_filter(interface, SIDE, priority);
            }
            is_wanted && has_filter(interface.index, SIDE, priority)
        });
        for interface in wanted {
            if self.is_attached(interface.index) {
                continue;
            }
            match attach_filter(PROGRAM, program, interface, SIDE, priority) {
                Ok(()) => {
                    super::hooks::note_attached(interface);
                    self.attached.insert(interface.index, interface.clone());
                }
                Err(error) => super::hooks::note_refused(interface, &error),
            }
        }
    }

    /// Removes the filters of this process, which ends.
    pub(super) fn remove_own(&mut self) {
        for interface in std::mem::take(&mut self.attached).values() {
            remove_filter(interface, SIDE, self.priority);
        }
    }

    /// Removes the filters of other processes. Returns how many there were.
    pub(super) fn remove_others(&self) -> usize {
        remove(PRIORITIES.into_iter().filter(|priority| *priority != self.priority))
    }
}

/// Returns whether there are filters of any process.
pub(super) fn are_there() -> bool {
    let has_one = |at: &Interface| PRIORITIES.iter().any(|priority| has_filter(at.index, SIDE, *priority));
    !has_tcx() && interfaces::all().iter().any(has_one)
}

/// Removes the filters of all processes. Returns how many there were.
pub(crate) fn remove_all() -> usize {
    if has_tcx() { 0 } else { remove(PRIORITIES.into_iter()) }
}

fn remove(priorities: impl Iterator<Item = u16> + Clone) -> usize {
    let of = |at: &Interface| {
        priorities
            .clone()
            .filter(|priority| remove_filter(at, SIDE, *priority))
            .count()
    };
    interfaces::all().iter().map(of).sum()
}
