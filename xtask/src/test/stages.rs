//! Stages of `test`: the commands that each runs.

use std::{env, fs, path::PathBuf};

use anyhow::{Context as _, Result, bail};

use super::Context;
use crate::{
    abi, dist, ebpf,
    exec::{Run, is_root},
    fuzz, kube_apiserver, lint,
    root::{fresh_objects, root},
    suites, vm,
};

/// Variable with the directory of the eBPF objects to embed, read by userspace/build.rs.
pub(crate) const OBJECTS: &str = "SIGNALBOX_EBPF_OBJECTS";
/// Variables that tests read, and that sudo would remove.
const KEPT_BY_SUDO: &str = "REQUIRE_PRIVILEGED_TESTS,RUST_BACKTRACE,RUST_LOG,CARGO_MANIFEST_DIR,CARGO,SIGNALBOX_BIN,\
                            SIGNALBOX_NEXT_BIN,SIGNALBOX_KUBE_APISERVER,SIGNALBOX_HTTPWG,SIGNALBOX_REDBOT,\
                             SIGNALBOX_AUTOBAHN,SIGNALBOX_SSLYZE,SIGNALBOX_AXE,SIGNALBOX_UI_SOAK_SECONDS,\
                             SIGNALBOX_UI_PICTURES,SIGNALBOX_TEST_RIGHTS,SIGNALBOX_E2E_PEEK";
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
    Run::cargo(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?.run()
}

pub(super) fn ebpf(context: &mut Context) -> Result<()> {
    ebpf::run(&ebpf::EbpfArgs {
        check: true,
        ..ebpf::EbpfArgs::default()
    })?;
    abi::run(&abi::AbiArgs::default())?;
    let objects = fresh_objects(&root()?);
    ebpf::run(&ebpf::EbpfArgs {
        out: Some(objects.clone()),
        ..ebpf::EbpfArgs::default()
    })?;
    context.objects = Some(objects);
    Ok(())
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
    if context.nightly {
        let million = [
            "test",
            "--release",
            "-p",
            "signalbox-core",
            "--test",
            "http1",
            "--",
            "--ignored",
        ];
        cargo_test(context, Run::cargo(million)?)?;
    }
    cargo_test(context, Run::cargo(["test", "--workspace", "--doc", "--no-fail-fast"])?)
}

pub(super) fn kernel(context: &mut Context) -> Result<()> {
    if context.nightly {
        nextest(context, "kernel", &[])?;
        return nextest_as(Some(AS_USER), context, "kernel", &[]);
    }
    // Root has all rights of an ordinary user: each test runs once. Tests of tier sockmap take a minute, and need no more
    // rights than the others.
    nextest(context, "kernel", &["-E", "test(/^relay::/)"])?;
    nextest_as(Some(AS_USER), context, "kernel", &["-E", "not test(/^relay::/)"])
}

/// Runs the eBPF programs on packets that tests describe: of the kernel's tests those that take no time.
pub(super) fn packets(context: &mut Context) -> Result<()> {
    nextest(context, "kernel", &["-E", "test(/^(cut|l4)_packets::/)"])
}

pub(super) fn e2e(context: &mut Context) -> Result<()> {
    let next = next_version();
    if let Err(error) = &next {
        println!("there is no product with other maps for the tests of upgrades: {error:#}");
    }
    // Every run of the tests puts the program without that feature in its place.
    vm::build::build_product(&root()?, context.objects.as_deref())?;
    context.next_version = next.ok();
    // Storms take minutes, and find something once in months.
    let profile = if context.nightly { "default" } else { "merge" };
    if context.nightly {
        let server = kube_apiserver::find();
        if let Err(error) = &server {
            println!("there is no API server for the tests of module apiserver: {error:#}");
        }
        context.kube_apiserver = server.ok();
    }
    context.suites = suites::find(context.nightly);
    nextest(context, "e2e", &["-P", profile])?;
    if context.nightly {
        let variable = Some(("SIGNALBOX_E2E_PEEK", "kernel"));
        nextest_as(variable, context, "e2e", &["-P", profile, "-E", ON_KERNEL_PEEK])?;
    }
    nextest(context, "keepalived", &[])?;
    nextest(context, "e2e_by_hand", &[])
}

/// Tests that the nightly runs once more, on the kernel peek: those of connections, which must end the same on both paths.
const ON_KERNEL_PEEK: &str = "test(/^(cut|cut_.*|peek|thesis|tiers|successor|lifecycle|health|shield::.*|faults|refused|\
                              rotate|subset|online|upgrades|events|migrate::.*|sync::.*)::/)";

