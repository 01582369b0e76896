//! Stages of `test`: the commands that each runs.

use std::{env, fs, path::PathBuf};

use anyhow::{Context as _, Result, bail};

use super::Context;
use crate::{
    abi, dist, ebpf,
    exec::{Run, is_root},
    fuzz as fuzzing, kube, lint,
    root::{next_abi_objects, root},
    suites, vm,
};

/// Variable with the directory of the eBPF objects to embed, read by userspace/kernel/build.rs.
const OBJECTS: &str = "SIGNALBOX_EBPF_OBJECTS";
/// Variables that tests read, and that sudo would remove.
const KEPT_BY_SUDO: &str = "REQUIRE_PRIVILEGED_TESTS,RUST_BACKTRACE,RUST_LOG,CARGO_MANIFEST_DIR,CARGO,SIGNALBOX_BIN,\
                            SIGNALBOX_NEXT_BIN,SIGNALBOX_KUBE_APISERVER,SIGNALBOX_KUBE_BIN,SIGNALBOX_XTASK,SIGNALBOX_HTTPWG,SIGNALBOX_REDBOT,\
                             SIGNALBOX_AUTOBAHN,SIGNALBOX_SSLYZE,SIGNALBOX_AXE,SIGNALBOX_UI_SOAK_SECONDS,\
                             SIGNALBOX_UI_PICTURES,SIGNALBOX_TEST_RIGHTS,SIGNALBOX_E2E_PEEK,SIGNALBOX_E2E_SOAK,SIGNALBOX_E2E_SOCKETS,\
                             SIGNALBOX_E2E_RULES";
/// Has the tests of the kernel run as an ordinary user with the documented capabilities.
const AS_USER: (&str, &str) = ("SIGNALBOX_TEST_RIGHTS", "documented");

pub(super) fn fmt() -> Result<()> {
    Run::cargo(["fmt", "--all", "--check"])?.run()?;
    for manifest in ["ebpf/Cargo.toml", "fuzz/Cargo.toml"] {
        Run::cargo(["fmt", "--manifest-path", manifest, "--check"])?.run()?;
    }
    Ok(())
}

