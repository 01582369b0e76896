//! `abi`: maps and programs of the eBPF objects as a text that is checked in, so that a change of them is seen in
//! review.
//!
//! Pinned maps and a newer userspace meet at run time: a change of a line of `ebpf/abi.txt` raises the question whether
//! ABI_VERSION has to change, too.

mod elf;
mod floor;
mod maps;
mod stack;

use std::{fmt::Write as _, fs, path::PathBuf};

use anyhow::{Context, Result, bail};

use crate::{
    ebpf,
    root::{prebuilt_objects, root},
};

#[derive(clap::Args, Default)]
pub(crate) struct AbiArgs {
    /// Rewrite ebpf/abi.txt and docs/kernel-maps.md
    #[arg(long)]
    update: bool,
    /// Read the objects in this directory instead of ebpf/prebuilt
    #[arg(long, value_name = "DIRECTORY")]
    objects: Option<PathBuf>,
}

pub(crate) fn run(args: &AbiArgs) -> Result<()> {
    let root = root()?;
    let dir = args.objects.clone().unwrap_or_else(|| prebuilt_objects(&root));
    let lib = fs::read_to_string(root.join("common/src/lib.rs")).context("common/src/lib.rs cannot be read")?;
    let mut objects = Vec::new();
    for (name, bytes) in ebpf::read(&dir)? {
        let face = elf::read(&bytes).with_context(|| format!("{name} in {} is no eBPF object", dir.display()))?;
        objects.push((name, face));
    }
    let now = text(abi_version(&lib)?, &objects);
    print!("{now}");
    for (name, object) in &objects {
        if let Some(reason) = object.stack.too_deep() {
            bail!("{name} does not load on older kernels: {reason}");
        }
        let too_new = object.needs.too_new(name);
        if !too_new.is_empty() {
            bail!(
                "the programs of {name} are to run on older kernels, but {}",
                too_new.join(", ")
            );
        }
    }
    let file = root.join("ebpf/abi.txt");
    let (page, maps) = (root.join(maps::PAGE), maps::page(&root, &objects)?);
    if args.update {
        fs::write(&page, maps).with_context(|| format!("{} cannot be written", page.display()))?;
        return fs::write(&file, now).with_context(|| format!("{} cannot be written", file.display()));
    }
    if fs::read_to_string(&page).unwrap_or_default() != maps {
        bail!(
            "{} is not what the comments of `ebpf/src` say: `cargo xtask abi --update`",
            maps::PAGE
        );
    }
    let checked_in = fs::read_to_string(&file).unwrap_or_default();
    let diff = diff(&checked_in, &now);
    if !diff.is_empty() {
        bail!(
            "the objects' maps or programs are not those of ebpf/abi.txt:\n{diff}If that is meant, raise ABI_VERSION in \
             common/src/lib.rs when a pinned map changed, run `cargo xtask abi --update` and commit the file"
        );
    }
    Ok(())
}

fn text(version: u32, objects: &[(&str, elf::Face)]) -> String {
    let mut text =
        String::from("# The maps and programs of the eBPF objects. Written by `cargo xtask abi --update`.\n");
    let _ = writeln!(text, "abi_version {version}");
    for (name, object) in objects {
        for program in &object.programs {
            let _ = writeln!(text, "{name} program {} type={}", program.name, program.kind);
        }
        for map in &object.maps {
            let _ = writeln!(text, "{name} map {} {}", map.name, map.layout);
        }
        let _ = writeln!(text, "{name} stack {}", object.stack.bytes);
        for (need, (major, minor)) in object.needs.all() {
            let _ = writeln!(text, "{name} needs {major}.{minor} {need}");
        }
    }
    text
}

fn abi_version(lib: &str) -> Result<u32> {
    let value = lib.lines().find_map(|line| {
        line.trim()
            .strip_prefix("pub const ABI_VERSION: u32 = ")?
            .strip_suffix(';')
    });
    value
        .and_then(|value| value.parse().ok())
        .context("common/src/lib.rs has no `pub const ABI_VERSION: u32 = ...;`")
}

/// Difference of two texts: lines that only one has. Each line names its object, so the order does not matter.
fn diff(old: &str, new: &str) -> String {
    let mut diff = String::new();
    for line in old.lines().filter(|line| !new.lines().any(|other| other == *line)) {
        let _ = writeln!(diff, "- {line}");
    }
    for line in new.lines().filter(|line| !old.lines().any(|other| other == *line)) {
        let _ = writeln!(diff, "+ {line}");
    }
    diff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_map_shows_as_a_line_gone_and_a_line_new() {
        assert_eq!(diff("a\nb\n", "a\nb\n"), "");
        assert_eq!(
            diff("a\nmap X value=4\n", "a\nmap X value=8\n"),
            "- map X value=4\n+ map X value=8\n"
        );
    }

    #[test]
    fn the_version_is_read_from_the_source() {
        assert_eq!(abi_version("//! x\npub const ABI_VERSION: u32 = 7;\n").unwrap(), 7);
        assert!(abi_version("pub const OTHER: u32 = 7;").is_err());
    }
}
