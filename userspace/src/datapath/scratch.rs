//! Scratch buffer of a worker, so that connections need no buffer of their own unless they wait for a reader.

use std::cell::RefCell;

/// Size of the scratch buffer: the maximum number of bytes of one read.
pub const SCRATCH_BYTES: usize = 64 * 1024;

thread_local! {
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH_BYTES].into());
}

/// Lends the worker's scratch buffer to a closure.
pub fn with_scratch<T>(use_it: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with_borrow_mut(|buffer| use_it(buffer))
}
