//! Tools for manifests that Debian 12 does not have: kustomize of Debian 13, which runs there too, and
//! kubernetes-validate of PyPI, which brings the schemas of all versions. Both are installed once, and kept.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result};

use crate::{
    mirror::Apt,
    vm::store::{self, quietly},
};

/// kubernetes-validate and its dependencies.
const REQUIREMENTS: [&str; 10] = [
    "kubernetes-validate==1.37.0",
    "attrs==26.1.0",
    "importlib_resources==7.1.0",
    "jsonschema==4.26.0",
    "jsonschema-specifications==2025.9.1",
    "packaging==26.4",
    "PyYAML==6.0.4",
    "referencing==0.37.0",
    "rpds-py==2026.9.1",
    "typing_extensions==4.16.0",
];

/// kustomize, installed if it is missing.
pub(crate) fn kustomize() -> Result<PathBuf> {
    let dir = store::dir("kustomize-trixie")?;
    let program = dir.join("usr/bin/kustomize");
    if !program.is_file() {
        let apt = Apt::of(&["trixie"], &[])?;
        apt.unpack(["kustomize"], &dir).context("kustomize cannot be fetched")?;
    }
    Ok(program)
}

/// Python with kubernetes-validate, installed if it is missing.
pub(super) fn python() -> Result<PathBuf> {
    let dir = store::dir("kubernetes-validate-1.37.0")?;
    let (python, done) = (dir.join("bin/python3"), dir.join("installed"));
    if !done.is_file() {
        quietly(Command::new("python3").args(["-m", "venv"]).arg(&dir)).context("is python3-venv installed?")?;
        let mut pip = Command::new(dir.join("bin/pip"));
        quietly(pip.args(["install", "--quiet", "--no-deps"]).args(REQUIREMENTS))
            .context("kubernetes-validate cannot be installed")?;
        fs::write(done, "")?;
    }
    Ok(python)
}
