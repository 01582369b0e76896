//! Attaches programs to interfaces: by tcx links where the kernel has them (6.6+), by filters of a clsact qdisc
//! elsewhere.
//!
//! A link is pinned, and so outlives the process; a filter does by itself. The next process replaces the program in
//! either in one step, so that no packet passes without one.

use std::path::Path;

use aya::programs::links::{FdLink, LinkOrder, PinnedLink};
use aya::programs::tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle};
use aya::programs::{ProgramError, SchedClassifier, TcAttachType, tc};

use crate::error::KernelError;
use crate::interfaces::Interface;
use crate::pins::LINK_PREFIX;
use crate::version::Version;

/// Number of our priorities: each version of the maps has one of its own, so that the filters of two versions stand
/// beside each other until flows are carried over.
pub(crate) const PRIORITY_COUNT: u16 = 8;

/// Handle of our filters among those of the same priority.
const HANDLE: TcHandle = TcHandle::new(0, 1);

/// Removes a program's filters from interfaces, except for those of priority `ours`.
pub(crate) fn remove_other_filters(from: &[Interface], name: &str, side: TcAttachType, last: u16, ours: u16) {
    if has_tcx() {
        return;
    }
    for interface in from {
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

pub(crate) fn link_name(index: u32, program: &str) -> String {
    format!("{LINK_PREFIX}{index}-{program}")
}

/// Replaces the program in the pinned link, or makes a link and pins it.
pub(crate) fn attach_link(
    name: &'static str,
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
        .map_err(attach_error(name))?;
    let link: FdLink = program
        .take_link(id)
        .map_err(attach_error(name))?
        .try_into()
        .map_err(|e: aya::programs::links::LinkError| pin_error(&e))?;
    link.pin(pin).map(drop).map_err(|e| pin_error(&e))
}

/// Replaces the program in the filter, or makes a filter.
pub(crate) fn attach_filter(
    name: &'static str,
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
                .map_err(attach_error(name))?
        }
    };
    // Forgotten, because dropping the link would detach the filter.
    std::mem::forget(program.take_link(id).map_err(attach_error(name))?);
    Ok(())
}

/// Converts errors of loading, attaching and running the program `name`.
pub(crate) fn attach_error(name: &'static str) -> impl Fn(ProgramError) -> KernelError {
    move |source| KernelError::Program {
        name,
        source: Box::new(source),
    }
}

pub(crate) fn pin_error(error: &(dyn std::error::Error + 'static)) -> KernelError {
    KernelError::Io {
        what: "pinning a link",
        source: std::io::Error::other(signalbox_sys::error_chain(error)),
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
