//! What each stage of `test` runs.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

use super::Context;
use crate::{
    abi, ebpf,
    exec::{Run, is_root},
    fuzz,
    root::{fresh_object, root},
};

/// Read by userspace/build.rs.
const OBJECT: &str = "SIGNALBOX_EBPF_OBJECT";
/// What tests read, and sudo would take away.
const KEPT_BY_SUDO: &str = "REQUIRE_PRIVILEGED_TESTS,RUST_BACKTRACE,RUST_LOG,CARGO_MANIFEST_DIR,CARGO";

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
    ebpf::run(&ebpf::Args {
        check: true,
        ..ebpf::Args::default()
    })?;
    abi::run(&abi::Args::default())?;
    let object = fresh_object(&root()?);
    ebpf::run(&ebpf::Args {
        out: Some(object.clone()),
        ..ebpf::Args::default()
    })?;
    context.object = Some(object);
    Ok(())
}

pub(super) fn unit(context: &mut Context) -> Result<()> {
    let workspace = [
        "test",
        "--workspace",
        "--lib",
        "--bins",
        // The core has tests of its own beside its modules.
        "--test",
        "spi",
        "--no-fail-fast",
        "--",
        "--show-output",
    ];
    cargo_test(context, Run::cargo(workspace)?)?;
    cargo_test(context, Run::cargo(["test", "--workspace", "--doc", "--no-fail-fast"])?)
}

pub(super) fn kernel(context: &mut Context) -> Result<()> {
    privileged(context, "kernel", false)
}

pub(super) fn e2e(context: &mut Context) -> Result<()> {
    let build = Run::cargo(["build", "--profile", "e2e", "-p", "signalbox"])?;
    with_object(context, build).run()?;
    privileged(context, "e2e", true)?;
    privileged(context, "source", true)
}

pub(super) fn fuzz(context: &mut Context) -> Result<()> {
    fuzz::run(&fuzz::Args {
        seconds: if context.quick { 10 } else { 45 },
        ..fuzz::Args::default()
    })
}

/// The integration tests whose names begin with `prefix`, one at a time: they share the kernel's maps and namespaces.
fn privileged(context: &mut Context, prefix: &str, optimised: bool) -> Result<()> {
    for (package, folder) in [("signalbox", "userspace/tests"), ("signalbox-bench", "bench/tests")] {
        let names = test_targets(&root()?.join(folder), prefix)?;
        if !names.is_empty() {
            privileged_targets(context, package, &names, optimised)?;
        }
    }
    Ok(())
}

/// Each package apart: cargo unites the features that those of one command need, and would build the balancer again.
fn privileged_targets(context: &mut Context, package: &str, names: &[String], optimised: bool) -> Result<()> {
    let mut run = Run::cargo(["test", "-p", package, "--no-fail-fast"])?;
    if optimised {
        run = run.args(["--profile", "e2e"]);
    }
    for name in names {
        run = run.args(["--test", name]);
    }
    run = as_root(run)?.args(["--", "--test-threads=1", "--show-output"]);
    cargo_test(context, run)
}

/// `name.rs` and `name/main.rs`, as cargo finds them.
fn test_targets(folder: &Path, prefix: &str) -> Result<Vec<String>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("{} cannot be listed", folder.display()))? {
        let path = entry?.path();
        let is_target = path.extension().is_some_and(|ext| ext == "rs") || path.join("main.rs").is_file();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        if is_target && stem.starts_with(prefix) {
            names.push(stem.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Cargo builds as the user who called; only the test binaries are run by sudo, where it asks no password.
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

fn with_object(context: &Context, run: Run) -> Run {
    match &context.object {
        Some(object) => run.env(OBJECT, object),
        None => run,
    }
}

fn cargo_test(context: &mut Context, run: Run) -> Result<()> {
    let run = with_object(context, run);
    run.run_tee(|line| context.counts.read(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_targets_are_found_by_prefix() {
        let folder = std::env::temp_dir().join(format!("xtask-targets-{}", std::process::id()));
        fs::create_dir_all(folder.join("e2e_demo")).unwrap();
        fs::create_dir_all(folder.join("e2e_data")).unwrap();
        for file in [
            "kernel_b.rs",
            "kernel_a.rs",
            "e2e.rs",
            "e2e_demo/main.rs",
            "e2e_data/seed.bin",
            "e2e.txt",
        ] {
            fs::write(folder.join(file), "").unwrap();
        }
        assert_eq!(test_targets(&folder, "kernel").unwrap(), ["kernel_a", "kernel_b"]);
        assert_eq!(test_targets(&folder, "e2e").unwrap(), ["e2e", "e2e_demo"]);
        assert_eq!(
            test_targets(&folder.join("absent"), "e2e").unwrap(),
            Vec::<String>::new()
        );
        fs::remove_dir_all(folder).unwrap();
    }
}
