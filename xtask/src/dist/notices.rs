//! Licences of the libraries in the program, which ask to be passed on with it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::exec::Run;

/// Names that files with a licence begin with.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Library>,
}

/// A crate, as `cargo metadata` describes it.
#[derive(Deserialize)]
struct Library {
    name: String,
    version: String,
    license: Option<String>,
    repository: Option<String>,
    /// Absent of the workspace's own crates.
    source: Option<String>,
    manifest_path: PathBuf,
}

/// The text: each library with the name of its licence, and each text of a licence once.
pub(super) fn of_libraries(root: &Path) -> Result<String> {
    let mut text = String::from("Libraries that are part of the program signalbox, with their licences.\n\n");
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut listed = BTreeSet::new();
    for library in of_all_trees(root)? {
        let name = format!("{} {}", library.name, library.version);
        if !listed.insert(name.clone()) {
            continue;
        }
        let Some(licence) = &library.license else {
            bail!("{name} does not name its licence: it cannot be packaged");
        };
        let home = library.repository.as_deref().unwrap_or_default();
        writeln!(text, "{name}: {licence}  {home}")?;
        for file in licence_files(&library.manifest_path)? {
            let licence = String::from_utf8_lossy(&fs::read(&file)?).replace("\r\n", "\n");
            texts
                .entry(licence.trim_end().to_owned())
                .or_default()
                .push(name.clone());
        }
    }
    for (licence, names) in texts {
        let names: BTreeSet<String> = names.into_iter().collect();
        let names: Vec<String> = names.into_iter().collect();
        write!(text, "\n{}\n{}\n\n{licence}\n", "-".repeat(80), names.join(", "))?;
    }
    Ok(text)
}

/// Libraries of the program, and of the eBPF objects in it, in order.
fn of_all_trees(root: &Path) -> Result<Vec<Library>> {
    let mut libraries = Vec::new();
    for (manifest, package) in [("Cargo.toml", "signalbox"), ("ebpf/Cargo.toml", "signalbox-ebpf")] {
        let used = used(root, manifest, package)?;
        let is_used = |library: &Library| used.contains(&format!("{} {}", library.name, library.version));
        let all = all(root, manifest)?;
        libraries.extend(
            all.into_iter()
                .filter(|library| library.source.is_some() && is_used(library)),
        );
    }
    libraries.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    Ok(libraries)
}

/// Name and version of each crate that is linked into a package, or generates code of it.
fn used(root: &Path, manifest: &str, package: &str) -> Result<BTreeSet<String>> {
    let tree = Run::cargo([
        "tree",
        "--locked",
        "--manifest-path",
        manifest,
        "-p",
        package,
        "-e",
        "normal",
        "--prefix",
        "none",
        "--no-dedupe",
        "-f",
        "{p}",
    ])?;
    let said = tree.dir(root).answer().context("`cargo tree` fails")?;
    let words = said.lines().filter_map(|line| {
        let (name, rest) = line.split_once(" v")?;
        let version = rest.split_whitespace().next()?;
        Some(format!("{name} {version}"))
    });
    Ok(words.collect())
}

fn all(root: &Path, manifest: &str) -> Result<Vec<Library>> {
    let host = Run::new("rustc")?.args(["--print", "host-tuple"]).answer();
    let host = host.context("`rustc --print host-tuple` fails")?;
    let metadata = Run::cargo([
        "metadata",
        "--locked",
        "--manifest-path",
        manifest,
        "--format-version",
        "1",
        "--filter-platform",
        host.trim(),
    ])?;
    let said = metadata.dir(root).answer().context("`cargo metadata` fails")?;
    Ok(serde_json::from_str::<Metadata>(&said)?.packages)
}

fn licence_files(manifest: &Path) -> Result<Vec<PathBuf>> {
    let directory = manifest.parent().unwrap_or(manifest);
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| format!("reading {}", directory.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if path.is_file() && NAMES.iter().any(|begin| name.starts_with(begin)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
