//! `signalbox detach`: removes what outlives the process in the kernel.

use std::process::ExitCode;

/// Removes pinned programs and maps, and lists them. With `all`, pins of removed network namespaces go first, even if a
/// process uses the pins of this namespace.
pub(super) fn run(all: bool) -> anyhow::Result<ExitCode> {
    let stale_pins = all.then(signalbox_kernel::pins::stale_pins::collect).transpose()?;
    if let Some(stale_pins) = &stale_pins {
        print_cleaned(stale_pins);
    }
    let own = signalbox_kernel::detach::detach_all()?;
    print_cleaned(&own);
    if own.removed.is_empty() && own.left.is_empty() {
        println!("nothing is pinned for this network namespace");
    }
    Ok(ExitCode::SUCCESS)
}

fn print_cleaned(cleaned: &signalbox_kernel::pins::RemovedPins) {
    for path in &cleaned.removed {
        println!("removed {}", path.display());
    }
    for (path, why) in &cleaned.left {
        println!("left {}: {why}", path.display());
    }
}
