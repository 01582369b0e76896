//! Which parts of the programs are in force: see `signalbox_common::parts`.

use signalbox_common::parts::ALL;

/// Written by userspace before the object is loaded.
#[unsafe(no_mangle)]
static PARTS: u32 = ALL;

/// Whether a part is to be there.
#[inline(always)]
pub fn has(part: u32) -> bool {
    // SAFETY: a constant of the object. Volatile, since its value is known at load time only.
    unsafe { (&raw const PARTS).read_volatile() & part != 0 }
}
