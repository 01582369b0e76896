//! Installation of a rival: a root of Debian by mmdebstrap, or a virtual environment of Python.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};

use super::list::{Rival, Source};
use crate::{apt, exec, mirror, vm::store::quietly};

/// Link to the program in a virtual environment, whose path has a version of Python in it. It is made last.
pub(super) const PROGRAM: &str = "program";
/// Folder of a root that the bench mounts its files at.
const LAB: &str = "lab";

/// Installs a rival into a directory. Nothing is retried: a second run starts from scratch.
pub(super) fn install(rival: &Rival, dir: &Path) -> Result<()> {
    let unfinished = dir.with_extension("unfinished");
    for old in [dir, &unfinished] {
        if old.exists() {
            fs::remove_dir_all(old).with_context(|| format!("{} cannot be removed", old.display()))?;
        }
    }
    match &rival.source {
        Source::Debian {
            suite,
            packages,
            program,
            version,
        } => {
            debian(&unfinished, suite, packages)?;
            check_version(&unfinished, suite, program, version)?;
            fs::rename(&unfinished, dir).with_context(|| format!("{} cannot be made", dir.display()))
        }
        Source::PyPi { requirement, program } => python(dir, requirement, program),
    }
}

/// Makes a root with packages. The lists of an archive that is a snapshot have expired, but are signed.
fn debian(root: &Path, suite: &str, packages: &str) -> Result<()> {
    if exec::find_program("mmdebstrap").is_none() {
        ensure!(apt::may_install(), "mmdebstrap is missing: apt-get install mmdebstrap");
        apt::install(&["mmdebstrap"])?;
    }
    let mut make = Command::new("mmdebstrap");
    make.args(["--quiet", "--variant=apt", "--dpkgopt=force-unsafe-io"])
        .arg("--aptopt=Acquire::Check-Valid-Until \"false\"")
        .arg(format!("--include={packages},ca-certificates"))
        .arg(suite)
        .arg(root)
        .arg(mirror::main_archive(suite)?.trim_end());
    quietly(&mut make).with_context(|| format!("{packages} of Debian {suite} cannot be installed"))?;
    fs::create_dir_all(root.join(LAB)).with_context(|| format!("{LAB} cannot be made in {}", root.display()))
}

fn check_version(root: &Path, suite: &str, program: &str, version: &str) -> Result<()> {
    // nginx prints it to its standard error.
    let script = format!("{program} -v 2>&1");
    let found = quietly(Command::new("chroot").arg(root).args(["/bin/sh", "-c", &script]))?;
    let found = found.lines().next().unwrap_or_default();
    if !found.starts_with(version) {
        bail!(
            "Debian {suite} has \"{found}\" now, not \"{version}\": name another release in xtask/src/rivals/list.rs"
        );
    }
    Ok(())
}

/// Makes a virtual environment with a package, and the link to its program.
fn python(dir: &Path, requirement: &str, program: &str) -> Result<()> {
    quietly(Command::new("python3").args(["-m", "venv"]).arg(dir)).context("python3 with venv makes its place")?;
    let mut pip = Command::new(dir.join("bin/pip"));
    quietly(pip.args(["install", "--quiet", requirement]))
        .with_context(|| format!("pip cannot install {requirement}"))?;
    let found = locate(dir, program).with_context(|| format!("{requirement} has no {program}"))?;
    symlink(found, dir.join(PROGRAM)).with_context(|| format!("{PROGRAM} cannot be made in {}", dir.display()))
}

/// Finds a file by a path in which `*` matches any one folder.
fn locate(dir: &Path, path: &str) -> Option<PathBuf> {
    let Some((before, after)) = path.split_once("*/") else {
        return Some(dir.join(path)).filter(|file| file.is_file());
    };
    let folders = fs::read_dir(dir.join(before)).ok()?;
    folders.flatten().find_map(|folder| locate(&folder.path(), after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_any_one_folder() {
        let dir = std::env::temp_dir().join(format!("xtask-rivals-{}", std::process::id()));
        fs::create_dir_all(dir.join("lib/python3.9/x")).unwrap();
        fs::write(dir.join("lib/python3.9/x/program"), "").unwrap();
        let found = locate(&dir, "lib/*/x/program");
        let none = (locate(&dir, "lib/*/program"), locate(&dir, "bin/program"));
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!((found, none), (Some(dir.join("lib/python3.9/x/program")), (None, None)));
    }
}
