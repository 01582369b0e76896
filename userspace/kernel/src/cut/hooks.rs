//! Keeps the programs of tier `cut` on the interfaces that routes use.

use std::collections::BTreeMap;

use aya::Ebpf;
use aya::programs::{SchedClassifier, TcAttachType, tc};
use signalbox_common::ABI_VERSION;

use crate::attach::{
    PRIORITY_COUNT, attach_filter, attach_link, has_tcx, is_attached, link_name, remove_other_filters,
};
use crate::error::KernelError;
use crate::interfaces::{self, Interface};
use crate::l4::hooks::TC_PROGRAM;
use crate::object::program;
use crate::pins::{PinKind, Pins};

/// Last of our priorities among filters of an interface: before those of others, which have 49152 and up by default.
pub(crate) const LAST_PRIORITY: u16 = 50;

/// Priority of this version's filters.
const PRIORITY: u16 = LAST_PRIORITY - (ABI_VERSION as u16) % PRIORITY_COUNT;

const PROGRAMS: [(&str, TcAttachType); 2] = [("cut_in", TcAttachType::Ingress), ("cut_out", TcAttachType::Egress)];

/// Programs of tier `cut`, and the interfaces that they are attached to.
pub struct CutHooks {
    ebpf: Ebpf,
    pins: Pins,
    attached: BTreeMap<u32, Interface>,
    /// Errors of interfaces that could not be attached to, by index, so that each is logged once.
    refused: BTreeMap<u32, String>,
    smallest_mtu: Option<u32>,
    tcx: bool,
}

impl CutHooks {
    pub(super) fn new(ebpf: Ebpf, pins: Pins) -> Self {
        pins.restore();
        Self {
            ebpf,
            pins,
            attached: BTreeMap::new(),
            refused: BTreeMap::new(),
            smallest_mtu: None,
            tcx: has_tcx(),
        }
    }

    /// Attaches to new interfaces in `wanted`, and forgets interfaces that are gone. One that is down, or whose routes
    /// are gone, keeps its programs: when it is back, the first packets of cut flows must meet them, not the kernel's
    /// resets. `look`: programs that another process has removed are attached again.
    pub(super) fn reconcile(&mut self, wanted: &[Interface], look: bool) {
        let gone: Vec<u32> = self
            .attached
            .values()
            .filter(|interface| !interface.exists())
            .map(|interface| interface.index)
            .collect();
        for index in gone {
            self.attached.remove(&index);
            for (name, _) in PROGRAMS {
                // The link of an interface that is gone is defunct.
                let _ = std::fs::remove_file(self.pins.path(&link_name(index, name)));
            }
            tracing::info!(interface = index, "An interface with the cut-through programs is gone.");
        }
        if look {
            self.forget_removed();
        }
        let is_wanted = |index: &u32| wanted.iter().any(|interface| interface.index == *index);
        self.refused.retain(|index, _| is_wanted(index));
        self.smallest_mtu = wanted.iter().map(|interface| interface.mtu).min();
        for interface in wanted {
            if self.attached.get(&interface.index) == Some(interface) {
                continue;
            }
            let known = self.attached.contains_key(&interface.index);
            match if known { Ok(()) } else { self.attach(interface) } {
                Ok(()) => {
                    if !known {
                        tracing::info!(
                            interface = interface.name,
                            tcx = self.tcx,
                            "Cut-through programs are attached to an interface."
                        );
                    }
                    self.attached.insert(interface.index, interface.clone());
                    self.refused.remove(&interface.index);
                }
                Err(error) => {
                    let error = signalbox_sys::error_chain(&error);
                    if self.refused.get(&interface.index) != Some(&error) {
                        tracing::warn!(
                            interface = interface.name,
                            error,
                            "Cut-through programs cannot be attached to an interface."
                        );
                        self.refused.insert(interface.index, error);
                    }
                }
            }
        }
    }

    /// Forgets interfaces whose programs are not there any more.
    fn forget_removed(&mut self) {
        self.pins.restore();
        let pins = &self.pins;
        self.attached.retain(|&index, interface| {
            let is_there = |(name, side)| is_attached(index, side, PRIORITY, &pins.path(&link_name(index, name)));
            let all = PROGRAMS.into_iter().all(is_there);
            if !all {
                tracing::warn!(
                    interface = interface.name,
                    "A cut-through program was removed from an interface by another process: it is attached again."
                );
            }
            all
        });
    }

    /// Iterates over the interfaces with programs.
    pub(super) fn attached(&self) -> impl Iterator<Item = &Interface> {
        self.attached.values()
    }

    /// Returns the number of interfaces with programs.
    #[must_use]
    pub fn count(&self) -> usize {
        self.attached.len()
    }

    /// Returns the smallest MTU among the interfaces that routes use.
    #[must_use]
    pub(super) const fn smallest_mtu(&self) -> Option<u32> {
        self.smallest_mtu
    }

    fn attach(&mut self, interface: &Interface) -> Result<(), KernelError> {
        for (name, side) in PROGRAMS {
            let pin = self.pins.path(&link_name(interface.index, name));
            let program: &mut SchedClassifier = program(&mut self.ebpf, name)?;
            if self.tcx {
                // The shield comes before the flows.
                let before = crate::pins::path(PinKind::Layer4, &link_name(interface.index, TC_PROGRAM)).ok();
                let before = before.filter(|_| side == TcAttachType::Ingress);
                attach_link(name, program, interface, side, &pin, before.as_deref())?;
            } else {
                attach_filter(name, program, interface, side, PRIORITY)?;
            }
        }
        Ok(())
    }
}

/// Removes our filters from all interfaces, where programs are attached by filters.
pub(crate) fn remove_filters() {
    for interface in interfaces::all() {
        for (name, side) in PROGRAMS {
            // Usually there is no filter: errors are ignored.
            let _ = tc::qdisc_detach_program(&interface.name, side, name);
        }
    }
}

/// Removes the filters of other versions from all interfaces, where programs are attached by filters.
pub(super) fn remove_filters_of_other_versions() {
    for (name, side) in PROGRAMS {
        remove_other_filters(&interfaces::all(), name, side, LAST_PRIORITY, PRIORITY);
    }
}
