//! Attaches the programs to interfaces: by tcx links where the kernel has them (6.6+), by filters of a clsact qdisc
//! elsewhere.
//!
//! A link is pinned, and so outlives the process; a filter does by itself. The next process replaces the program in
//! either in one step, so that no packet passes without one.

use std::collections::BTreeMap;
use std::path::Path;

use aya::Ebpf;
use aya::programs::links::{FdLink, LinkOrder, PinnedLink};
use aya::programs::tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle};
use aya::programs::{ProgramError, SchedClassifier, TcAttachType, tc};
use signalbox_common::ABI_VERSION;

use super::interfaces::Interface;
use super::pins::Pins;
use crate::kernel::object::{KernelError, program};
use crate::kernel::version::Version;

/// Prefix of the names of pinned links.
pub const LINK_PREFIX: &str = "link-";

/// Last of our priorities among filters of an interface: before those of others, which have 49152 and up unless told
/// otherwise.
const LAST_PRIORITY: u16 = 50;

/// Number of our priorities: each version of the maps has one of its own, so that the filters of two versions stand
/// beside each other until flows are carried over.
pub(in crate::kernel) const PRIORITY_COUNT: u16 = 8;

/// Priority of this version's filters.
const PRIORITY: u16 = LAST_PRIORITY - (ABI_VERSION as u16) % PRIORITY_COUNT;

/// Handle of our filters among those of the same priority.
const HANDLE: TcHandle = TcHandle::new(0, 1);

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
    /// resets.
    pub(super) fn reconcile(&mut self, wanted: &[Interface]) {
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
                    let error = crate::sys::error_chain(&error);
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
                attach_link(program, interface, side, &pin)?;
            } else {
                attach_filter(program, interface, side, PRIORITY)?;
            }
        }
        Ok(())
    }
}

/// Removes our filters from all interfaces, where programs are attached by filters.
pub(super) fn remove_filters() {
    for interface in super::interfaces::all() {
        for (name, side) in PROGRAMS {
            // Usually there is no filter: errors are ignored.
            let _ = tc::qdisc_detach_program(&interface.name, side, name);
        }
    }
}

/// Removes the filters of other versions from all interfaces, where programs are attached by filters.
pub(super) fn remove_filters_of_other_versions() {
    for (name, side) in PROGRAMS {
        remove_other_filters(name, side, LAST_PRIORITY, PRIORITY);
    }
}

/// Removes a program's filters from all interfaces, except for those of priority `ours`.
pub(in crate::kernel) fn remove_other_filters(name: &str, side: TcAttachType, last: u16, ours: u16) {
    if has_tcx() {
        return;
    }
    for interface in super::interfaces::all() {
        for priority in (last + 1 - PRIORITY_COUNT..=last).filter(|&priority| priority != ours) {
            // Usually there is no such filter: errors are ignored.
            if let Ok(filter) = SchedClassifierLink::attached(&interface.name, side, priority, HANDLE, None) {
                let gone = aya::programs::links::Link::detach(filter);
                tracing::trace!(
                    interface = interface.name,
                    name,
                    priority,
                    ?gone,
                    "A filter of another version."
                );
            }
        }
    }
}

pub(in crate::kernel) fn link_name(index: u32, program: &str) -> String {
    format!("{LINK_PREFIX}{index}-{program}")
}

/// Replaces the program in the pinned link, or makes a link and pins it.
pub(in crate::kernel) fn attach_link(
    program: &mut SchedClassifier,
    interface: &Interface,
    side: TcAttachType,
    pin: &Path,
) -> Result<(), KernelError> {
    if let Ok(pinned) = PinnedLink::from_pin(pin) {
        let replaced = SchedClassifierLink::try_from(FdLink::from(pinned))
            .ok()
            .and_then(|link| program.attach_to_link(link).ok())
            .and_then(|id| program.take_link(id).ok());
        if let Some(link) = replaced {
            // The pin keeps the link: the descriptor is not needed.
            drop(link);
            return Ok(());
        }
        // The defunct link of an interface that is gone, and whose index another interface has now.
        let _ = std::fs::remove_file(pin);
    }
    // First in order, so that all other programs there see packets as they did without us.
    let options = TcAttachOptions::TcxOrder(LinkOrder::first());
    let id = program
        .attach_with_options(&interface.name, side, options)
        .map_err(attach_error)?;
    let link: FdLink = program
        .take_link(id)
        .map_err(attach_error)?
        .try_into()
        .map_err(|e: aya::programs::links::LinkError| pin_error(&e))?;
    link.pin(pin).map(drop).map_err(|e| pin_error(&e))
}

/// Replaces the program in the filter, or makes a filter.
pub(in crate::kernel) fn attach_filter(
    program: &mut SchedClassifier,
    interface: &Interface,
    side: TcAttachType,
    priority: u16,
) -> Result<(), KernelError> {
    let replaced = SchedClassifierLink::attached(&interface.name, side, priority, HANDLE, None)
        .ok()
        .and_then(|link| program.attach_to_link(link).ok());
    let id = match replaced {
        Some(id) => id,
        None => {
            // Usually there is one already: errors are ignored.
            let _ = tc::qdisc_add_clsact(&interface.name);
            let options = NlOptions {
                priority,
                handle: HANDLE,
                classid: None,
            };
            program
                .attach_with_options(&interface.name, side, TcAttachOptions::Netlink(options))
                .map_err(attach_error)?
        }
    };
    // Forgotten, because dropping the link would detach the filter.
    std::mem::forget(program.take_link(id).map_err(attach_error)?);
    Ok(())
}

pub(in crate::kernel) fn attach_error(source: aya::programs::ProgramError) -> KernelError {
    KernelError::Program {
        name: "cut",
        source: Box::new(source),
    }
}

pub(in crate::kernel) fn pin_error(error: &(dyn std::error::Error + 'static)) -> KernelError {
    KernelError::Io {
        what: "pinning a link",
        source: std::io::Error::other(crate::sys::error_chain(error)),
    }
}

/// Returns whether programs attach to interfaces by tcx links (kernel 6.6, some vendors' earlier ones). Asks for those
/// of loopback, which every network namespace has.
#[must_use]
pub fn has_tcx() -> bool {
    if std::env::var_os("SIGNALBOX_CLSACT").is_some() {
        return false;
    }
    match SchedClassifier::query_tcx("lo", TcAttachType::Ingress) {
        Ok(_) => true,
        // EINVAL: no such attach type.
        Err(ProgramError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::EINVAL) => false,
        Err(_) => Version::running().is_at_least(6, 6),
    }
}
