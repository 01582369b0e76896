//! A separate Debian to install packages in: a directory with the essential packages, in which commands run with
//! processes, mounts and network apart from the machine's.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    mirror,
    vm::store::{self, quietly},
};

/// Places where packages are put, and which dpkg, rpm and the tools that add users write: these need not be as before.
const CHANGED_BY_OTHERS: [&str; 18] = [
    "packages",
    "dev",
    "proc",
    "sys",
    "run",
    "var/lib/dpkg",
    "var/lib/rpm",
    "root/.rpmdb",
    "var/log/dpkg.log",
    "var/log/alternatives.log",
    "var/cache/ldconfig",
    "etc/passwd-",
    "etc/group-",
    "etc/shadow-",
    "etc/gshadow-",
    "etc/subuid-",
    "etc/subgid-",
    "etc/.pwd.lock",
];

/// Mounts what a command of a system expects. The namespaces are new: a mount ends with the command.
const MOUNTS: &str = "mount -t proc proc /proc && mount -t sysfs sysfs /sys && mount -t bpf bpf /sys/fs/bpf && \
                      mount -t tmpfs tmpfs /run && ";

pub(super) struct Sandbox {
    root: PathBuf,
}

impl Sandbox {
    /// A new root, of this machine's release: the program is built for its libraries.
    pub(super) fn new(directory: &Path) -> Result<Self> {
        let archive = archive()?;
        let root = directory.to_owned();
        if root.exists() {
            fs::remove_dir_all(&root).with_context(|| format!("removing {}", root.display()))?;
        }
        fs::create_dir_all(root.join("packages"))?;
        let mut extract = Command::new("tar");
        // Device nodes are not available everywhere, and nothing here needs more than /dev/null.
        extract
            .arg("--extract")
            .arg("--file")
            .arg(archive)
            .arg("--directory")
            .arg(&root);
        quietly(&mut extract)?;
        Ok(Self { root })
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Copies a package to `/packages`, and returns its path there.
    pub(super) fn take(&self, package: &Path) -> Result<String> {
        let name = package.file_name().unwrap_or_default().to_string_lossy().into_owned();
        fs::copy(package, self.root.join("packages").join(&name))?;
        Ok(format!("/packages/{name}"))
    }

    /// Output of a script, if it succeeds.
    pub(super) fn run(&self, script: &str) -> Result<String> {
        let mut inside = isolated();
        inside
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("LC_ALL", "C.UTF-8")
            .arg("chroot")
            .arg(&self.root)
            .args(["/bin/sh", "-ec", &format!("{MOUNTS}{script}")]);
        quietly(&mut inside).with_context(|| format!("in a Debian of its own, `{script}`"))
    }

    /// Has the machine's rpm work in the root: Debian's essential packages have none, and are no dependencies for it.
    pub(super) fn rpm(&self, words: &[&str]) -> Result<String> {
        let mut rpm = isolated();
        rpm.arg("rpm").arg("--root").arg(&self.root);
        quietly(rpm.args(words))
    }

    /// All files with mode and owner, and the lines of the tables of users.
    pub(super) fn state(&self) -> Result<BTreeSet<String>> {
        let mut find = Command::new("find");
        find.arg(&self.root)
            .args(["-xdev", "-mindepth", "1", "-printf", "%P %M %U %G\\n"]);
        let mut state: BTreeSet<String> = quietly(&mut find)?
            .lines()
            .filter(|line| !is_changed_by_others(line.split(' ').next().unwrap_or_default()))
            .map(str::to_owned)
            .collect();
        for table in ["etc/passwd", "etc/group", "etc/shadow", "etc/gshadow"] {
            let text = fs::read_to_string(self.root.join(table)).unwrap_or_default();
            state.extend(text.lines().map(|line| format!("{table}: {line}")));
        }
        Ok(state)
    }

    pub(super) fn must_have(&self, path: &str) -> Result<()> {
        // A link of systemd is absolute: where it points to is in the root.
        if self.path(path).symlink_metadata().is_err() {
            bail!("there is no {path} in the Debian of its own");
        }
        Ok(())
    }

    pub(super) fn must_lack(&self, path: &str) -> Result<()> {
        if self.path(path).symlink_metadata().is_ok() {
            bail!("there is still {path} in the Debian of its own");
        }
        Ok(())
    }
}

/// Files and users that are new, or gone. The user that a package has made stays, as is the custom: its number would
/// otherwise be given to another user, with the files that it owns.
pub(super) fn left_behind(before: &BTreeSet<String>, after: &BTreeSet<String>) -> Vec<String> {
    let is_of_user = |line: &str| line.starts_with("etc/") && line.contains(": signalbox:");
    let new = after
        .difference(before)
        .filter(|line| !is_of_user(line))
        .map(|line| format!("new: {line}"));
    new.chain(before.difference(after).map(|line| format!("gone: {line}")))
        .collect()
}

fn is_changed_by_others(path: &str) -> bool {
    CHANGED_BY_OTHERS.iter().any(|other| {
        path.strip_prefix(other)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// A command in separate namespaces: `signalbox detach` removes programs and maps of a network namespace.
fn isolated() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child"]);
    command
}

/// The archive of the root, made once.
fn archive() -> Result<PathBuf> {
    let release = fs::read_to_string("/etc/os-release").context("reading /etc/os-release")?;
    let suite = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let suite = suite.context("/etc/os-release names no release of Debian")?;
    let archive = store::dir("packages")?.join(format!("{suite}.tar"));
    if !archive.is_file() {
        println!("making the Debian that packages are installed in");
        let unfinished = archive.with_extension("unfinished.tar");
        let mut make = Command::new("mmdebstrap");
        make.args([
            "--quiet",
            "--variant=essential",
            "--include=systemd,passwd",
            "--dpkgopt=force-unsafe-io",
        ])
        .arg(suite)
        .arg(&unfinished)
        .arg(mirror::main_archive(suite)?.trim_end());
        quietly(&mut make)?;
        fs::rename(unfinished, &archive)?;
    }
    Ok(archive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftover_files_are_listed_but_the_system_user_may_stay() {
        let set = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
        let before = set(&["etc drwx 0 0", "opt drwx 0 0"]);
        let after = set(&["etc drwx 0 0", "etc/passwd: signalbox:x:999", "var/x -rw- 0 0"]);
        assert_eq!(
            left_behind(&before, &after),
            ["new: var/x -rw- 0 0", "gone: opt drwx 0 0"]
        );
    }

    #[test]
    fn only_whole_names_are_left_out() {
        assert!(is_changed_by_others("var/lib/rpm/x") && is_changed_by_others("run"));
        assert!(!is_changed_by_others("var/lib/rpm2") && !is_changed_by_others("runner"));
    }
}
