//! Parts of the programs that are in force: see `signalbox_common::parts`.

use signalbox_common::parts::ALL;

/// Bits of the parts in force, written by userspace before the object is loaded.
#[unsafe(no_mangle)]
static PARTS: u32 = ALL;

/// Whether a part is in force.
#[inline(always)]
pub fn has(part: u32) -> bool {
    // SAFETY: a constant of the object. Volatile, since its value is known at load time only.
    unsafe { (&raw const PARTS).read_volatile() & part != 0 }
}
