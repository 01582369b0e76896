//! End of threads that work until they are told to stop.

use std::sync::atomic::{AtomicBool, Ordering};

/// Tells threads to stop when it is dropped, also while a test panics: a scope waits for its threads, so the failure
/// would come as a timeout.
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
