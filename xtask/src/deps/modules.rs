//! Imports between the modules of a package.

use std::collections::BTreeMap;

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;

use super::source::{Import, Source};

/// Files of a package, for the imports between them.
pub(super) struct Modules<'a> {
    sources: &'a [Source],
    by_module: BTreeMap<&'a [String], usize>,
}

/// Import of one file by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrow<'a> {
    pub(super) from: &'a Source,
    pub(super) to: &'a Source,
    pub(super) import: &'a Import,
}

impl PartialEq for Source {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Source {}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

impl<'a> Modules<'a> {
    pub(super) fn of(sources: &'a [Source]) -> Self {
        let by_module = sources
            .iter()
            .enumerate()
            .map(|(index, source)| (&source.module[..], index));
        Self {
            sources,
            by_module: by_module.collect(),
        }
    }

    /// File that a path leads to, through `pub use` where it is named by that.
    fn file_of(&self, path: &[String], depth: usize) -> Option<usize> {
        for length in (0..=path.len()).rev() {
            let Some(&index) = self.by_module.get(&path[..length]) else {
                continue;
            };
            let Some(name) = path.get(length) else {
                return Some(index);
            };
            let source = &self.sources[index];
            let elsewhere = source
                .imports
                .iter()
                .find(|import| import.is_public && import.path.last() == Some(name) && depth > 0);
            return match elsewhere {
                Some(import) => self.file_of(&import.path, depth - 1).or(Some(index)),
                None => Some(index),
            };
        }
        None
    }

    /// Imports of one file by another, without re-exports (`pub use`).
    pub(super) fn arrows(&self) -> impl Iterator<Item = Arrow<'a>> {
        self.all_arrows().filter(|arrow| !arrow.import.is_public)
    }

    /// Imports of one file by another, and re-exports.
    pub(super) fn all_arrows(&self) -> impl Iterator<Item = Arrow<'a>> {
        self.sources.iter().enumerate().flat_map(move |(from, source)| {
            source.imports.iter().filter_map(move |import| {
                let to = self.file_of(&import.path, 4)?;
                (to != from).then(|| Arrow {
                    from: source,
                    to: &self.sources[to],
                    import,
                })
            })
        })
    }

    /// Imports between the topmost modules of a crate, each with its place.
    pub(super) fn between_tops(&self) -> BTreeMap<(&'a str, &'a str), Vec<String>> {
        let top = |source: &'a Source| source.module.first().map_or("the root", String::as_str);
        let mut between: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for Arrow { from, to, import } in self.arrows() {
            if top(from) != top(to) {
                let place = format!("{}:{} {}", from.name, import.line, import.path.join("::"));
                between.entry((top(from), top(to))).or_default().push(place);
            }
        }
        between
    }

    /// Files that import each other in circles.
    pub(super) fn circles(&self) -> Vec<Vec<&'a Source>> {
        let index = |source: &Source| self.by_module[&source.module[..]];
        let mut graph: DiGraphMap<usize, ()> = DiGraphMap::new();
        for arrow in self.arrows() {
            graph.add_edge(index(arrow.from), index(arrow.to), ());
        }
        let mut circles: Vec<Vec<&Source>> = tarjan_scc(&graph)
            .into_iter()
            .filter(|circle| circle.len() > 1)
            .map(|circle| circle.into_iter().map(|index| &self.sources[index]).collect())
            .collect();
        for circle in &mut circles {
            circle.sort_by(|a: &&Source, b| a.name.cmp(&b.name));
        }
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }
}
