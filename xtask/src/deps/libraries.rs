//! `docs/dependencies.md`: every library that the product names, the crates that it brings, and the reason for it.
//!
//! A library has a cost for everyone who builds signalbox: a new one needs a line of reason, which this checks.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::Path,
};

use anyhow::{Context, Result};

use crate::exec::Run;

const PAGE: &str = "docs/dependencies.md";
const BEGIN: &str = "<!-- numbers: written by `cargo xtask check-deps --update-docs` -->\n";
const END: &str = "<!-- end of the libraries -->";
const HEAD: &str = "| Library | Named by | Brings | Alone | Why |\n|---|---|---:|---:|---|\n";
const REMEDY: &str = "`cargo xtask check-deps --update-docs` writes the numbers; the reason is for a person to write";

/// Crates that a crate is built with: its name and version, and those of the crates that it names.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// A row of the table: library, the crates that name it, number of crates it brings, and of those that only it brings.
#[derive(Debug, PartialEq, Eq)]
struct Library {
    name: String,
    named_by: Vec<String>,
    brings: usize,
    alone: usize,
}

/// Faults of the page.
pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(root.join(PAGE)).with_context(|| format!("{PAGE} cannot be read"))?;
    let (_, table, _) = split(&text)?;
    let graph = graph()?;
    Ok(faults(&libraries(&graph), &reasons(table), table, graph.len()))
}

/// Writes the table with the reasons that the page has.
pub(super) fn update(root: &Path) -> Result<()> {
    let text = fs::read_to_string(root.join(PAGE)).with_context(|| format!("{PAGE} cannot be read"))?;
    let (before, table, after) = split(&text)?;
    let graph = graph()?;
    let table = self::table(&libraries(&graph), &reasons(table), graph.len());
    fs::write(root.join(PAGE), format!("{before}{BEGIN}{table}{END}{after}"))
        .with_context(|| format!("{PAGE} cannot be written"))
}

fn faults(libraries: &[Library], reasons: &BTreeMap<String, String>, table: &str, crates: usize) -> Vec<String> {
    let lacks = libraries
        .iter()
        .filter(|library| reasons.get(&library.name).is_none_or(String::is_empty));
    let mut faults: Vec<String> = lacks
        .map(|library| {
            let by = library.named_by.join(", ");
            format!(
                "{PAGE}: no reason for {}, which {by} names: what does it do that no other library here does?",
                library.name
            )
        })
        .collect();
    if faults.is_empty() && table != self::table(libraries, reasons, crates) {
        faults.push(format!("{PAGE} is not what `cargo tree` says: {REMEDY}"));
    }
    faults
}

fn split(text: &str) -> Result<(&str, &str, &str)> {
    let missing = || format!("{PAGE} has no place for the table: {BEGIN}");
    let (before, rest) = text.split_once(BEGIN).with_context(missing)?;
    let (table, after) = rest.split_once(END).with_context(missing)?;
    Ok((before, table, after))
}

fn reasons(table: &str) -> BTreeMap<String, String> {
    let rows = table.lines().filter_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let name = cells.first()?.strip_prefix('`')?.strip_suffix('`')?;
        Some((name.to_owned(), (*cells.get(4)?).to_owned()))
    });
    rows.collect()
}

fn table(libraries: &[Library], reasons: &BTreeMap<String, String>, crates: usize) -> String {
    let mut text = format!("\nThe program is built from {crates} crates, including signalbox's own.\n\n{HEAD}");
    for library in libraries {
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} | {} |",
            library.name,
            library.named_by.join(", "),
            library.brings,
            library.alone,
            reasons.get(&library.name).map_or("", String::as_str),
        );
    }
    text.push('\n');
    text
}

/// The crates that the program is built of, as cargo resolves them for this machine.
fn graph() -> Result<Graph> {
    let tree = Run::cargo([
        "tree",
        "-p",
        "signalbox",
        "-e",
        "normal,build",
        "--prefix",
        "depth",
        "--locked",
    ])?;
    let tree = tree
        .answer()
        .context("`cargo tree -p signalbox --locked` fails: is Cargo.lock up to date?")?;
    Ok(parse(&tree))
}

