//! `check-deps`: the dependency rules of the architecture, checked instead of remembered.
//!
//! [`edges`] looks at manifests, [`rules`] at sources, of which [`code`] leaves comments and strings out.

mod code;
mod edges;
mod rules;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::root::root;

const FOLDERS: [&str; 7] = ["bench", "common", "core", "ebpf", "fuzz", "userspace", "xtask"];

pub(crate) fn run() -> Result<()> {
    let root = root()?;
    let mut faults = edges::check(&edges::read(&root)?);
    let mut files = Vec::new();
    for folder in FOLDERS {
        collect(&root.join(folder), &mut files)?;
    }
    files.sort();
    for file in &files {
        let text = fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
        let name = file.strip_prefix(&root).unwrap_or(file).to_string_lossy();
        faults.extend(rules::check(&name, &text));
    }
    let lib = fs::read_to_string(root.join("core/src/lib.rs")).context("core/src/lib.rs cannot be read")?;
    faults.extend(rules::core_forbids_unsafe(&lib));
    if !faults.is_empty() {
        bail!(
            "{} breaches of the dependency rules:\n  {}",
            faults.len(),
            faults.join("\n  ")
        );
    }
    println!("dependency rules hold in {} files", files.len());
    Ok(())
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if path.is_dir() {
        if path.file_name().is_some_and(|name| name == "target") {
            return Ok(());
        }
        for entry in fs::read_dir(path).with_context(|| format!("{} cannot be listed", path.display()))? {
            collect(&entry?.path(), files)?;
        }
    } else if path.extension().is_some_and(|ext| ext == "rs") {
        files.push(path.to_owned());
    }
    Ok(())
}
