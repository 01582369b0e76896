//! Suites of others for the end-to-end tests of HTTP: httpwg (crates.io) and REDbot (PyPI), which are installed once,
//! and kept.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

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
}

const SUITES: [Suite; 2] = [
    Suite {
        variable: "SIGNALBOX_HTTPWG",
        folder: "httpwg-0.2.5",
        program: "bin/httpwg",
        install: install_httpwg,
    },
    Suite {
        variable: "SIGNALBOX_REDBOT",
        folder: "redbot-2.7.1",
        program: "bin/redbot",
        install: install_redbot,
    },
];

/// `suites`: installs the suites if need be, and says where they are.
pub(crate) fn run() -> Result<()> {
    for suite in &SUITES {
        println!("{}={}", suite.variable, suite.find()?.display());
    }
    Ok(())
}

/// The programs of all suites that can be had, by their variables; says which cannot.
pub(crate) fn find_all() -> Vec<(&'static str, PathBuf)> {
    let find = |suite: &Suite| match suite.find() {
        Ok(program) => Some((suite.variable, program)),
        Err(error) => {
            println!("there is no program for {}: {error:#}", suite.variable);
            None
        }
    };
    SUITES.iter().filter_map(find).collect()
}

impl Suite {
    /// The program that the variable names, the one that was installed before, or a new one.
    fn find(&self) -> Result<PathBuf> {
        if let Some(given) = env::var_os(self.variable).map(PathBuf::from) {
            if !given.is_file() {
                bail!("{} names {}, which is no file", self.variable, given.display());
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

fn install_redbot(dir: &Path) -> Result<()> {
    quietly(Command::new("python3").args(["-m", "venv"]).arg(dir))?;
    let mut pip = Command::new(dir.join("bin/pip"));
    quietly(pip.args(["install", "--quiet", "redbot==2.7.1"])).map(drop)
}
