//! Removal of everything that outlives the process.

use std::io;

use crate::pins::{PinKind, Pins, RemovedPins, removal};
use crate::{cut, l4, peek};

/// Removes everything of tier `cut` and of layer-4 services from this network namespace, of any version. Returns the
/// removed and the remaining pins. Refuses while a process uses it.
pub fn detach_all() -> io::Result<RemovedPins> {
    drop(Pins::lock(PinKind::Cut, false)?);
    drop(Pins::lock(PinKind::Layer4, false)?);
    // Before the programs, which keep ARP requests for these addresses from the kernel.
    cut::moving::remove_routes()?;
    peek::filters::remove_all();
    cut::hooks::remove_filters();
    let mut cleaned = removal::remove(PinKind::Cut)?;
    cleaned.removed.extend(l4::detach()?);
    // Everything still there could not be removed.
    cleaned.add(removal::remove(PinKind::Layer4)?);
    Ok(cleaned)
}
