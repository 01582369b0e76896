//! Wake-ups of the thread that keeps the tables. Only this thread makes tables: each thread that did would keep an
//! allocator arena as large as the largest tables it ever made.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

#[derive(Default)]
pub(super) struct Wakeups {
    state: Mutex<WakeupState>,
    changed: Condvar,
}

#[derive(Default)]
struct WakeupState {
    /// Number of wake-ups so far.
    asked: u64,
    /// Number of the last wake-up that the thread has handled.
    done: u64,
    is_closed: bool,
}

impl Wakeups {
    /// Wakes the thread, and waits until it has handled the wake-up, has ended, or `limit` is over.
    pub(super) fn wake(&self, limit: Duration) {
        let mut state = self.state.lock();
        state.asked += 1;
        let number = state.asked;
        self.changed.notify_all();
        let is_pending = |state: &mut WakeupState| state.done < number && !state.is_closed;
        self.changed.wait_while_for(&mut state, is_pending, limit);
    }

    /// Number of the last wake-up, for [`Self::finish`]: read before the work.
    pub(super) fn asked(&self) -> u64 {
        self.state.lock().asked
    }

    /// Releases the callers of wake-ups up to this number, and waits for another wake-up or the end of the interval.
    pub(super) fn finish(&self, number: u64, interval: Duration) {
        let mut state = self.state.lock();
        state.done = number;
        self.changed.notify_all();
        let is_idle = |state: &mut WakeupState| state.asked == number && !state.is_closed;
        self.changed.wait_while_for(&mut state, is_idle, interval);
    }

    /// Closes the wake-ups, so that no thread waits for one that has ended.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    use std::time::Instant;

    use super::*;

    const WAKEUP_TIMEOUT: Duration = Duration::from_secs(600);

    #[test]
    fn a_wakeup_waits_until_the_thread_has_finished_its_work() {
        let (wakeups, work) = (Wakeups::default(), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !wakeups.state.lock().is_closed {
                    let number = wakeups.asked();
                    work.fetch_add(1, SeqCst);
                    wakeups.finish(number, WAKEUP_TIMEOUT);
                }
            });
            for _ in 0..100 {
                let before = work.load(SeqCst);
                wakeups.wake(WAKEUP_TIMEOUT);
                assert!(work.load(SeqCst) > before);
            }
            wakeups.close();
        });
        // The thread has ended, so this does not wait.
        wakeups.wake(WAKEUP_TIMEOUT);
    }

    #[test]
    fn waiting_for_a_stuck_thread_ends_at_the_limit() {
        let began = Instant::now();
        Wakeups::default().wake(Duration::from_millis(10));
        assert!(began.elapsed() < WAKEUP_TIMEOUT);
    }
}
