//! Root file system of a Debian whose systemd runs: mmdebstrap's output, and a unit that does the machine's job.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::super::{
    root_fs::image_of,
    store::{self, quietly},
};
use crate::mirror;

/// Release of Debian, and the line of its kernel.
pub(super) const SUITE: &str = "bookworm";
pub(super) const KERNEL: &str = "6.1";

/// Packages beside the essential ones: a machine without a network cannot fetch the tutorial's packages.
const INCLUDED: &str =
    "systemd-sysv,dbus,passwd,procps,iproute2,ca-certificates,curl,openssl,haproxy,nginx-light,keepalived,nftables";

/// Files of the root. An emulated processor takes thirty times as long as the one that it runs on, which is no reason to
/// end a unit.
const FILES: [(&str, &str); 2] = [
    (
        "etc/systemd/system/job.service",
        "[Unit]\nDescription=Job of the machine\n\n[Service]\nType=idle\nExecStart=/bin/bash /job/run\nTimeoutStartSec=infinity\n\
         WorkingDirectory=/root\nEnvironment=HOME=/root\n",
    ),
    (
        "etc/systemd/system.conf.d/machine.conf",
        "[Manager]\nShowStatus=no\nDefaultTimeoutStartSec=600\n",
    ),
];

/// Units that would use the console or a port, or work while the job measures.
const MASKED: [&str; 8] = [
    "serial-getty@ttyS0.service",
    "getty@tty1.service",
    "nginx.service",
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
];

/// Makes the image, and returns its path.
pub(super) fn make() -> Result<PathBuf> {
    let dir = store::dir("debian")?;
    let (tree, image) = (dir.join("tree"), dir.join("root.ext4"));
    if tree.exists() {
        fs::remove_dir_all(&tree)?;
    }
    fs::create_dir_all(&tree)?;
    let mut extract = Command::new("tar");
    quietly(
        extract
            .arg("--extract")
            .arg("--file")
            .arg(archive(&dir)?)
            .arg("--directory")
            .arg(&tree),
    )?;
    furnish(&tree)?;
    image_of(&tree, &image, 2048)?;
    fs::remove_dir_all(&tree)?;
    Ok(image)
}

fn furnish(tree: &Path) -> Result<()> {
    let write = |path: &str, text: &str| {
        let file = tree.join(path);
        fs::create_dir_all(file.parent().unwrap_or(tree))?;
        fs::write(&file, text).with_context(|| format!("writing {}", file.display()))
    };
    for (path, text) in FILES {
        write(path, text)?;
    }
    fs::create_dir_all(tree.join("job"))?;
    let units = tree.join("etc/systemd/system");
    fs::create_dir_all(units.join("multi-user.target.wants"))?;
    symlink("../job.service", units.join("multi-user.target.wants/job.service"))?;
    symlink("/lib/systemd/system/multi-user.target", units.join("default.target"))?;
    for unit in MASKED {
        symlink("/dev/null", units.join(unit))?;
    }
    Ok(())
}

/// The archive of packages, made once.
fn archive(dir: &Path) -> Result<PathBuf> {
    let archive = dir.join(format!("{SUITE}.tar"));
    let (made_of, wanted) = (dir.join("included"), format!("{SUITE} {INCLUDED}\n"));
    if archive.is_file() && fs::read_to_string(&made_of).is_ok_and(|text| text == wanted) {
        return Ok(archive);
    }
    println!("making a Debian that boots");
    let unfinished = dir.join("unfinished.tar");
    let mut make = Command::new("mmdebstrap");
    make.args(["--quiet", "--variant=apt", "--dpkgopt=force-unsafe-io"])
        .arg(format!("--include={INCLUDED}"))
        .arg(SUITE)
        .arg(&unfinished)
        .arg(mirror::main_archive(SUITE)?.trim_end());
    quietly(&mut make)?;
    fs::rename(unfinished, &archive)?;
    fs::write(made_of, wanted)?;
    Ok(archive)
}
