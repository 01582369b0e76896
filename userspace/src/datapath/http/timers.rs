//! Timers of a worker's HTTP/2 exchanges, which are reused.

use std::cell::RefCell;
use std::pin::Pin;
use std::time::{Duration, Instant};

use tokio::time::{Sleep, sleep_until};

/// Time for which a new timer is set. Timers are moved to the required time before they fire.
const NEW_TIMER_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of unused timers.
const MAX_TIMERS: usize = 1024;

/// Timers of ended exchanges. They stay in tokio's wheel. Without reuse, each exchange would add and remove its own.
#[derive(Default)]
pub(in crate::datapath) struct TimerPool(RefCell<Vec<Pin<Box<Sleep>>>>);

impl TimerPool {
    pub(super) fn take(&self) -> Pin<Box<Sleep>> {
        let kept = self.0.borrow_mut().pop();
        kept.unwrap_or_else(|| Box::pin(sleep_until((Instant::now() + NEW_TIMER_TIMEOUT).into())))
    }

    pub(super) fn put(&self, timer: Pin<Box<Sleep>>) {
        let mut timers = self.0.borrow_mut();
        if timers.len() < MAX_TIMERS {
            timers.push(timer);
        }
    }
}