pub(super) fn clippy() -> Result<()> {
    Run::cargo(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?.run()?;
    // The targets are run by a share of the rotation only.
    Run::cargo(["check", "--locked", "--manifest-path", "fuzz/Cargo.toml"])?.run()
}

/// The checked-in objects are the ones that users run, and that the stages below test.
pub(super) fn ebpf(_: &mut Context) -> Result<()> {
    ebpf::check_hashes()?;
    vm::docs::check(&root()?)?;
    abi::run(&abi::AbiArgs::default())
}

pub(super) fn ebpf_from_source(_: &mut Context) -> Result<()> {
    ebpf::run(&ebpf::EbpfArgs {
        check: true,
        install: true,
        ..ebpf::EbpfArgs::default()
    })
}

pub(super) fn packaging(context: &mut Context) -> Result<()> {
    lint::run_with(&lint::LintArgs::default(), &mut |line| {
        println!("{line}");
        context.counts.read(line);
    })
}

pub(super) fn unit(context: &mut Context) -> Result<()> {
    let workspace = [
        "test",
        "--workspace",
        "--lib",
        "--bins",
        // Tests beside the modules that need no rights: of events and HTTP/1 in core, of handshakes in userspace/tls.
        "--test",
        "spi",
        "--test",
        "http1",
        "--test",
        "handshake",
        "--no-fail-fast",
        "--",
        "--show-output",
    ];
    cargo_test(context, Run::cargo(workspace)?)?;
    cargo_test(context, Run::cargo(["test", "--workspace", "--doc", "--no-fail-fast"])?)
}

/// A million streams of requests, read by signalbox and by hyper.
pub(super) fn http1_million(context: &mut Context) -> Result<()> {
    let words = [
        "test",
        "--release",
        "-p",
        "signalbox-core",
        "--test",
        "http1",
        "--",
        "--ignored",
    ];
    cargo_test(context, Run::cargo(words)?)
}

/// Root has all rights of an ordinary user: each test runs once. Tests of tier sockmap take a minute, and need no more
/// rights than the others.
pub(super) fn kernel(context: &mut Context) -> Result<()> {
    nextest(context, "kernel", &["-E", "test(/^relay::/)"])?;
    nextest_as(Some(AS_USER), context, "kernel", &["-E", "not test(/^relay::/)"])
}

/// All tests of the kernel as root, and all as an ordinary user.
pub(super) fn kernel_both_ways(context: &mut Context) -> Result<()> {
    nextest(context, "kernel", &[])?;
    nextest_as(Some(AS_USER), context, "kernel", &[])
}

/// Runs the eBPF programs on packets that tests describe: the quick part of the kernel's tests.
pub(super) fn packets(context: &mut Context) -> Result<()> {
    nextest(context, "kernel", &["-E", "test(/^(cut|l4)_packets::/)"])
}

pub(super) fn e2e(context: &mut Context) -> Result<()> {
    prepare(context)?;
    nextest(context, "e2e", &[])?;
    let in_userspace = Some(("SIGNALBOX_E2E_PEEK", "userspace"));
    let tests = format!("test(/^({})::/)", ON_BOTH_PATHS.join("|"));
    nextest_as(in_userspace, context, "e2e", &["-E", &tests])?;
    nextest(context, "keepalived", &[])?;
    nextest(context, "e2e_by_hand", &[])
}

/// Tests that also run with names peeked at in userspace, as on kernels without the kernel peek or beside a packet
/// filter: how connections are routed, limited, moved and kept must not depend on the path.
const ON_BOTH_PATHS: [&str; 14] = [
    "connection::health",
    "connection::peek",
    "connection::sources",
    "connection::subset",
    "cut::limits",
    "cut::peek",
    "cut::tier",
    "life::lifecycle",
    "life::refused",
    "life::successor",
    "life::upgrades",
    "migrate",
    "rotate",
    "thesis",
];

/// End-to-end tests of a share of the rotation.
pub(super) fn e2e_of_share(context: &mut Context) -> Result<()> {
    let Some(share) = context.share else {
        bail!("no share of the rotation is under way");
    };
    prepare(context)?;
    context.suites = suites::find(true);
    let tests = format!("test(/(^|::){}::/)", share.module());
    // The default filter of `.config/nextest.toml` leaves out the tests of shares.
    let words = ["--ignore-default-filter", "-E", tests.as_str()];
    nextest(context, "e2e", &words)
}

/// Tests of the kernel peek on machines whose kernel would not make the sockets of connections that are passed up.
pub(super) fn repaired_sockets(context: &mut Context) -> Result<()> {
    let repaired = Some(("SIGNALBOX_E2E_SOCKETS", "repaired"));
    nextest_as(repaired, context, "e2e", &["-E", "test(/^kernel_peek::/)"])
}

/// A merge's end-to-end tests, on balancers with a firewall whose rules do nothing to their connections.
pub(super) fn beside_rules(context: &mut Context) -> Result<()> {
    /// Connection tracking does not see the handshakes of the shield's cookies (docs/shield.md), so it takes the second
    /// connection of a port for a part of the first.
    const FAILING: &str = "not test(/^shield::flood::a_reused_port_that_gets_a_cookie/)";
    prepare(context)?;
    nextest_as(
        Some(("SIGNALBOX_E2E_RULES", "harmless")),
        context,
        "e2e",
        &["-E", FAILING],
    )
}

/// Builds the products that end-to-end tests run, and finds the suites of others.
pub(super) fn prepare(context: &mut Context) -> Result<()> {
    if context.next_version.is_none() {
        context.next_version = Some(next_version()?);
    }
    // The build of the next version has put its program in this place.
    vm::build::build_product(&root()?)?;
    context.suites = suites::find(false);
    Ok(())
}

/// End-to-end tests of a share, with a real API server, which is built if it is missing.
pub(super) fn with_api_server(context: &mut Context) -> Result<()> {
    context.kube_apiserver = Some(kube::api_server()?);
    e2e_of_share(context)
}

/// End-to-end tests of a share, on clusters of real nodes, whose programs are built if they are missing.
pub(super) fn with_clusters(context: &mut Context) -> Result<()> {
    context.kubernetes = Some(kube::programs()?);
    e2e_of_share(context)
}

/// Builds a product whose pinned maps have another layout, for the tests of upgrades.
fn next_version() -> Result<PathBuf> {
    let root = root()?;
    // With a test, whichever: built so, the program has the features of the tests' builds, and their libraries.
    let build = Run::cargo(["build", "--workspace", "--bin", "signalbox", "--test", "handshake"])?;
    let build = build.args(["--features", "signalbox/next_abi"]);
    build.env(OBJECTS, next_abi_objects(&root)).run()?;
    let built = vm::build::product(&root);
    let kept = built.with_file_name("signalbox-next-abi");
    fs::copy(&built, &kept).with_context(|| format!("{} cannot be copied", built.display()))?;
    Ok(kept)
}

/// Packages the program of the end-to-end tests: with another one the packages have the same files.
pub(super) fn packages(context: &mut Context) -> Result<()> {
    // As it ships: the product of the end-to-end tests has features of libraries that tests ask for.
    let built = dist::build("dev")?;
    dist::check(&built, false, &mut |line| {
        println!("{line}");
        context.counts.read(line);
    })
}

/// Installs packages where systemd runs, and gives the tutorial's commands, in a virtual machine.
pub(super) fn debian(context: &mut Context) -> Result<()> {
    if let Err(why) = vm::debian::can_run() {
        return skip(context, &format!("a machine with systemd: {why:#}"));
    }
    let built = vm::build::build_product(&root()?)?;
    let passed = vm::debian::run(&built, &[])?;
    context.counts.add(passed);
    Ok(())
}

pub(super) fn kernels_of_releases(context: &mut Context) -> Result<()> {
    kernels(context, &vm::RELEASES, vm::Depth::Gate)
}

pub(super) fn newer_kernels(context: &mut Context) -> Result<()> {
    kernels(context, &vm::NEWER, vm::Depth::Gate)
}

pub(super) fn old_kernel(context: &mut Context) -> Result<()> {
    kernels(context, &[vm::TOO_OLD], vm::Depth::Gate)
}

pub(super) fn two_machines(context: &mut Context) -> Result<()> {
    kernels(context, &["newest"], vm::Depth::TwoMachines)
}

/// Runs the tests on other kernels, in virtual machines.
fn kernels(context: &mut Context, names: &[&str], depth: vm::Depth) -> Result<()> {
    if let Err(why) = vm::can_run() {
        return skip(context, &format!("kernels: {why}"));
    }
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let whole = context.is_whole && depth == vm::Depth::Gate;
    let depth = if whole { vm::Depth::Whole } else { depth };
    let passed = vm::run(&names, depth, false)?;
    context.counts.add(passed);
    Ok(())
}

/// Reports a skipped stage, and why; fails where nothing may be skipped.
fn skip(context: &mut Context, what: &str) -> Result<()> {
    if env::var("REQUIRE_PRIVILEGED_TESTS").is_ok_and(|v| v == "1") {
        bail!("cannot run: {what}");
    }
    let skip = format!("SKIP {what}");
    println!("{skip}");
    context.counts.read(&skip);
    Ok(())
}

pub(super) fn fuzz(context: &mut Context) -> Result<()> {
    fuzzing::run(&fuzzing::FuzzArgs {
        seconds: if context.is_whole { 600 } else { 30 },
        install: true,
        ..fuzzing::FuzzArgs::default()
    })
}

/// Runs a program of integration tests, as `.config/nextest.toml` says: a process per test, and as many at once as the
/// machine can hold.
fn nextest(context: &mut Context, test: &str, words: &[&str]) -> Result<()> {
    nextest_as(None, context, test, words)
}

/// Runs nextest with a variable that says how tests run, such as with which rights.
fn nextest_as(variable: Option<(&str, &str)>, context: &mut Context, test: &str, words: &[&str]) -> Result<()> {
    let mut run = nextest_command(context, test, words)?;
    if let Some((name, value)) = variable {
        run = run.env(name, value);
    }
    cargo_test(context, run)
}

/// The command that runs a program of integration tests.
pub(super) fn nextest_command(context: &Context, test: &str, words: &[&str]) -> Result<Run> {
    // Of the whole workspace: cargo unites the features of the packages that a command names, and builds all libraries
    // again for a command that names others.
    let run = Run::cargo(["nextest", "run", "--workspace", "--test", test])?.args(words);
    let product = match env::var_os("SIGNALBOX_BIN") {
        Some(given) => PathBuf::from(given),
        None => vm::build::product(&root()?),
    };
    let mut run = as_root(run)?.env("SIGNALBOX_BIN", product);
    if let Some(next) = &context.next_version {
        run = run.env("SIGNALBOX_NEXT_BIN", next);
    }
    if context.is_whole {
        run = run.env("SIGNALBOX_E2E_SOAK", "10000000");
    }
    if let Some(programs) = &context.kubernetes {
        run = run
            .env(kube::PROGRAMS, programs)
            .env("SIGNALBOX_XTASK", env::current_exe()?);
    }
    if let Some(server) = &context.kube_apiserver {
        run = run.env(kube::API_SERVER, server);
    }
    for (variable, program) in &context.suites {
        run = run.env(variable, program);
    }
    Ok(run)
}

/// Has test binaries run as root: cargo builds as the user who called, and only they are run by sudo, where it asks no
/// password.
fn as_root(run: Run) -> Result<Run> {
    if is_root() || Run::new("sudo")?.args(["-n", "true"]).answer().is_none() {
        return Ok(run);
    }
    let host = Run::new("rustc")?.args(["-vV"]).answer().unwrap_or_default();
    let host = host
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .context("`rustc -vV` names no host")?;
    let variable = format!("CARGO_TARGET_{}_RUNNER", host.to_uppercase().replace('-', "_"));
    Ok(run.env(&variable, format!("sudo -n --preserve-env={KEPT_BY_SUDO}")))
}

fn cargo_test(context: &mut Context, run: Run) -> Result<()> {
    run.run_tee(|line| context.counts.read(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A module that was renamed would be left out without a word.
    #[test]
    fn modules_that_run_on_both_paths_exist() {
        let tests = crate::root::root().unwrap().join("userspace/tests/e2e");
        for module in ON_BOTH_PATHS {
            let path = tests.join(module.replace("::", "/"));
            assert!(path.is_dir() || path.with_extension("rs").is_file(), "{module}");
        }
    }
}
