//! Routes of wildcards: a name is reversed, so that the common part of wildcards is their beginning.

use aya_ebpf::maps::lpm_trie::Key;
use signalbox_common::{
    net::bounded_loop::{BoundedLoop as _, Round},
    peek::{
        abi::{PeekReading, PeekRoute, PeekSuffix},
        name::{MAX_NAME_BYTES, NameReverser},
    },
};

use super::{kernel_loop::KernelLoop, maps::PEEK_WILDCARDS, read::forget};

/// The route of the longest wildcard that matches the name that was read.
#[inline(always)]
pub fn find(reading: &mut PeekReading) -> Option<*const PeekRoute> {
    if turn_around(reading) != 0 {
        return None;
    }
    reading.suffix.suffix.protocol = reading.name.protocol;
    reading.suffix.bits = 8 + 8 * u32::from(reading.name.length);
    // SAFETY: of the same layout: a length in bits, and the key.
    let key = unsafe { &*(&raw const reading.suffix).cast::<Key<PeekSuffix>>() };
    let found = core::ptr::from_ref(PEEK_WILDCARDS.get(key)?);
    // SAFETY: an element of the map, replaced as a whole.
    let length = unsafe { (*found).length };
    let is_one_label = reading.reverser.first_label + length == u32::from(reading.name.length);
    // SAFETY: as above.
    let routes = unsafe { &raw const (*found).routes };
    let first = routes.cast::<PeekRoute>();
    // SAFETY: the second of two.
    Some(if is_one_label { first } else { unsafe { first.add(1) } })
}

/// Reverses the name; other than 0: no wildcard matches it.
#[inline(never)]
fn turn_around(reading: &mut PeekReading) -> u32 {
    reading.reverser = NameReverser::new();
    let mut steps = NameRounds(reading);
    KernelLoop::repeat(MAX_NAME_BYTES as u32 + 1, &mut steps);
    steps.0.reverser.is_bad
}

struct NameRounds<'a>(&'a mut PeekReading);

impl Round for NameRounds<'_> {
    #[inline(always)]
    fn round(&mut self) -> bool {
        let reading = &mut *self.0;
        let goes_on = reading.reverser.step(&reading.name, &mut reading.suffix.suffix);
        forget(reading);
        goes_on
    }
}
