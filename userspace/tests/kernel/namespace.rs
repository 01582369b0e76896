//! Needs of every test of the programs: a separate network namespace, and the right to load programs.

use crate::ordinary;

use std::process::Command;

use aya::programs::ProgramType;
use nix::sched::{CloneFlags, unshare};

/// The name of the test that contains a closure `F`, from `crate::modules::name_of_the_test::{{closure}}`.
pub(crate) fn test_of<F>() -> &'static str {
    std::any::type_name::<F>().rsplit("::").nth(1).unwrap()
}

/// Runs a test in a separate network namespace, with loopback up and after these `ip` commands. Where that is
/// impossible, prints why, or fails with `REQUIRE_PRIVILEGED_TESTS=1`.
pub(crate) fn in_own_namespace(test: &str, needs: ProgramType, ip: &[&str], work: impl FnOnce() + Send) {
    run(test, needs, ip, ordinary::is_asked_for(), work);
}

/// Runs a test as an ordinary user with the documented capabilities.
pub(crate) fn in_own_namespace_as_user(test: &str, needs: ProgramType, ip: &[&str], work: impl FnOnce() + Send) {
    run(test, needs, ip, true, work);
}

fn run(test: &str, needs: ProgramType, ip: &[&str], as_user: bool, work: impl FnOnce() + Send) {
    // The namespace is the thread's, and goes with it.
    let run = || match enter(needs, ip, as_user) {
        Ok(()) => work(),
        Err(why) => {
            let required = std::env::var("REQUIRE_PRIVILEGED_TESTS").is_ok_and(|v| v == "1");
            assert!(!required, "{test} cannot run: {why}");
            println!("SKIP {test}: {why}");
        }
    };
    let outcome = std::thread::scope(|scope| scope.spawn(run).join());
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

fn enter(needs: ProgramType, ip: &[&str], as_user: bool) -> Result<(), String> {
    if !nix::unistd::Uid::effective().is_root() {
        return Err("not root".into());
    }
    unshare(CloneFlags::CLONE_NEWNET).map_err(|e| format!("no network namespaces: {e}"))?;
    for words in ["link set lo up"].iter().chain(ip) {
        let status = Command::new("ip").args(words.split(' ')).status();
        assert!(status.map_err(|e| format!("no `ip`: {e}"))?.success(), "ip {words}");
    }
    if as_user {
        ordinary::prepare()?;
        ordinary::become_one().map_err(|e| format!("root cannot become an ordinary user: {e}"))?;
    }
    match aya::sys::is_program_supported(needs) {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("this kernel has no programs of type {needs:?}")),
        Err(error) => Err(format!("bpf(2) is not permitted: {error}")),
    }
}
