//! `build-ebpf --check`: the checked-in objects are what the sources give. CI runs it.

use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::{
    Objects, compile, read,
    record::{Record, hashes},
    sources, toolchain,
};
use crate::root::{prebuilt_objects, prebuilt_record};

const REMEDY: &str = "run `cargo xtask build-ebpf` and commit ebpf/prebuilt with the sources";

pub(super) fn run(root: &Path) -> Result<()> {
    let record = Record::read(&prebuilt_record(root))?;
    let objects = read(&prebuilt_objects(root)).context(REMEDY)?;
    compare(&record, &sources::hash(root)?, &objects)?;
    let toolchain = match toolchain::choose(Some(&record)) {
        Ok(toolchain) => toolchain,
        Err(lacks) => {
            println!("ebpf/prebuilt is of these sources; not rebuilt to compare bytes: {lacks}");
            return Ok(());
        }
    };
    if !record.is_by(&toolchain) {
        println!("ebpf/prebuilt is of these sources; not rebuilt to compare bytes: it was built by");
        println!("  {}, {}; here is", record.rustc, record.bpf_linker);
        println!("  {}, {}", toolchain.rustc_version, toolchain.linker_version);
        return Ok(());
    }
    for (name, rebuilt) in hashes(&compile::build(&toolchain, root, &[])?) {
        let recorded = record.objects_sha256.get(&name).map_or("none", String::as_str);
        if rebuilt != recorded {
            bail!(
                "the checked-in object {name} ({recorded}) is not what its sources and toolchain give ({rebuilt}); \
                 {REMEDY}"
            );
        }
        println!("ebpf/prebuilt: {name} is of these sources, and a rebuild gives the same bytes ({rebuilt})");
    }
    Ok(())
}

/// Compares hashes of sources and objects with the record, which takes no toolchain.
fn compare(record: &Record, sources: &str, objects: &Objects) -> Result<()> {
    if record.sources_sha256 != sources {
        bail!("the sources of the eBPF programs have moved on since ebpf/prebuilt was built; {REMEDY}");
    }
    for (name, hash) in hashes(objects) {
        if record.objects_sha256.get(&name) != Some(&hash) {
            bail!("object {name} in ebpf/prebuilt is not the one that its record describes; {REMEDY}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_sources_and_a_replaced_object_are_told_apart() {
        let objects = |bytes: &[u8]| vec![("steering", b"same".to_vec()), ("layer4", bytes.to_vec())];
        let record = Record {
            sources_sha256: "aa".into(),
            objects_sha256: hashes(&objects(b"object")),
            rustc: String::new(),
            bpf_linker: String::new(),
        };
        compare(&record, "aa", &objects(b"object")).unwrap();
        let moved = compare(&record, "bb", &objects(b"object")).unwrap_err().to_string();
        assert!(
            moved.contains("moved on") && moved.contains("cargo xtask build-ebpf"),
            "{moved}"
        );
        let replaced = compare(&record, "aa", &objects(b"other")).unwrap_err().to_string();
        assert!(
            replaced.contains("object layer4") && replaced.contains("is not the one"),
            "{replaced}"
        );
    }
}
