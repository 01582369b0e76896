//! QEMU of Debian 13, unpacked and not installed.
//!
//! Debian 12's (7.2) may run a stale breakpoint on one emulated processor while the other one patches a branch of the
//! kernel, which then panics (`Oops: int3`). QEMU 8.1 and later lock a page before they translate it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use super::store::{self, quietly};
use crate::mirror::Apt;

const SUITE: &str = "trixie";
const PACKAGE: &str = "qemu-system-x86";
const PROGRAM: &str = "usr/bin/qemu-system-x86_64";
/// Firmware and programs of network cards.
const DATA: [&str; 3] = ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"];

/// QEMU in a network namespace, or in that of this process. It runs with the libraries that it was built for.
pub(super) fn command(namespace: Option<&str>) -> Result<Command> {
    let root = root()?;
    let loader = root.join("usr/lib64/ld-linux-x86-64.so.2");
    let mut command = match namespace {
        Some(namespace) => {
            let mut command = Command::new("nsenter");
            command
                .arg(format!("--net=/run/netns/{namespace}"))
                .arg("--")
                .arg(loader);
            command
        }
        None => Command::new(loader),
    };
    command
        .arg("--library-path")
        .arg(root.join("usr/lib/x86_64-linux-gnu"))
        .arg(root.join(PROGRAM));
    for directory in DATA {
        command.arg("-L").arg(root.join(directory));
    }
    Ok(command)
}

/// Directory of the unpacked packages, made if it is missing. It gets its name when it is complete, since other
/// processes may look for it.
fn root() -> Result<PathBuf> {
    let dir = store::dir("qemu")?;
    let root = dir.join(SUITE);
    if !root.is_dir() {
        println!("fetching QEMU of Debian 13");
        let work = dir.join(std::process::id().to_string());
        fs::create_dir_all(&work)?;
        unpack(&work).context("QEMU cannot be fetched")?;
        ensure!(work.join(PROGRAM).is_file(), "{PACKAGE} of {SUITE} has no {PROGRAM}");
        if fs::rename(&work, &root).is_err() && root.is_dir() {
            fs::remove_dir_all(work)?;
        }
    }
    Ok(root)
}

fn unpack(dir: &Path) -> Result<()> {
    let apt = Apt::of(&[SUITE], &[])?;
    // Nothing counts as installed, so that all libraries come with it.
    let nothing = "Dir::State::status=/dev/null";
    let install = [
        "-qq",
        "-s",
        "-o",
        nothing,
        "--no-install-recommends",
        "install",
        PACKAGE,
    ];
    let plan = quietly(apt.command("apt-get").args(install))?;
    let packages = plan
        .lines()
        .filter_map(|line| line.strip_prefix("Inst ")?.split(' ').next());
    apt.unpack(packages, dir)
}
