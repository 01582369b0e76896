//! Looks for foreign programs that see packets before ours.

use std::sync::Arc;
use std::time::Duration;

use crate::control::Control;
use crate::kernel::foreign;
use crate::kernel::interfaces::Interface;

const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Checks at intervals, shows the current programs, and logs changes.
pub(super) async fn follow(control: Control) {
    loop {
        let found = tokio::task::block_in_place(|| look(&control));
        if found != **control.shared.kernel.foreign_programs.load() {
            if found.is_empty() {
                tracing::info!("No other program sees packets before signalbox's any more.");
            } else {
                tracing::warn!(
                    programs = found.join("; "),
                    "Other programs see packets before signalbox's, and may drop or redirect them."
                );
            }
            control.shared.kernel.foreign_programs.store(Arc::new(found));
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

fn look(control: &Control) -> Vec<String> {
    let of_cut = control.kernel.cut.iter().flat_map(|(cut, _)| cut.attached_interfaces());
    let of_services = control.kernel.services.hooks().into_iter().map(|hook| Interface {
        index: hook.index,
        name: hook.interface,
        mtu: 0,
    });
    let mut used: Vec<_> = of_cut.chain(of_services).collect();
    used.sort();
    used.dedup_by_key(|interface| interface.index);
    foreign::before_ours(&used).iter().map(ToString::to_string).collect()
}
