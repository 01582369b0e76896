//! Suites of others for the end-to-end tests: httpwg (crates.io), and of PyPI Autobahn's cases, REDbot and sslyze for
//! HTTP, axe-core (npm) for the pages of the web UI. They are installed once, and kept.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::{
    exec::Run,
    vm::store::{self, quietly},
};

/// A suite.
struct Suite {
    /// Variable that names its program to the tests.
    variable: &'static str,
    /// Folder that the suite is kept in, by its version.
    folder: &'static str,
    program: &'static str,
    install: fn(&Path) -> Result<()>,
    /// Whether it is installed in seconds, and so used before a merge.
    is_quick: bool,
}

/// Version of axe-core, and the SHA-256 of its package.
const AXE: (&str, &str) = (
    "4.10.3",
    "0f2b4d7dcdf7d1219df8d1959ad68e565f51d14c3f0d88bb71cd59abeb956292",
);

const SUITES: [Suite; 5] = [
    Suite {
        variable: "SIGNALBOX_AXE",
        folder: "axe-core-4.10.3",
        program: "package/axe.min.js",
        install: install_axe,
        is_quick: true,
    },
    Suite {
        variable: "SIGNALBOX_HTTPWG",
        folder: "httpwg-0.2.5",
        program: "bin/httpwg",
        install: install_httpwg,
        is_quick: false,
    },
    Suite {
        variable: "SIGNALBOX_AUTOBAHN",
        folder: "autobahn-kosoku-0.1.0",
        program: "bin/kosoku",
        install: |dir| install_python(dir, "kosoku==0.1.0"),
        is_quick: true,
    },
    Suite {
        variable: "SIGNALBOX_SSLYZE",
        folder: "sslyze-6.3.1",
        program: "bin/sslyze",
        install: |dir| install_python(dir, "sslyze==6.3.1"),
        is_quick: true,
    },
    Suite {
        variable: "SIGNALBOX_REDBOT",
        folder: "redbot-2.7.1",
        program: "bin/redbot",
        install: |dir| install_python(dir, "redbot==2.7.1"),
        is_quick: true,
    },
];

/// `suites`: installs the suites that are missing, and prints their paths.
pub(crate) fn run() -> Result<()> {
    for suite in &SUITES {
        println!("{}={}", suite.variable, suite.find()?.display());
    }
    Ok(())
}

/// Installs the suites that are used before a merge, and reports those that cannot be installed.
pub(crate) fn install() {
    find(false);
}

/// The programs of the suites that are available, by their variables: before a merge those that are quick to install.
/// Prints the others.
pub(crate) fn find(all: bool) -> Vec<(&'static str, PathBuf)> {
    let find = |suite: &Suite| match suite.find() {
        Ok(program) => Some((suite.variable, program)),
        Err(error) => {
            println!("there is no program for {}: {error:#}", suite.variable);
            None
        }
    };
    let wanted = SUITES.iter().filter(|suite| all || suite.is_quick);
    wanted.filter_map(find).collect()
}

impl Suite {
    /// The program that the variable names, the one that was installed before, or a new one.
    fn find(&self) -> Result<PathBuf> {
        if let Some(given) = env::var_os(self.variable).map(PathBuf::from) {
            if !given.is_file() {
                bail!("{} names {}, which is not a file", self.variable, given.display());
            }
            return Ok(given);
        }
        let dir = store::dir(self.folder)?;
        let program = dir.join(self.program);
        if !program.is_file() {
            (self.install)(&dir).with_context(|| format!("{} cannot be installed", self.folder))?;
        }
        Ok(program)
    }
}

fn install_httpwg(dir: &Path) -> Result<()> {
    // Without optimisation, which the suite's few frames do not need.
    let cargo = Run::cargo([
        "install",
        "httpwg-cli",
        "--version",
        "0.2.5",
        "--locked",
        "--debug",
        "--root",
    ])?;
    cargo
        .args([dir])
        .without_env("RUSTFLAGS")
        .without_env("CARGO_TARGET_DIR")
        .run()
}

fn install_axe(dir: &Path) -> Result<()> {
    let (version, sha256) = AXE;
    let mut npm = Command::new("npm");
    quietly(
        npm.args(["pack", "--silent", &format!("axe-core@{version}")])
            .current_dir(dir),
    )
    .context("npm (of Node.js) downloads it")?;
    let package = dir.join(format!("axe-core-{version}.tgz"));
    let found = format!("{:x}", Sha256::digest(fs::read(&package)?));
    if found != sha256 {
        fs::remove_file(&package)?;
        bail!("the package of axe-core {version} has the SHA-256 {found}, not {sha256}");
    }
    let mut tar = Command::new("tar");
    quietly(
        tar.arg("-xzf")
            .arg(&package)
            .args(["package/axe.min.js", "package/LICENSE"])
            .current_dir(dir),
    )?;
    fs::remove_file(&package)?;
    Ok(())
}

/// Installs a suite of PyPI into a separate virtual environment.
fn install_python(dir: &Path, requirement: &str) -> Result<()> {
    quietly(Command::new("python3").args(["-m", "venv"]).arg(dir))?;
    let mut pip = Command::new(dir.join("bin/pip"));
    quietly(pip.args(["install", "--quiet", requirement])).map(drop)
}
