//! Loops of the kernel (`bpf_loop`, kernel/bpf/bpf_iter.c, Linux 5.17), which calls a function for each round.
//!
//! The verifier walks a round until it leaves everything as the round before it did. A number that a round changes must
//! be hidden from the verifier, or stored in a map.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_loop;
use signalbox_common::net::bounded_loop::{BoundedLoop, Round};

pub struct KernelLoop;

impl BoundedLoop for KernelLoop {
    #[inline(always)]
    fn repeat<R: Round>(rounds: u32, state: &mut R) {
        // SAFETY: the kernel calls the function with this context, during this call only.
        unsafe { bpf_loop(rounds, round::<R> as *mut c_void, (&raw mut *state).cast(), 0) };
    }
}

/// A round: other than 0 ends the loop.
extern "C" fn round<R: Round>(_index: u64, state: *mut R) -> i64 {
    // SAFETY: the pointer that `repeat` gave.
    i64::from(unsafe { !(*state).round() })
}
