//! Place where kernels, images and an API server are kept between runs: beside other caches, not in the checkout.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

/// The folder, made if it is missing.
pub(crate) fn dir(name: &str) -> Result<PathBuf> {
    let base = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")));
    let dir = base
        .context("neither XDG_CACHE_HOME nor HOME is set")?
        .join("signalbox-machines")
        .join(name);
    fs::create_dir_all(&dir).with_context(|| format!("{} cannot be created", dir.display()))?;
    Ok(dir)
}

/// Runs a command silently; its output is in the error.
pub(crate) fn quietly(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("{command:?} cannot be started"))?;
    if !output.status.success() {
        let (said, wrong) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        bail!("{command:?} failed: {}\n{said}{wrong}", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Copies a file to the same place below `to`, with the folders above it.
pub(super) fn copy_below(file: &Path, to: &Path) -> Result<()> {
    let target = to.join(file.strip_prefix("/").unwrap_or(file));
    if target.exists() {
        return Ok(());
    }
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent).with_context(|| format!("{} cannot be created", parent.display()))?;
    }
    fs::copy(file, &target).with_context(|| format!("{} cannot be copied", file.display()))?;
    Ok(())
}
