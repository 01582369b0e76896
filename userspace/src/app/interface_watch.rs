//! Has programs attached as soon as an interface comes: until then a service is not served there, and the shield leaves
//! clients to userspace, which refuses them.

use std::time::Duration;

use crate::control::Control;
use crate::kernel::netlink::LinkWatch;

/// Time between two looks: a machine may get hundreds of interfaces at once, of which each look sees all.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Time that the shield has to stand at an interface before the programs that come after it are attached all the same.
const SHIELD_TIMEOUT: Duration = Duration::from_secs(2);

/// Starts the thread. Without it interfaces are found by looks from time to time, which go on in any case.
pub(super) fn start(control: &Control) {
    let control = control.clone();
    let thread = std::thread::Builder::new().name("interfaces".into());
    let begun = LinkWatch::open().and_then(|watch| thread.spawn(move || follow(watch, &control)));
    if let Err(error) = begun {
        tracing::warn!(%error, "The kernel does not tell of new interfaces: each gets its programs some time later.");
    }
}

fn follow(mut watch: LinkWatch, control: &Control) {
    loop {
        if let Err(error) = watch.wait() {
            tracing::warn!(%error, "The kernel does not report new interfaces any more: each gets its programs at the next look.");
            return;
        }
        // The order of the programs: the kernel peek waits for the shield, and for those of tier `cut`.
        control.services.look_now(SHIELD_TIMEOUT);
        if let Some(flow_gc) = &control.flow_gc {
            flow_gc.follow_interfaces();
        }
        if let Some(kernel_peek) = &control.kernel_peek {
            kernel_peek.look_again();
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}
