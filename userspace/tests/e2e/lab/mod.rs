//! The laboratory of the end-to-end tests: a client, the balancer and two clusters, each in a network namespace of
//! its own, with real router hosts (HAProxy, nginx) and servers that misbehave on demand.
//!
//! Traffic never leaves the namespaces made here, so tests neither need nor disturb the machine's own network.

#![allow(
    dead_code,
    unused_imports,
    reason = "shared by several test binaries, each of which uses a part"
)]
pub(crate) mod callers;
pub(crate) mod config;
pub(crate) mod crowd;
pub(crate) mod cut;
pub(crate) mod exchange;
pub(crate) mod flood;
pub(crate) mod hello;
pub(crate) mod http;
pub(crate) mod impair;
pub(crate) mod load;
pub(crate) mod namespace;
pub(crate) mod process;
pub(crate) mod raw;
pub(crate) mod router;
pub(crate) mod servers;
pub(crate) mod services;
pub(crate) mod signalbox;
pub(crate) mod syn;
pub(crate) mod tiers;
pub(crate) mod topology;
pub(crate) mod transfers;
pub(crate) mod visitor;

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub(crate) use namespace::Ns;
pub(crate) use process::Proc;
pub(crate) use router::Router;
pub(crate) use servers::Server;
pub(crate) use signalbox::Signalbox;
pub(crate) use topology::Lab;

/// Long enough for anything that should happen soon, on a machine with two busy cores.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Polls until `condition` holds; false if it does not within `limit`, which is longer where
/// `SIGNALBOX_TEST_PATIENCE` says that the processor is emulated.
pub(crate) fn eventually(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
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
pub(crate) fn patience() -> u32 {
    static PATIENCE: OnceLock<u32> = OnceLock::new();
    *PATIENCE.get_or_init(|| {
        let said = std::env::var("SIGNALBOX_TEST_PATIENCE").ok();
        said.and_then(|said| said.parse().ok()).unwrap_or(1)
    })
}

/// Whether the lab can be built here. A machine where it must be says so with `REQUIRE_PRIVILEGED_TESTS=1`: there a
/// missing privilege fails the test instead of skipping it.
pub(crate) fn privileged(test: &str) -> bool {
    // Asked once: two tests that probe at the same time would each find the other's namespace in the way, and skip.
    static CAPABLE: OnceLock<Result<(), String>> = OnceLock::new();
    let Err(why) = CAPABLE.get_or_init(capable) else {
        return true;
    };
    let required = std::env::var("REQUIRE_PRIVILEGED_TESTS").is_ok_and(|v| v == "1");
    assert!(!required, "{test} cannot run: {why}");
    println!("SKIP {test}: {why}");
    false
}

fn capable() -> Result<(), String> {
    if !nix::unistd::Uid::effective().is_root() {
        return Err("not root".into());
    }
    for tool in ["ip", "nsenter", "haproxy", "nginx", "curl"] {
        let found = [
            "/usr/sbin",
            "/usr/bin",
            "/sbin",
            "/bin",
            "/usr/local/bin",
            "/usr/local/sbin",
        ]
        .iter()
        .any(|dir| Path::new(dir).join(tool).exists());
        if !found {
            return Err(format!("no `{tool}` here"));
        }
    }
    let probe = format!("sbx{}-probe", std::process::id());
    let ip = |action: &str| Command::new("ip").args(["netns", action, &probe]).output().unwrap();
    let added = ip("add");
    ip("del");
    if !added.status.success() {
        let why = String::from_utf8_lossy(&added.stderr);
        return Err(format!("no network namespaces: {}", why.trim()));
    }
    Ok(())
}
