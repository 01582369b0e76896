//! The loop of a thread that reconciles: a pass at an interval, or as soon as somebody asks for one, until it is closed.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Wake-ups of one thread.
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
    /// Waits in the thread for a wake-up or the end of the interval. Callers of wake-ups up to `handled` are released.
    /// Returns the number of the last wake-up, which the next pass handles. `None`: the thread should end.
    pub(super) fn next(&self, handled: u64, interval: Duration) -> Option<u64> {
        let mut state = self.state.lock();
        state.done = handled;
        self.changed.notify_all();
        let is_idle = |state: &mut WakeupState| state.asked == handled && !state.is_closed;
        self.changed.wait_while_for(&mut state, is_idle, interval);
        (!state.is_closed).then_some(state.asked)
    }

    /// Wakes the thread.
    pub(super) fn wake(&self) {
        self.state.lock().asked += 1;
        self.changed.notify_all();
    }

    /// Wakes the thread, and waits until it has handled the wake-up. Returns false if it ends, or `limit` is over, first.
    pub(super) fn wake_and_wait(&self, limit: Duration) -> bool {
        let mut state = self.state.lock();
        state.asked += 1;
        let number = state.asked;
        self.changed.notify_all();
        let is_pending = |state: &mut WakeupState| state.done < number && !state.is_closed;
        self.changed.wait_while_for(&mut state, is_pending, limit);
        state.done >= number
    }

    /// Ends the thread's loop, and releases all callers.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }
}

/// Closes the wake-ups when dropped, even by a panic: callers must not wait for a thread that has ended.
pub(super) struct CloseOnDrop<'a>(pub(super) &'a Wakeups);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
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
                let mut handled = 0;
                while let Some(woken) = wakeups.next(handled, WAKEUP_TIMEOUT) {
                    work.fetch_add(1, SeqCst);
                    handled = woken;
                }
            });
            for _ in 0..100 {
                let before = work.load(SeqCst);
                assert!(wakeups.wake_and_wait(WAKEUP_TIMEOUT));
                assert!(work.load(SeqCst) > before);
            }
            wakeups.close();
        });
        assert!(wakeups.is_closed());
        // The thread has ended, so this does not wait.
        assert!(!wakeups.wake_and_wait(WAKEUP_TIMEOUT));
    }

    #[test]
    fn a_thread_passes_at_its_interval_and_at_once_when_woken() {
        let wakeups = Wakeups::default();
        assert_eq!(wakeups.next(0, Duration::from_millis(1)), Some(0));
        wakeups.wake();
        let began = Instant::now();
        assert_eq!(wakeups.next(0, WAKEUP_TIMEOUT), Some(1));
        assert!(began.elapsed() < WAKEUP_TIMEOUT);
        drop(CloseOnDrop(&wakeups));
        assert_eq!(wakeups.next(1, WAKEUP_TIMEOUT), None);
    }

    #[test]
    fn waiting_for_a_stuck_thread_ends_at_the_limit() {
        let began = Instant::now();
        assert!(!Wakeups::default().wake_and_wait(Duration::from_millis(10)));
        assert!(began.elapsed() < WAKEUP_TIMEOUT);
    }
}
