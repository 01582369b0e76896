//! docs/kernel-maps.md: the maps by their doc comments in `ebpf/src`, each with its entry, writer, reader and size.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::{Context, Result, bail};
use syn::{Attribute, Expr, Item, ItemStatic, Lit, Meta};

use super::elf::{Face, Map};
use crate::ebpf::SHIPPED;

/// Page that is written.
pub(super) const PAGE: &str = "docs/kernel-maps.md";

/// Labels of the four lines that each map's comment must have, in this order.
const LABELS: [&str; 4] = ["Entry", "Writer", "Reader", "Size"];

/// Files of `ebpf/src` with maps, and the title of their section.
const SECTIONS: [(&str, &str); 10] = [
    ("steer.rs", "Steering"),
    ("sockmap.rs", "Tier sockmap"),
    ("cut/maps.rs", "Tier cut"),
    ("handshakes.rs", "Handshakes"),
    ("peek/maps.rs", "Kernel peek"),
    ("l4/maps.rs", "Layer-4 services"),
    ("shield/maps.rs", "Shield"),
    ("names.rs", "Names of what flows refer to"),
    ("count.rs", "All programs"),
    ("clock.rs", "Clock"),
];

/// Maps that userspace makes before the object is loaded, of another type than is declared there.
const MAPS_OF_MAPS: [&str; 2] = ["L4_TABLES", "SHIELD_GUARD_PREFIXES"];

const INTRODUCTION: &str = "\
# The kernel's maps

Written by `cargo xtask abi --update` from the comments in `ebpf/src`; `cargo xtask abi` fails on a map without them.
Files are those of `userspace/src`, and of the crates in `userspace`, unless stated otherwise; programs are those of
`ebpf/src`.

There is an object for each topic: `steering` (with tier sockmap), `cut_through`, `kernel_peek`, `layer4` (with the
shield), and `decap` for the hosts of services in mode `dsr-ipip`. Each map has its objects in brackets.
aya-log adds `AYA_LOGS`, the compiler `.rodata`. Tests have an object of their own, which does not ship.

*Pinned* maps (declared by `pinned` in place of `with_max_entries`) are below `/sys/fs/bpf/signalbox` and outlive the
process. A change of one raises `ABI_VERSION` and follows `common/src/layout.rs`. The next version reads the flows of
the one before by the names of their fields, from the description that is pinned as `LAYOUT`
(`kernel/src/pins/layout.rs`). `ebpf/layouts` has the description of each version; a renamed field or map is listed in
`kernel/src/pins/former_names.rs`.
";

/// A map's comment.
#[derive(Debug, PartialEq, Eq)]
struct MapDocs {
    name: String,
    summary: String,
    /// Texts after [`LABELS`].
    lines: [String; 4],
}

/// The page, from the sources below `root`.
pub(super) fn page(root: &Path, objects: &[(&str, Face)]) -> Result<String> {
    let mut page = INTRODUCTION.to_owned();
    let mut documented = Vec::new();
    for (file, title) in SECTIONS {
        let name = format!("ebpf/src/{file}");
        let text = fs::read_to_string(root.join(&name)).with_context(|| format!("{name} cannot be read"))?;
        let maps = read(&name, &text)?;
        let _ = write!(
            page,
            "\n## {title}\n\n| Map | Entry | Writer | Reader | Size |\n|---|---|---|---|---|\n"
        );
        for map in maps {
            check_files(root, &name, &map)?;
            let owners: Vec<_> = owners(objects, &map.name).collect();
            let (_, first) = owners
                .first()
                .with_context(|| format!("{name}: no object has map {}", map.name))?;
            let is_pinned = owners.iter().any(|(_, map)| map.is_pinned);
            if is_pinned != map.lines[3].contains("; pinned") {
                bail!(
                    "{name}: `- Size:` of map {} is wrong about whether the map is pinned",
                    map.name
                );
            }
            let is_outer = MAPS_OF_MAPS.contains(&map.name.as_str());
            let kind = if is_outer { "array_of_maps" } else { &first.kind };
            let objects: Vec<&str> = owners.iter().map(|(object, _)| *object).collect();
            let [entry, writer, reader, size] = &map.lines;
            let _ = writeln!(
                page,
                "| `{}` ({kind}; {}): {} | {entry} | {writer} | {reader} | {size} |",
                map.name,
                objects.join(", "),
                map.summary
            );
            documented.push(map.name);
        }
    }
    // aya-log makes its own ring.
    let mut others = shipped(objects)
        .flat_map(|(_, object)| &object.maps)
        .filter(|map| map.name != "AYA_LOGS" && !map.name.starts_with('.'));
    if let Some(map) = others.find(|map| !documented.contains(&map.name)) {
        bail!(
            "{} is in no file that xtask/src/abi/maps.rs lists: add its file to SECTIONS",
            map.name
        );
    }
    Ok(page)
}

fn shipped<'a>(objects: &'a [(&str, Face)]) -> impl Iterator<Item = &'a (&'a str, Face)> {
    objects.iter().filter(|(name, _)| SHIPPED.contains(name))
}

