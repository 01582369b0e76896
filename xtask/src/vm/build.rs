//! Builds for machines: the product and the tests, built once here.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use super::store::quietly;
use crate::exec::without_package_env;

/// Paths of the built programs, without debugging information.
pub(super) struct Built {
    pub(super) signalbox: PathBuf,
    pub(super) e2e: PathBuf,
    pub(super) kernel: PathBuf,
}

impl Built {
    /// The programs, with their names in a machine.
    pub(super) fn files(&self) -> Vec<(PathBuf, String)> {
        [
            (&self.signalbox, "signalbox"),
            (&self.e2e, "e2e"),
            (&self.kernel, "kernel"),
        ]
        .map(|(program, name)| (program.clone(), name.to_owned()))
        .into()
    }
}

pub(super) fn build(root: &Path) -> Result<Built> {
    let dir = super::logs()?.join("programs");
    fs::create_dir_all(&dir)?;
    let (e2e, kernel) = (executable(root, "e2e")?, executable(root, "kernel")?);
    let strip = |from: &Path, name: &str| {
        let to = dir.join(name);
        quietly(Command::new("strip").arg("-o").arg(&to).arg(from)).map(|_| to)
    };
    Ok(Built {
        signalbox: strip(&product(root), "signalbox")?,
        e2e: strip(&e2e, "e2e")?,
        kernel: strip(&kernel, "kernel")?,
    })
}

/// Path of the product, as end-to-end tests run it: cargo builds it beside them.
pub(crate) fn product(root: &Path) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    target.join("debug/signalbox")
}

/// Builds the product of the end-to-end tests, and returns its path.
pub(crate) fn build_product(root: &Path) -> Result<PathBuf> {
    executable(root, "kernel")?;
    Ok(product(root))
}

/// Builds a test program, and returns its path.
fn executable(root: &Path, test: &str) -> Result<PathBuf> {
    println!("building the test program {test}");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root);
    without_package_env(&mut command);
    command.args([
        "test",
        "-q",
        "--workspace",
        "--no-run",
        "--message-format",
        "json",
        "--test",
        test,
    ]);
    let messages = quietly(&mut command)?;
    let executable = messages.lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_it = message["target"]["name"] == test && message["profile"]["test"] == true;
        is_it.then(|| message["executable"].as_str().map(PathBuf::from))?
    });
    executable.with_context(|| format!("cargo names no executable of test {test}"))
}
