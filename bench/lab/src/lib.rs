//! Lab of end-to-end tests and benchmarks: network namespaces joined by veth pairs, processes that do not outlive their
//! owner, configurations of router hosts, TCP servers, and removal of what a killed run left.
//!
//! Owns: the parts that both of them use. Never: signalbox itself, which is a process like any other here; addresses and topologies, which
//! each user has of its own.
//!
//! A function whose name begins with `try_`, or that returns a `Result`, reports errors. The others panic, for that is
//! how a test fails.

mod capable;
mod clean;
mod machine;
pub mod namespace;
pub mod process;
pub mod router;
mod sandbox;
pub mod server;
mod sockets;
mod stop;
mod worker;

use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub use capable::{is_installed, privileged};
pub use clean::{namespaces, remove, remove_stale};
pub use machine::{Cpu, field, is_alive, resident};
pub use namespace::Ns;
pub use process::Proc;
pub use sandbox::{Kind, Sandbox};
pub use server::Server;
pub use signalbox_lab_attribute::lab_test;
pub use stop::StopOnDrop;
pub use worker::Worker;

/// Polls until `condition` holds; false if it does not within `limit`, which is longer where
/// `SIGNALBOX_TEST_PATIENCE` says that the processor is emulated.
pub fn eventually(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit * patience();
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the factor for time limits: `SIGNALBOX_TEST_PATIENCE`, or 1.
pub fn patience() -> u32 {
    static PATIENCE: OnceLock<u32> = OnceLock::new();
    *PATIENCE.get_or_init(|| {
        let said = std::env::var("SIGNALBOX_TEST_PATIENCE").ok();
        said.and_then(|said| said.parse().ok()).unwrap_or(1)
    })
}
