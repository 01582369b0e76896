//! Interruption: Ctrl-C only raises a flag. All long work checks it, so that the run ends through every `Drop`, which
//! ends processes and removes namespaces.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

static RAISED: AtomicBool = AtomicBool::new(false);

extern "C" fn raise(_: libc::c_int) {
    RAISED.store(true, Ordering::Relaxed);
}

/// Installs handlers: from now on SIGINT, SIGTERM and SIGHUP end the run in order.
pub(crate) fn install() -> Result<()> {
    let action = SigAction::new(SigHandler::Handler(raise), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which is safe in a signal handler.
        unsafe { sigaction(signal, &action) }?;
    }
    Ok(())
}

/// Whether the run must end.
pub(crate) fn raised() -> bool {
    RAISED.load(Ordering::Relaxed)
}

/// Fails if the run must end.
pub(crate) fn check() -> Result<()> {
    if raised() {
        bail!("interrupted");
    }
    Ok(())
}

/// Sleeps until `then`, or fails early if the run must end.
pub(crate) fn sleep_until(then: Instant) -> Result<()> {
    loop {
        check()?;
        let left = then.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}
