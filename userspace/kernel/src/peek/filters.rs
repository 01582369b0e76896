//! Filters of clsact qdiscs that run the program where the kernel has no tcx links (before 6.6).
//!
//! A filter stays when its process dies. While a process takes over from another, each has a filter of its own: the
//! predecessor's program has no bindings then, and finishes the connections that it has begun.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use aya::programs::{SchedClassifier, TcAttachType};

use super::PROGRAM;
use crate::attach::{attach_filter, has_filter, has_tcx, remove_filter};
use crate::cut;
use crate::interfaces::{self, Interface};

const SIDE: TcAttachType = TcAttachType::Ingress;

/// Priorities of the filters, after those of tier `cut`. Each process takes one that no other has.
pub(crate) const PRIORITIES: RangeInclusive<u16> = cut::hooks::LAST_PRIORITY + 1..=cut::hooks::LAST_PRIORITY + 8;

/// Filters of this process.
pub(super) struct PeekFilters {
    priority: u16,
    attached: BTreeMap<u32, Interface>,
    /// Pid of the predecessor, whose filters stay until it has ended.
    predecessor: Option<u32>,
}

impl PeekFilters {
    /// `None` where the kernel has links.
    pub(super) fn new() -> Option<Self> {
        let is_free = |priority: &u16| !interfaces::all().iter().any(|at| has_filter(at.index, SIDE, *priority));
        (!has_tcx()).then(|| Self {
            priority: PRIORITIES.into_iter().find(is_free).unwrap_or(*PRIORITIES.end()),
            attached: BTreeMap::new(),
            predecessor: None,
        })
    }

    pub(super) fn is_attached(&self, index: u32) -> bool {
        self.attached.contains_key(&index)
    }

    /// Attaches to the interfaces in `wanted`, and to no other; again where another process has removed a filter.
    pub(super) fn reconcile(&mut self, program: &mut SchedClassifier, wanted: &[Interface]) {
        if self.predecessor.is_some_and(has_ended) {
            self.predecessor = None;
            self.remove_others();
        }
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

    /// Removes the filters of earlier processes, at once or when the predecessor has ended. Returns how many are gone.
    pub(super) fn replace_others(&mut self, predecessor: Option<u32>) -> usize {
        self.predecessor = predecessor;
        if predecessor.is_some() { 0 } else { self.remove_others() }
    }

    /// Removes the filters of this process, which ends.
    pub(super) fn remove_own(&mut self) {
        for interface in std::mem::take(&mut self.attached).values() {
            remove_filter(interface, SIDE, self.priority);
        }
    }

    fn remove_others(&self) -> usize {
        remove(PRIORITIES.filter(|priority| *priority != self.priority))
    }
}

fn has_ended(pid: u32) -> bool {
    !Path::new("/proc").join(pid.to_string()).exists()
}

/// Returns whether there are filters of any process.
pub(super) fn are_there() -> bool {
    let has_one = |at: &Interface| {
        PRIORITIES
            .into_iter()
            .any(|priority| has_filter(at.index, SIDE, priority))
    };
    !has_tcx() && interfaces::all().iter().any(has_one)
}

/// Removes the filters of all processes. Returns how many there were.
pub(crate) fn remove_all() -> usize {
    remove(PRIORITIES)
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
