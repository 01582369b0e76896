//! A thread of a server or a load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// A thread that is stopped and joined on drop.
pub struct Worker<T = ()> {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<T>>,
}

impl<T: Send + 'static> Worker<T> {
    /// Starts a thread, whose work must read the flag often: true once it is to stop.
    pub fn start(work: impl FnOnce(&AtomicBool) -> T + Send + 'static) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let flag = Arc::clone(&stop);
        Self {
            stop,
            thread: Some(std::thread::spawn(move || work(&flag))),
        }
    }

    /// Stops the thread and returns the result of its work. Panics if the work did.
    pub fn end(mut self) -> T {
        self.stop.store(true, Ordering::SeqCst);
        let thread = self.thread.take().expect("only the end takes the thread");
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
