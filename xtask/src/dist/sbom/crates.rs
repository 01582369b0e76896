//! Crates that are in the program, as `cargo tree` shows them: cargo metadata would also have what other members of the
//! workspace switch on. The eBPF objects have other crates, and are in the program too.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context as _, Result, bail};

use crate::exec::Run;

/// Name and version.
pub(super) type CrateId = (String, String);

/// A crate that is linked into the program, or makes code of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::dist) struct LinkedCrate {
    /// An expression of SPDX.
    pub(in crate::dist) licence: String,
    pub(super) repository: String,
    /// SHA-256 of its archive; none of our own crates.
    pub(super) checksum: Option<String>,
}

/// Crates, and which needs which.
#[derive(Default, PartialEq, Eq, Debug)]
pub(in crate::dist) struct CrateGraph {
    pub(in crate::dist) crates: BTreeMap<CrateId, LinkedCrate>,
    pub(super) needs: BTreeMap<CrateId, BTreeSet<CrateId>>,
}

/// All crates of the program; the first one of each tree is its root.
pub(in crate::dist) fn linked(root: &Path) -> Result<CrateGraph> {
    let mut graph = CrateGraph::default();
    let program = graph.add(&tree(root, "Cargo.toml", "signalbox")?, &checksums(root, "Cargo.lock")?)?;
    let objects = graph.add(
        &tree(root, "ebpf/Cargo.toml", "signalbox-ebpf")?,
        &checksums(root, "ebpf/Cargo.lock")?,
    )?;
    graph.needs.entry(program).or_default().insert(objects);
    Ok(graph)
}

fn tree(root: &Path, manifest: &str, package: &str) -> Result<String> {
    let run = Run::cargo(["tree", "--locked", "--manifest-path", manifest, "-p", package])?.dir(root);
    let run = run.args(["-e", "normal", "--prefix", "depth", "-f", "\t{p}\t{l}\t{r}"]);
    run.answer().with_context(|| format!("`cargo tree` of {package} fails"))
}

/// Checksums of a lock file.
fn checksums(root: &Path, file: &str) -> Result<BTreeMap<CrateId, String>> {
    let text = fs::read_to_string(root.join(file)).with_context(|| format!("reading {file}"))?;
    Ok(text.split("[[package]]").filter_map(checksum).collect())
}

fn checksum(package: &str) -> Option<(CrateId, String)> {
    let value = |key: &str| {
        let mut lines = package.lines();
        let line = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "))?;
        Some(line.trim_matches('"').to_owned())
    };
    Some(((value("name")?, value("version")?), value("checksum")?))
}

impl CrateGraph {
    /// Adds cargo's output, and returns the root's id.
    fn add(&mut self, tree: &str, checksums: &BTreeMap<CrateId, String>) -> Result<CrateId> {
        let mut above: Vec<CrateId> = Vec::new();
        for line in tree.lines().filter(|line| !line.is_empty()) {
            let columns: Vec<&str> = line.split('\t').collect();
            let [depth, what, licence, repository] = columns[..] else {
                bail!("`cargo tree` says `{line}`");
            };
            let depth: usize = depth.parse().with_context(|| format!("`cargo tree` says `{line}`"))?;
            let id = id(what).with_context(|| format!("`cargo tree` says `{line}`"))?;
            above.truncate(depth);
            if let Some(parent) = above.last() {
                self.needs.entry(parent.clone()).or_default().insert(id.clone());
            }
            above.push(id.clone());
            let found = LinkedCrate {
                licence: expression(licence).with_context(|| format!("the licence of {} {}", id.0, id.1))?,
                // A star follows a crate that was listed before.
                repository: repository.trim_end_matches(" (*)").to_owned(),
                checksum: checksums.get(&id).cloned(),
            };
            self.crates.insert(id, found);
        }
        above.into_iter().next().context("`cargo tree` says nothing")
    }
}

fn id(text: &str) -> Option<CrateId> {
    let mut words = text.split_whitespace();
    let (name, version) = (words.next()?, words.next()?);
    Some((name.to_owned(), version.strip_prefix('v')?.to_owned()))
}

/// A licence as SPDX writes it: old manifests have a slash for OR.
fn expression(licence: &str) -> Result<String> {
    let text = licence.replace('/', " OR ");
    let words: Vec<&str> = text.split_whitespace().collect();
    let is_word = |word: &&str| {
        let word = word.trim_matches(['(', ')']);
        !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "-.+".contains(c))
    };
    if words.is_empty() || !words.iter().all(is_word) {
        bail!("`{licence}` is no expression of SPDX");
    }
    Ok(words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "0\ta v0.1.0 (/src/a)\tMIT OR Apache-2.0\thttps://a\n1\tb v1.2.3 (proc-macro)\tMIT/Apache-2.0\t\n\
                        2\tc v2.0.0\tISC AND (Apache-2.0 OR ISC)\thttps://c\n1\tc v2.0.0\tISC AND (Apache-2.0 OR ISC)\t\
                        https://c (*)\n";

    #[test]
    fn a_tree_becomes_crates_and_what_they_need() {
        let ids = |name: &str, version: &str| (name.to_owned(), version.to_owned());
        let lock = "[[package]]\nname = \"c\"\nversion = \"2.0.0\"\nchecksum = \"abc\"\n\n[[package]]\nname = \"a\"\n\
                    version = \"0.1.0\"\n";
        let checksums: BTreeMap<CrateId, String> = lock.split("[[package]]").filter_map(checksum).collect();
        let mut graph = CrateGraph::default();
        assert_eq!(graph.add(TREE, &checksums).unwrap(), ids("a", "0.1.0"));
        let (a, b, c) = (ids("a", "0.1.0"), ids("b", "1.2.3"), ids("c", "2.0.0"));
        assert_eq!(graph.crates.len(), 3);
        assert_eq!(graph.crates[&b].licence, "MIT OR Apache-2.0");
        assert_eq!(graph.crates[&c].checksum.as_deref(), Some("abc"));
        assert_eq!(graph.crates[&c].repository, "https://c");
        assert_eq!(graph.crates[&a].checksum, None);
        let needs = BTreeMap::from([(a, BTreeSet::from([b.clone(), c.clone()])), (b, BTreeSet::from([c]))]);
        assert_eq!(graph.needs, needs);
    }

    #[test]
    fn a_crate_without_a_licence_is_refused() {
        let error = CrateGraph::default().add("0\ta v0.1.0\t\t\n", &BTreeMap::new());
        assert_eq!(error.unwrap_err().to_string(), "the licence of a 0.1.0");
        assert!(expression("see LICENSE, please").is_err());
        assert_eq!(expression("Apache-2.0 / MIT").unwrap(), "Apache-2.0 OR MIT");
    }
}
