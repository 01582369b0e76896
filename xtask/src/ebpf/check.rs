//! `build-ebpf --check`: the checked-in objects match the sources. CI runs it.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context as _, Result, bail};

use super::{
    NEXT_ABI, Objects, compile, read,
    record::{Record, hashes},
    sources, toolchain,
};
use crate::root::{next_abi_objects, prebuilt_objects, prebuilt_record};

const REMEDY: &str = "run `cargo xtask build-ebpf` and commit ebpf/prebuilt with the sources";

pub(super) fn run(root: &Path) -> Result<()> {
    let record = compare_hashes(root)?;
    let toolchain = match toolchain::choose(Some(&record)) {
        Ok(toolchain) => toolchain,
        Err(lacks) => {
            println!("not rebuilt to compare bytes: {lacks}");
            return Ok(());
        }
    };
    if !record.is_by(&toolchain) {
        println!("not rebuilt to compare bytes: the objects were built by");
        println!("  {}, {}; here is", record.rustc, record.bpf_linker);
        println!("  {}, {}", toolchain.rustc_version, toolchain.linker_version);
        return Ok(());
    }
    for (features, recorded) in [(&[][..], &record.objects_sha256), (NEXT_ABI, &record.next_abi_sha256)] {
        compare_bytes(recorded, &compile::build(&toolchain, root, features)?)?;
    }
    println!("ebpf/prebuilt: a rebuild of the sources gives the same bytes");
    Ok(())
}

/// Compares the checked-in objects with the hashes of their record, and the record with the sources. Needs no
/// toolchain.
pub(super) fn compare_hashes(root: &Path) -> Result<Record> {
    let record = Record::read(&prebuilt_record(root))?;
    if record.sources_sha256 != sources::hash(root)? {
        bail!("the sources of the eBPF programs have moved on since ebpf/prebuilt was built; {REMEDY}");
    }
    for (dir, recorded) in [
        (prebuilt_objects(root), &record.objects_sha256),
        (next_abi_objects(root), &record.next_abi_sha256),
    ] {
        compare(recorded, &read(&dir).context(REMEDY)?)?;
    }
    println!("ebpf/prebuilt is of these sources");
    Ok(record)
}

/// Compares objects with their recorded hashes.
fn compare(recorded: &BTreeMap<String, String>, objects: &Objects) -> Result<()> {
    for (name, hash) in hashes(objects) {
        if recorded.get(&name) != Some(&hash) {
            bail!("object {name} in ebpf/prebuilt is not the one that its record describes; {REMEDY}");
        }
    }
    Ok(())
}

fn compare_bytes(recorded: &BTreeMap<String, String>, rebuilt: &Objects) -> Result<()> {
    for (name, hash) in hashes(rebuilt) {
        let expected = recorded.get(&name).map_or("none", String::as_str);
        if hash != expected {
            bail!(
                "the checked-in object {name} ({expected}) is not what its sources and toolchain give ({hash}); \
                 {REMEDY}"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_was_replaced_without_its_record_is_named() {
        let objects = |bytes: &[u8]| vec![("steering", b"same".to_vec()), ("layer4", bytes.to_vec())];
        let recorded = hashes(&objects(b"object"));
        compare(&recorded, &objects(b"object")).unwrap();
        let replaced = compare(&recorded, &objects(b"other")).unwrap_err().to_string();
        assert!(
            replaced.contains("object layer4") && replaced.contains("cargo xtask build-ebpf"),
            "{replaced}"
        );
        let rebuilt = compare_bytes(&recorded, &objects(b"other")).unwrap_err().to_string();
        assert!(rebuilt.contains("is not what its sources"), "{rebuilt}");
    }
}
