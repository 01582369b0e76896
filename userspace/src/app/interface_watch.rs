//! Attaches programs as soon as an interface appears. Until then a service does not work there, and the shield leaves
//! clients to userspace, which refuses them.

use std::time::Duration;

use crate::control::Control;
use crate::kernel::netlink::LinkWatch;

/// Time between two checks: a machine may get hundreds of interfaces at once, and each check sees all of them.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Time for the shield to be attached to an interface. After that, the programs that follow it are attached anyway.
const SHIELD_TIMEOUT: Duration = Duration::from_secs(2);

/// Starts the thread. Without it, new interfaces are found only by the regular checks.
pub(super) fn start(control: &Control) {
    let control = control.clone();
    let thread = std::thread::Builder::new().name("interfaces".into());
    let begun = LinkWatch::open().and_then(|watch| thread.spawn(move || follow(watch, &control)));
    if let Err(error) = begun {
        tracing::warn!(%error, "The kernel does not report new interfaces: each gets its programs at the next look.");
    }
}

fn follow(mut watch: LinkWatch, control: &Control) {
    loop {
        if let Err(error) = watch.wait() {
            tracing::warn!(%error, "The kernel does not report new interfaces any more: each gets its programs at the next look.");
            return;
        }
        // The order matters: the kernel peek waits for the shield and for the programs of tier `cut`.
        control.kernel.services.look_now(SHIELD_TIMEOUT);
        if let Some(flow_gc) = &control.kernel.flow_gc {
            flow_gc.follow_interfaces();
        }
        if let Some(kernel_peek) = &control.kernel.kernel_peek {
            kernel_peek.look_again();
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}