/// Objects that have a map of this name, each with its map.
fn owners<'a>(objects: &'a [(&str, Face)], name: &'a str) -> impl Iterator<Item = (&'a str, &'a Map)> {
    let in_object = move |(object, face): &'a (&'a str, Face)| {
        let map = face.maps.iter().find(|map| map.name == name)?;
        Some((*object, map))
    };
    shipped(objects).filter_map(in_object)
}

/// The maps of one source.
fn read(name: &str, text: &str) -> Result<Vec<MapDocs>> {
    let file = syn::parse_file(text).with_context(|| format!("{name} is no Rust source"))?;
    let maps = file.items.iter().filter_map(|item| match item {
        Item::Static(item) if item.attrs.iter().any(|attr| attr.path().is_ident("map")) => Some(item),
        _ => None,
    });
    maps.map(|map| docs(name, map)).collect()
}

fn docs(file: &str, map: &ItemStatic) -> Result<MapDocs> {
    let name = map.ident.to_string();
    let mut summary = String::new();
    let mut lines: [String; 4] = Default::default();
    let mut at = None;
    for line in map.attrs.iter().filter_map(doc_line) {
        let line = line.trim();
        let label = LABELS.iter().position(|label| {
            line.strip_prefix("- ")
                .and_then(|rest| rest.strip_prefix(label))
                .is_some_and(|rest| rest.starts_with(':'))
        });
        if let Some(label) = label {
            at = Some(label);
            lines[label] = line[LABELS[label].len() + 3..].trim().to_owned();
        } else if !line.is_empty() {
            let text = at.map_or(&mut summary, |label: usize| &mut lines[label]);
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(line);
        }
    }
    let missing = LABELS.iter().zip(&lines).find(|(_, line)| line.is_empty());
    let place = format!("{file}:{}", map.ident.span().start().line);
    if let Some((label, _)) = missing {
        bail!("{place}: the comment of map {name} has no line `- {label}: ...`; each map has {LABELS:?}");
    }
    if summary.is_empty() {
        bail!("{place}: the comment of map {name} does not say what the map is");
    }
    if !lines[3].contains("pinned") {
        bail!("{place}: `- Size:` of map {name} does not say whether the map is pinned, and why");
    }
    Ok(MapDocs { name, summary, lines })
}

fn doc_line(attr: &Attribute) -> Option<String> {
    match &attr.meta {
        Meta::NameValue(doc) if doc.path.is_ident("doc") => match &doc.value {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => Some(text.value()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    }
}

/// Files that a comment names must exist.
fn check_files(root: &Path, file: &str, map: &MapDocs) -> Result<()> {
    for line in &map.lines {
        for word in line.split(|c: char| !(c.is_ascii_alphanumeric() || "_/.".contains(c))) {
            let is_there = || {
                ["", "userspace/src", "userspace"]
                    .map(|base| root.join(base).join(word))
                    .iter()
                    .any(|path| path.exists())
            };
            if word.ends_with(".rs") && !is_there() {
                bail!(
                    "{file}: the comment of map {} names {word}, which does not exist",
                    map.name
                );
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "/// Counts of\n/// something.\n///\n/// - Entry: number -> count\n/// - Writer: steer\n/// - Reader: \
                         kernel/src/counters.rs\n/// - Size: 4; not pinned: they are\n///   counts\n#[map]\nstatic M: Array<u64> = \
                         Array::with_max_entries(4, 0);\n";

    #[test]
    fn a_comment_is_read_whole() {
        let maps = read("x.rs", WHOLE).unwrap();
        assert_eq!(maps[0].summary, "Counts of something.");
        assert_eq!(maps[0].lines[0], "number -> count");
        assert_eq!(maps[0].lines[3], "4; not pinned: they are counts");
    }

    #[test]
    fn a_map_without_one_of_the_lines_is_named_with_its_place() {
        let without = WHOLE.replace("/// - Writer: steer\n", "");
        let error = read("x.rs", &without).unwrap_err().to_string();
        assert!(
            error.starts_with("x.rs:9: the comment of map M has no line `- Writer: ...`"),
            "{error}"
        );
        let unpinned = WHOLE.replace("; not pinned: they are\n///   counts", "");
        assert!(
            read("x.rs", &unpinned)
                .unwrap_err()
                .to_string()
                .contains("whether the map is pinned")
        );
        let nameless = WHOLE.replace("/// Counts of\n/// something.\n", "");
        assert!(
            read("x.rs", &nameless)
                .unwrap_err()
                .to_string()
                .contains("what the map is")
        );
    }

    #[test]
    fn a_file_that_does_not_exist_is_named() {
        let root = crate::root::root().unwrap();
        let wrong = WHOLE.replace("kernel/src/counters.rs", "kernel/src/counts.rs");
        let maps = read("x.rs", &wrong).unwrap();
        let error = check_files(&root, "x.rs", &maps[0]).unwrap_err().to_string();
        assert_eq!(
            error,
            "x.rs: the comment of map M names kernel/src/counts.rs, which does not exist"
        );
        assert!(check_files(&root, "x.rs", &read("x.rs", WHOLE).unwrap()[0]).is_ok());
    }
}
