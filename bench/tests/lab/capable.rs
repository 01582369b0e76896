//! Whether this machine can run a lab.

use std::path::Path;
use std::process::Command;

use super::signalbox;

/// Whether the lab can be built here. A machine where it must be says so with `REQUIRE_PRIVILEGED_TESTS=1`: there a
/// missing privilege fails the test instead of skipping it.
pub(crate) fn privileged(test: &str) -> bool {
    let Err(why) = capable() else {
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
    let folders = [
        "/usr/sbin",
        "/usr/bin",
        "/sbin",
        "/bin",
        "/usr/local/bin",
        "/usr/local/sbin",
    ];
    for tool in ["ip", "nsenter", "setpriv", "haproxy", "curl"] {
        if !folders.iter().any(|folder| Path::new(folder).join(tool).exists()) {
            return Err(format!("no `{tool}` here"));
        }
    }
    if !signalbox().is_file() {
        return Err(format!(
            "no {}: `cargo build -p signalbox` with the same profile",
            signalbox().display()
        ));
    }
    let probe = format!("sblabtest{}-probe", std::process::id());
    let ip = |action: &str| Command::new("ip").args(["netns", action, &probe]).output().unwrap();
    let added = ip("add");
    ip("del");
    if !added.status.success() {
        let why = String::from_utf8_lossy(&added.stderr);
        return Err(format!("no network namespaces: {}", why.trim()));
    }
    Ok(())
}
