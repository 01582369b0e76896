//! Attaches programs to interfaces: by tcx links where the kernel has them (6.6+), by filters of a clsact qdisc
//! elsewhere.
//!
//! A link is pinned to outlive the process; a filter needs no pin. The next process replaces the program of either in
//! one step, so that no packet passes without one; the kernel peek has its own way, see `peek/hooks.rs`.

use std::path::Path;

use aya::programs::links::{FdLink, LinkOrder, PinnedLink};
use aya::programs::tc::{NlOptions, SchedClassifierLink, SchedClassifierLinkId, TcAttachOptions, TcHandle};
use aya::programs::{ProgramError, SchedClassifier, TcAttachType, tc};

use crate::attached;
use crate::error::KernelError;
use crate::interfaces::Interface;
use crate::pins::LINK_PREFIX;
use crate::version::Version;

/// Number of our priorities: each version of the maps has its own, so that the filters of two versions coexist until
/// flows are carried over.
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
            // Usually there is no such filter.
            let gone = remove_filter(interface, side, priority);
            tracing::trace!(
                interface = interface.name,
                name,
                priority,
                gone,
                "A filter of another version."
            );
        }
    }
}

/// Removes our filter of a priority. Returns whether there was one.
pub(crate) fn remove_filter(interface: &Interface, side: TcAttachType, priority: u16) -> bool {
    SchedClassifierLink::attached(&interface.name, side, priority, HANDLE, None)
        .is_ok_and(|filter| aya::programs::links::Link::detach(filter).is_ok())
}

/// Returns whether an interface has our filter of a priority.
pub(crate) fn has_filter(index: u32, side: TcAttachType, priority: u16) -> bool {
    attached::by_filter(index, side, priority, HANDLE.into())
}

pub(crate) fn link_name(index: u32, program: &str) -> String {
    format!("{LINK_PREFIX}{index}-{program}")
}

/// Returns whether the kernel has a program still where [`attach_link`], or [`attach_filter`], has attached it.
pub(crate) fn is_attached(index: u32, side: TcAttachType, priority: u16, pin: &Path) -> bool {
    if has_tcx() {
        attached::by_link(pin, index)
    } else {
        has_filter(index, side, priority)
    }
}

/// Place right after a pinned link; `None` where there is none. The link must stay open until the place is used.
fn after_pinned(pin: &Path) -> Option<(SchedClassifierLink, LinkOrder)> {
    let link = SchedClassifierLink::try_from(FdLink::from(PinnedLink::from_pin(pin).ok()?)).ok()?;
    let order = LinkOrder::after_link(&link).ok()?;
    Some((link, order))
}

/// Replaces the program in the pinned link, or makes a link and pins it. A new link is put right after that of `after`,
/// or first if there is none: all other programs see packets as they did without us.
pub(crate) fn attach_link(
    name: &'static str,
    program: &mut SchedClassifier,
    interface: &Interface,
    side: TcAttachType,
    pin: &Path,
    after: Option<&Path>,
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
    let id = attach_after(program, interface, side, after, LinkOrder::first()).map_err(attach_error(name))?;
    let link: FdLink = program
        .take_link(id)
        .map_err(attach_error(name))?
        .try_into()
        .map_err(|e: aya::programs::links::LinkError| pin_error(&e))?;
    link.pin(pin).map(drop).map_err(|e| pin_error(&e))
}

/// Attaches a program right after the link that is pinned at `after`, and at another place where there is none.
pub(crate) fn attach_after(
    program: &mut SchedClassifier,
    interface: &Interface,
    side: TcAttachType,
    after: Option<&Path>,
    otherwise: LinkOrder,
) -> Result<SchedClassifierLinkId, ProgramError> {
    if let Some((_link, order)) = after.and_then(after_pinned)
        && let Ok(id) = program.attach_with_options(&interface.name, side, TcAttachOptions::TcxOrder(order))
    {
        return Ok(id);
    }
    program.attach_with_options(&interface.name, side, TcAttachOptions::TcxOrder(otherwise))
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
