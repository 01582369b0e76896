//! Whether this machine can run a lab.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Whether network namespaces can be made here and these programs are installed. A machine where a test must run says
/// so with `REQUIRE_PRIVILEGED_TESTS=1`: there, a missing program fails the test instead of skipping it. All calls of
/// a process must name the same programs: only the first looks for them.
///
/// # Panics
///
/// If something is missing that must not be.
pub fn privileged(test: &str, programs: &[&str]) -> bool {
    // Asked once: two tests that probe at the same time would each find the other's namespace in the way, and skip.
    static CAPABLE: OnceLock<Result<(), String>> = OnceLock::new();
    let Err(why) = CAPABLE.get_or_init(|| capable(programs)) else {
        return true;
    };
    let required = std::env::var("REQUIRE_PRIVILEGED_TESTS").is_ok_and(|v| v == "1");
    assert!(!required, "{test} cannot run: {why}");
    println!("SKIP {test}: {why}");
    false
}

fn capable(programs: &[&str]) -> Result<(), String> {
    if !nix::unistd::Uid::effective().is_root() {
        return Err("not root".into());
    }
    if let Some(missing) = programs.iter().find(|program| !is_installed(program)) {
        return Err(format!("no `{missing}` here"));
    }
    let probe = format!("sbx{}-probe", std::process::id());
    let ip = |action: &str| Command::new("ip").args(["netns", action, &probe]).output();
    let added = ip("add").map_err(|error| format!("no `ip` here: {error}"))?;
    let _ = ip("del");
    if !added.status.success() {
        let why = String::from_utf8_lossy(&added.stderr);
        return Err(format!("no network namespaces: {}", why.trim()));
    }
    Ok(())
}

/// Whether a program, or a file if `what` is an absolute path, is there.
pub fn is_installed(what: &str) -> bool {
    if what.starts_with('/') {
        return Path::new(what).exists();
    }
    // Root's programs are not in the PATH of other users.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let sbin: [PathBuf; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(sbin)
        .any(|folder| folder.join(what).exists())
}