/// Builds a product whose pinned maps have another layout, for the tests of upgrades, which skip where that fails: it
/// takes a toolchain for eBPF programs.
fn next_version() -> Result<PathBuf> {
    let root = root()?;
    let objects = root.join("target/ebpf/next-abi");
    ebpf::run(&ebpf::EbpfArgs {
        out: Some(objects.clone()),
        next_abi: true,
        ..ebpf::EbpfArgs::default()
    })?;
    // With a test, whichever: built so, the program has the features of the tests' builds, and their libraries.
    let build = Run::cargo(["build", "--workspace", "--bin", "signalbox", "--test", "handshake"])?;
    let build = build.args(["--features", "signalbox/next_abi"]);
    build.env(OBJECTS, &objects).run()?;
    let built = vm::build::product(&root);
    let kept = built.with_file_name("signalbox-next-abi");
    fs::copy(&built, &kept).with_context(|| format!("{} cannot be copied", built.display()))?;
    Ok(kept)
}

/// Packages the program of the end-to-end tests: with another one the packages have the same files.
pub(super) fn packages(context: &mut Context) -> Result<()> {
    let built = vm::build::build_product(&root()?, context.objects.as_deref())?;
    dist::check(&built, false, &mut |line| {
        println!("{line}");
        context.counts.read(line);
    })
}

/// Runs the tests on other kernels, and in the nightly those of packages where systemd runs, in virtual machines.
pub(super) fn machines(context: &mut Context) -> Result<()> {
    let (names, depth) = if context.nightly {
        (&vm::NIGHTLY[..], vm::Depth::Whole)
    } else {
        (&["6.1", "6.12"][..], vm::Depth::Divided)
    };
    if let Err(why) = vm::can_run() {
        return skip(context, &format!("machines: {why}"));
    }
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let passed = vm::run(&names, depth, false, context.objects.as_deref())?;
    context.counts.add(passed);
    // Some twenty minutes, emulated: more than a merge should wait.
    if !context.nightly {
        return Ok(());
    }
    if let Err(why) = vm::debian::can_run() {
        return skip(context, &format!("a machine with systemd: {why:#}"));
    }
    let built = vm::build::build_product(&root()?, context.objects.as_deref())?;
    let passed = vm::debian::run(&built, &[])?;
    context.counts.add(passed);
    Ok(())
}

/// Says what is left out, and why; fails where nothing may be.
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
    let seconds = match (context.nightly, context.quick) {
        (true, _) => 600,
        (false, true) => 5,
        (false, false) => 8,
    };
    fuzz::run(&fuzz::FuzzArgs {
        seconds,
        ..fuzz::FuzzArgs::default()
    })
}

/// Runs a program of integration tests, as `.config/nextest.toml` says: a process per test, and as many at once as
/// hold.
fn nextest(context: &mut Context, test: &str, words: &[&str]) -> Result<()> {
    nextest_as(None, context, test, words)
}

/// Runs nextest with a variable that says how tests run, such as with which rights.
fn nextest_as(variable: Option<(&str, &str)>, context: &mut Context, test: &str, words: &[&str]) -> Result<()> {
    // Of the whole workspace: cargo unites the features of the packages that a command names, and builds all libraries
    // again for a command that names others.
    let run = Run::cargo(["nextest", "run", "--workspace", "--test", test])?.args(words);
    let product = match env::var_os("SIGNALBOX_BIN") {
        Some(given) => PathBuf::from(given),
        None => vm::build::product(&root()?),
    };
    let mut run = as_root(run)?.env("SIGNALBOX_BIN", product);
    if let Some((name, value)) = variable {
        run = run.env(name, value);
    }
    if let Some(next) = &context.next_version {
        run = run.env("SIGNALBOX_NEXT_BIN", next);
    }
    if let Some(server) = &context.kube_apiserver {
        run = run.env(kube_apiserver::VARIABLE, server);
    }
    for (variable, program) in &context.suites {
        run = run.env(variable, program);
    }
    cargo_test(context, run)
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

fn with_objects(context: &Context, run: Run) -> Run {
    match &context.objects {
        Some(objects) => run.env(OBJECTS, objects),
        None => run,
    }
}

fn cargo_test(context: &mut Context, run: Run) -> Result<()> {
    let run = with_objects(context, run);
    run.run_tee(|line| context.counts.read(line))
}
