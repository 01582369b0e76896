//! Debian's packages and sources of any release, by an apt whose state is separate from the machine's: it installs
//! nothing.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{
    exec::Run,
    vm::store::{self, quietly},
};

/// An apt that knows other suites than the machine's.
pub(crate) struct Apt {
    config: PathBuf,
}

impl Apt {
    /// Packages of these suites of the main archive and of the security archive.
    pub(crate) fn of(main: &[&str], security: &[&str]) -> Result<Self> {
        let key = [main, security].concat().join("+");
        let mirrors = Mirrors::of_this_machine()?;
        let lines = main.iter().map(|suite| (&mirrors.main, suite));
        let lines = lines.chain(security.iter().map(|suite| (&mirrors.security, suite)));
        let sources: String = lines.map(|(uri, suite)| line("deb", uri, suite)).collect();
        Self::with(&key, &sources)
    }

    /// Packages and sources of a suite of the main archive.
    pub(crate) fn with_sources(suite: &str) -> Result<Self> {
        let mirrors = Mirrors::of_this_machine()?;
        let sources: String = ["deb", "deb-src"].map(|kind| line(kind, &mirrors.main, suite)).concat();
        Self::with(&format!("{suite}-sources"), &sources)
    }

    fn with(key: &str, sources: &str) -> Result<Self> {
        let dir = store::dir("apt")?.join(key);
        for part in ["lists/partial", "archives/partial"] {
            fs::create_dir_all(dir.join(part))?;
        }
        fs::write(dir.join("sources.list"), sources)?;
        let config = dir.join("apt.conf");
        let text = format!(
            "Dir::Etc::sourcelist \"{0}/sources.list\";\nDir::Etc::sourceparts \"-\";\nDir::State::lists \"{0}/lists\";\n\
             Dir::Cache \"{0}\";\nDir::Cache::archives \"{0}/archives\";\nAcquire::Languages \"none\";\n\
             Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\nAPT::Sandbox::User \"root\";\n\
             DPkg::Lock::Timeout \"600\";\n",
            dir.display()
        );
        fs::write(&config, text)?;
        let apt = Self { config };
        quietly(apt.command("apt-get").args(["-qq", "update"]))?;
        Ok(apt)
    }

    /// Unpacks packages into a directory.
    pub(crate) fn unpack<S: AsRef<OsStr>>(&self, packages: impl IntoIterator<Item = S>, dir: &Path) -> Result<()> {
        let mut download = self.command("apt-get");
        download.args(["-qq", "download"]).args(packages).current_dir(dir);
        quietly(&mut download)?;
        for entry in fs::read_dir(dir)?.flatten() {
            let package = entry.path();
            if package.extension().is_some_and(|end| end == "deb") {
                quietly(Command::new("dpkg-deb").arg("-x").arg(&package).arg(dir))?;
                fs::remove_file(&package)?;
            }
        }
        Ok(())
    }

    /// `apt-get` or `apt-cache` with this state.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", &self.config);
        command
    }
}

/// The line of `sources.list` for a suite of the main archive.
pub(crate) fn main_archive(suite: &str) -> Result<String> {
    Ok(line("deb", &Mirrors::of_this_machine()?.main, suite))
}

/// A line of `sources.list`. Binary packages are those of amd64, and those of all architectures.
fn line(kind: &str, uri: &str, suite: &str) -> String {
    format!("{kind} [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {uri} {suite} main\n")
}

/// The mirror of Debian's packages that this machine uses.
struct Mirrors {
    main: String,
    security: String,
}

impl Mirrors {
    fn of_this_machine() -> Result<Self> {
        let format = "$(REPO_URI) $(RELEASE) $(LABEL)";
        let ask = || quietly(Command::new("apt-get").args(["indextargets", "--format", format]));
        let mut targets = ask()?;
        if !targets.lines().any(|line| line.ends_with(" Debian")) {
            // A fresh image has no lists, and so no labels.
            let apt = Run::as_root("apt-get")?;
            apt.args(["-qq", "-o", "DPkg::Lock::Timeout=600", "update"]).run()?;
            targets = ask()?;
        }
        let of = |label: &str| {
            let found = targets.lines().find_map(|line| {
                let (uri, rest) = line.split_once(' ')?;
                rest.ends_with(label).then(|| uri.to_owned())
            });
            found.with_context(|| {
                format!("apt knows no archive labelled {label}; run apt-get update on a Debian machine")
            })
        };
        Ok(Self {
            main: of(" Debian")?,
            security: of(" Debian-Security")?,
        })
    }
}
