//! Where a rival is: `cargo xtask bench` installs it and names its place in a variable.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::lab::Lab;
use crate::process;

/// Folder of a root at which the run's directory is mounted.
const MOUNTED: &str = "/lab";

/// Mounts the run's directory in a root, in a mount namespace that ends with the program, and runs that in the root. All
/// of it is one process.
const IN_ROOT: &str = "mount --bind \"$1\" \"$2/lab\" && root=$2 && shift 2 && exec chroot \"$root\" \"$@\"";

/// A program, or the root of a Debian that has one.
#[derive(Debug, PartialEq)]
pub(super) enum Place {
    Root(PathBuf),
    Program(PathBuf),
}

impl Place {
    /// The place that a variable names, or why there is none.
    pub(super) fn of(variable: &str) -> Result<Self> {
        Self::read(variable, |name| std::env::var_os(name))
    }

    fn read(variable: &str, get: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let Some(path) = get(variable).map(PathBuf::from) else {
            match get(&format!("{variable}_MISSING")) {
                Some(why) => bail!("{}", why.to_string_lossy()),
                None => bail!("{variable} is not set; `cargo xtask bench` sets it, `cargo xtask rivals` prints it"),
            }
        };
        match (path.is_dir(), path.is_file()) {
            (true, _) => Ok(Self::Root(path)),
            (_, true) => Ok(Self::Program(path)),
            _ => bail!("{variable} names {}, which does not exist", path.display()),
        }
    }

    /// The run's directory, as the program sees it.
    pub(super) fn dir<'a>(&self, lab: &'a Lab) -> &'a Path {
        match self {
            Self::Root(_) => Path::new(MOUNTED),
            Self::Program(_) => lab.dir(),
        }
    }

    /// Command that runs the program, `name` where it is in a root, in the balancer's namespace.
    pub(super) fn command(&self, lab: &Lab, name: &str) -> Command {
        match self {
            Self::Program(program) => process::command(&lab.lb, program),
            Self::Root(root) => {
                let mut command = process::command(&lab.lb, "unshare");
                command.args(["--mount", "--", "sh", "-c", IN_ROOT, "sh"]);
                command.arg(lab.dir()).arg(root).arg(name);
                command
            }
        }
    }

    /// The line in which the program prints its version.
    pub(super) fn version(&self, name: &str, word: &str) -> Result<String> {
        let mut command = match self {
            Self::Program(program) => Command::new(program),
            Self::Root(root) => {
                let mut command = Command::new("chroot");
                command.arg(root).arg(name);
                command
            }
        };
        let output = command.arg(word).output().context("it cannot be started")?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        Ok(lines.next().context("it says no version")?.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_names_a_root_or_a_program_or_why_there_is_none() {
        let known = [
            ("ROOT", "/tmp"),
            ("PROGRAM", "/proc/self/exe"),
            ("GONE", "/nowhere"),
            ("NO_MISSING", "no network"),
        ];
        let get = |name: &str| {
            known
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| value.into())
        };
        let error = |name| Place::read(name, get).unwrap_err().to_string();
        assert_eq!(Place::read("ROOT", get).unwrap(), Place::Root("/tmp".into()));
        assert_eq!(
            Place::read("PROGRAM", get).unwrap(),
            Place::Program("/proc/self/exe".into())
        );
        assert_eq!(error("GONE"), "GONE names /nowhere, which does not exist");
        assert_eq!(error("NO"), "no network");
        assert!(error("OTHER").starts_with("OTHER is not set; `cargo xtask bench`"));
    }
}