/// Reads a tree whose lines begin with their depth; the dependencies of a crate are shown at its first occurrence.
fn parse(tree: &str) -> Graph {
    let mut graph = Graph::new();
    let mut path: Vec<String> = Vec::new();
    for line in tree.lines() {
        let digits = line.find(|c: char| !c.is_ascii_digit()).unwrap_or(line.len());
        let (depth, rest) = line.split_at(digits);
        let (Ok(depth), mut words) = (depth.parse::<usize>(), rest.split_whitespace()) else {
            continue;
        };
        let Some((name, version)) = words.next().zip(words.next()) else {
            continue;
        };
        let package = format!("{name} {version}");
        path.truncate(depth);
        if let Some(parent) = path.last() {
            graph.entry(parent.clone()).or_default().insert(package.clone());
        }
        graph.entry(package.clone()).or_default();
        path.push(package);
    }
    graph
}

fn is_ours(package: &str) -> bool {
    package.starts_with("signalbox")
}

/// Crates that can be reached from these, without passing one of `but`.
fn reach(graph: &Graph, from: impl IntoIterator<Item = String>, but: &BTreeSet<String>) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<String> = from.into_iter().filter(|package| !but.contains(package)).collect();
    while let Some(package) = open.pop() {
        if reached.insert(package.clone()) {
            let next = graph.get(&package).into_iter().flatten();
            open.extend(next.filter(|next| !but.contains(*next)).cloned());
        }
    }
    reached
}

fn libraries(graph: &Graph) -> Vec<Library> {
    let mut named: BTreeMap<&str, (BTreeSet<String>, Vec<String>)> = BTreeMap::new();
    for (ours, dependencies) in graph.iter().filter(|(package, _)| is_ours(package)) {
        let by = ours.split(' ').next().unwrap_or(ours).trim_start_matches("signalbox-");
        for dependency in dependencies.iter().filter(|dependency| !is_ours(dependency)) {
            let name = dependency.split(' ').next().unwrap_or(dependency);
            let (packages, users) = named.entry(name).or_default();
            packages.insert(dependency.clone());
            users.push(by.to_owned());
        }
    }
    let ours: Vec<String> = graph.keys().filter(|package| is_ours(package)).cloned().collect();
    let library = |(name, (packages, named_by)): (&str, (BTreeSet<String>, Vec<String>))| {
        let left = reach_without(graph, &ours, &packages);
        Library {
            name: name.to_owned(),
            named_by,
            brings: reach(graph, packages, &BTreeSet::new()).len(),
            alone: graph.len() - left,
        }
    };
    named.into_iter().map(library).collect()
}

/// Number of crates that are left if signalbox' own crates did not name these.
fn reach_without(graph: &Graph, ours: &[String], packages: &BTreeSet<String>) -> usize {
    let named = ours.iter().flat_map(|package| graph.get(package).into_iter().flatten());
    let others: BTreeSet<String> = named
        .filter(|package| !packages.contains(*package) && !is_ours(package))
        .cloned()
        .collect();
    reach(graph, others, &BTreeSet::new()).len() + ours.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "0signalbox v0.1.0 (/x)\n1a v1.0.0\n2b v1.0.0\n2c v1.0.0 (proc-macro)\n1d v2.0.0\n2b v1.0.0 (*)\n\
                        1signalbox-core v0.1.0 (/x)\n2a v1.0.0 (*)\n[build-dependencies]\n";

    #[test]
    fn a_library_counts_all_its_crates_and_those_only_it_brings() {
        let graph = parse(TREE);
        assert_eq!(graph.len(), 6);
        let found = libraries(&graph);
        let a = Library {
            name: "a".into(),
            named_by: vec!["signalbox".into(), "core".into()],
            brings: 3,
            alone: 2,
        };
        assert_eq!(found[0], a);
        assert_eq!((found[1].name.as_str(), found[1].brings, found[1].alone), ("d", 2, 1));
    }

    #[test]
    fn a_library_without_a_reason_and_an_old_number_are_faults() {
        let libraries = libraries(&parse(TREE));
        let reasons: BTreeMap<_, _> = ["a", "d"].map(|name| (name.to_owned(), "why".to_owned())).into();
        let written = table(&libraries, &reasons, 6);
        assert_eq!(self::reasons(&written), reasons);
        assert_eq!(faults(&libraries, &reasons, &written, 6), [""; 0]);
        assert!(faults(&libraries, &reasons, &written, 7)[0].contains("--update-docs"));
        let without = faults(&libraries, &BTreeMap::new(), &written, 6);
        assert!(
            without.len() == 2 && without[0].contains("no reason for a"),
            "{without:?}"
        );
    }
}
