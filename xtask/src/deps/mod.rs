//! `check-deps`: the dependency rules of the architecture, checked instead of remembered.
//!
//! [`edges`] looks at manifests, [`libraries`] at libraries of others, [`ranks`] at imports between modules, [`words`] at
//! names and comments, [`test_names`] at those of tests, [`rules`] at lines, of which [`code`] leaves comments and strings
//! out, [`pages`] at the documents, and [`results`] at the figures of benchmarks.

mod code;
mod edges;
mod libraries;
mod modules;
mod pages;
mod ranks;
mod results;
mod rules;
mod source;
mod test_names;
mod words;

pub(crate) use pages::{TOP_PAGES, pages};

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::root::root;
use modules::Modules;
use source::Source;

/// Folders of the crates' sources.
const CRATES: [&str; 16] = [
    "common/src",
    "core/src",
    "ebpf/src",
    "userspace/api/src",
    "userspace/cli/src",
    "userspace/compat/src",
    "userspace/config/src",
    "userspace/ha/src",
    "userspace/sys/src",
    "userspace/kernel/src",
    "userspace/sources/src",
    "userspace/tls/src",
    "userspace/src",
    "bench/lab/src",
    "bench/src",
    "xtask/src",
];

/// Crates in which each type name may be used only once. In bench and xtask each command has its own `Args`.
const NAMES_ONCE: [&str; 13] = [
    "common/src",
    "core/src",
    "ebpf/src",
    "userspace/api/src",
    "userspace/cli/src",
    "userspace/compat/src",
    "userspace/config/src",
    "userspace/ha/src",
    "userspace/sys/src",
    "userspace/kernel/src",
    "userspace/sources/src",
    "userspace/tls/src",
    "userspace/src",
];

const FOLDERS: [&str; 7] = ["bench", "common", "core", "ebpf", "fuzz", "userspace", "xtask"];

#[derive(clap::Args, Default)]
pub(crate) struct DepsArgs {
    /// List which module of the product imports which, circles among its files, and names and comments to fix
    #[arg(long)]
    list: bool,
    /// Write the ranks into docs/architecture.md, the numbers of docs/dependencies.md, and results of benchmarks into the
    /// pages that show them
    #[arg(long)]
    update_docs: bool,
}

/// Page that shows the ranks, between two marks.
const PAGE: &str = "docs/architecture.md";
const BEGIN: &str = "<!-- ranks: written by `cargo xtask check-deps --update-docs` -->\n";
const END: &str = "<!-- end of the ranks -->";

pub(crate) fn run(args: &DepsArgs) -> Result<()> {
    if args.list {
        return list();
    }

    let root = root()?;
    if args.update_docs {
        update_page(&root)?;
        libraries::update(&root)?;
        return results::update(&root);
    }
    let mut faults = edges::check(&edges::read(&root)?);
    faults.extend(check_page(&root)?);
    faults.extend(pages::check(&root)?);
    faults.extend(libraries::check(&root)?);
    faults.extend(results::check(&root)?);
    for crate_root in CRATES {
        let sources = sources(&root, crate_root)?;
        let modules = Modules::of(&sources);
        faults.extend(ranks::check(crate_root, &modules));
        faults.extend(ranks::check_folders(crate_root, &modules));
        faults.extend(ranks::check_circles(&modules));
        faults.extend(sources.iter().flat_map(words::check));
        if NAMES_ONCE.contains(&crate_root) {
            faults.extend(words::doubles(&sources));
        }
    }
    let mut files = Vec::new();
    for folder in FOLDERS {
        collect(&root.join(folder), &mut files)?;
    }
    files.sort();
    for file in &files {
        let text = fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
        let name = file.strip_prefix(&root).unwrap_or(file).to_string_lossy();
        faults.extend(rules::check(&name, &text));
        faults.extend(test_names::check(&name, &text));
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

/// Splits the page into the text before the table of ranks, the table, and the text after it.
fn split_page(text: &str) -> Result<(&str, &str, &str)> {
    let missing = || format!("{PAGE} has no place for the table of ranks: {BEGIN}");
    let (before, rest) = text.split_once(BEGIN).with_context(missing)?;
    let (table, after) = rest.split_once(END).with_context(missing)?;
    Ok((before, table, after))
}

/// Finds out whether the page shows the current ranks.
fn check_page(root: &Path) -> Result<Option<String>> {
    let text = fs::read_to_string(root.join(PAGE)).with_context(|| format!("{PAGE} cannot be read"))?;
    let (_, table, _) = split_page(&text)?;
    let is_same = table == ranks::table();
    Ok((!is_same)
        .then(|| format!("{PAGE} does not show the ranks that are in force: `cargo xtask check-deps --update-docs`")))
}

fn update_page(root: &Path) -> Result<()> {
    let text = fs::read_to_string(root.join(PAGE)).with_context(|| format!("{PAGE} cannot be read"))?;
    let (before, _, after) = split_page(&text)?;
    let table = ranks::table();
    fs::write(root.join(PAGE), format!("{before}{BEGIN}{table}{END}{after}"))
        .with_context(|| format!("{PAGE} cannot be written"))
}

/// Prints imports between modules, circles, and faults of names and comments.
fn list() -> Result<()> {
    let root = root()?;
    for crate_root in CRATES {
        let sources = sources(&root, crate_root)?;
        println!("{crate_root}: {} files", sources.len());
        let modules = Modules::of(&sources);
        for ((from, to), imports) in modules.between_tops() {
            println!("  {from} -> {to}: {}", imports.len());
            for import in imports {
                println!("    {import}");
            }
        }
        for circle in modules.circles() {
            println!("  circle of {}:", circle.len());
            for source in circle {
                println!("    {}", source.name);
            }
        }
        for fault in sources.iter().flat_map(words::check).chain(words::doubles(&sources)) {
            println!("  {fault}");
        }
    }
    Ok(())
}

/// Reads the sources of one crate.
fn sources(root: &Path, crate_root: &str) -> Result<Vec<Source>> {
    let mut files = Vec::new();
    collect(&root.join(crate_root), &mut files)?;
    files.sort();
    files
        .iter()
        .map(|file| {
            let text = fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
            let name = file.strip_prefix(root).unwrap_or(file).to_string_lossy();
            Source::read(&name, crate_root, &text)
        })
        .collect()
}

pub(crate) fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
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
