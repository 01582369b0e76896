//! `check-deps`: the dependency rules of the architecture, checked instead of remembered.
//!
//! [`edges`] looks at manifests, [`rules`] at sources, of which [`code`] leaves comments and strings out.

mod code;
mod edges;
mod modules;
mod rules;
mod source;
mod words;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::root::root;
use modules::Modules;
use source::Source;

const FOLDERS: [&str; 7] = ["bench", "common", "core", "ebpf", "fuzz", "userspace", "xtask"];

#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// List which module of the product imports which, circles among its files, and names and comments to mend
    #[arg(long)]
    list: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.list {
        return list();
    }

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

/// What a layout is planned by.
fn list() -> Result<()> {
    let root = root()?;
    let mut files = Vec::new();
    collect(&root.join("userspace/src"), &mut files)?;
    files.sort();
    let mut sources = Vec::new();
    for file in &files {
        let text = fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
        let name = file.strip_prefix(&root).unwrap_or(file).to_string_lossy().into_owned();
        sources.push(Source::read(&name, "userspace/src", &text)?);
    }
    let modules = Modules::of(&sources);
    let mut between: std::collections::BTreeMap<(String, String), Vec<String>> = Default::default();
    for arrow in modules.arrows() {
        let top = |source: &Source| source.module.first().cloned().unwrap_or_else(|| "lib".to_owned());
        let (from, to) = (top(arrow.from), top(arrow.to));
        if from != to {
            let said = format!(
                "{}:{} {}",
                arrow.from.name,
                arrow.import.line,
                arrow.import.path.join("::")
            );
            between.entry((from, to)).or_default().push(said);
        }
    }
    for ((from, to), imports) in &between {
        println!("{from} -> {to}: {}", imports.len());
        for import in imports {
            println!("    {import}");
        }
    }
    for fault in sources.iter().flat_map(words::check).chain(words::doubles(&sources)) {
        println!("{fault}");
    }
    for circle in modules.circles() {
        println!("circle of {}:", circle.len());
        for source in circle {
            println!("    {}", source.name);
        }
    }
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
