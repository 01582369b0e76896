//! Tests on other kernels: boots Debian's in virtual machines, and runs in each the checks of a user.
//!
//! A machine is a kernel from a Debian package, an initramfs with the modules it needs, one root file system for all
//! kernels made of this machine's own tools, and a disk with the build. It reports the result on its serial
//! console.

mod accel;
pub(crate) mod build;
pub(crate) mod debian;
pub(crate) mod docs;
mod emulator;
mod job;
mod kernels;
mod machine;
mod modules;
mod outcome;
mod root_fs;
pub(crate) mod store;

use std::{fs, path::PathBuf, time::Instant};

use anyhow::{Context, Result, bail};

use crate::{
    apt::{self, AptPackage, package},
    root::root,
};
use kernels::Kernel;
use outcome::Outcome;

/// Debian packages that machines are made of, beside QEMU. The rest of a root file system are the tests' own tools.
pub(crate) const PACKAGES: [AptPackage; 8] = [
    package("busybox-static"),
    package("kmod"),
    package("cpio"),
    package("e2fsprogs"),
    package("xz-utils"),
    package("zstd"),
    package("haproxy"),
    AptPackage {
        name: "nginx-light",
        or: &["nginx", "nginx-core", "nginx-full", "nginx-extras"],
    },
];

/// Kernel lines of Debian's releases.
pub(crate) const RELEASES: [&str; 2] = ["6.1", "6.12"];
/// Kernel line that refuses most programs.
pub(crate) const TOO_OLD: &str = "5.10";
/// Kernel lines after these; `newest` is the newest that the mirror has.
pub(crate) const NEWER: [&str; 2] = ["6.16", "newest"];

/// Extent of the tests on each kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Depth {
    /// The verifier's verdicts, packets through the programs, one scenario, links.
    Gate,
    /// All kernel tests, and two machines.
    Whole,
    /// Two machines alone.
    TwoMachines,
}

/// Boots each kernel and runs its job; fails if anything fails on one of them.
///
/// Returns how many tests passed.
pub(crate) fn run(names: &[String], depth: Depth, update_docs: bool) -> Result<usize> {
    let root = root()?;
    can_run().map_err(anyhow::Error::msg)?;
    apt::install(&apt::missing(&PACKAGES)?)?;
    let kernels: Vec<Kernel> = names.iter().map(|name| kernels::find(name)).collect::<Result<_>>()?;
    let built = build::build(&root)?;
    let root_fs = root_fs::make()?;
    let accel = accel::choose(&kernels[0])?;
    println!("machines run on {accel:?}");
    // Two at a time: a machine is mostly one busy processor.
    let mut outcomes = Vec::new();
    let single = if depth == Depth::TwoMachines { &[][..] } else { &kernels };
    for pair in single.chunks(2) {
        let started: Vec<_> = pair
            .iter()
            .map(|kernel| {
                let job = job::of(kernel, depth);
                let machine = machine::Machine::boot(kernel, accel, &root_fs, &built, &job)?;
                Ok((kernel, job, machine, Instant::now()))
            })
            .collect::<Result<_>>()?;
        for (kernel, job, machine, begun) in started {
            let log = machine.wait(job.limit)?;
            let outcome = Outcome::read(kernel, &job, &log, begun.elapsed());
            let file = logs()?.join(format!("{}.log", kernel.name));
            fs::write(&file, &log).with_context(|| format!("{} cannot be written", file.display()))?;
            println!("{}", outcome.text());
            if !outcome.failures().is_empty() {
                println!("the complete console is in {}", file.display());
                print!("{}", outcome::tail(&log, 60));
            }
            outcomes.push(outcome);
        }
    }
    if depth != Depth::Gate {
        let newest = kernels
            .iter()
            .max_by_key(|kernel| kernel.order())
            .context("no kernel")?;
        outcomes.push(machine::two(newest, accel, &root_fs, &built)?);
    }
    let alarms = docs::compare(&root, &outcomes)?;
    if update_docs {
        docs::write(&root, &outcomes)?;
    } else if !alarms.is_empty() {
        bail!("{}", alarms.join("\n"));
    }
    let failures: Vec<String> = outcomes.iter().flat_map(Outcome::failures).collect();
    let passed: usize = outcomes.iter().map(Outcome::passed).sum();
    println!("kernels: {passed} passed, {} failed", failures.len());
    if !failures.is_empty() {
        bail!("{}", failures.join("\n"));
    }
    Ok(passed)
}

/// Whether machines can be made here, or the reason why not.
pub(crate) fn can_run() -> std::result::Result<(), String> {
    if !apt::is_there() {
        return Err("kernels come from Debian's packages, and there is no apt".into());
    }
    let missing = apt::missing(&PACKAGES).map_err(|error| error.to_string())?;
    if missing.is_empty() || apt::may_install() {
        return Ok(());
    }
    Err(format!("apt-get install {}", missing.join(" ")))
}

fn logs() -> Result<PathBuf> {
    let dir = root()?.join("target/machines");
    fs::create_dir_all(&dir).with_context(|| format!("{} cannot be created", dir.display()))?;
    Ok(dir)
}
