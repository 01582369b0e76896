//! `build-ebpf --check`: the checked-in object is what the sources give. CI runs it.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};

use super::{
    compile,
    record::{Record, sha256},
    sources, toolchain,
};
use crate::root::{prebuilt_object, prebuilt_record};

const REMEDY: &str = "run `cargo xtask build-ebpf` and commit ebpf/prebuilt with the sources";

pub(super) fn run(root: &Path) -> Result<()> {
    let record = Record::read(&prebuilt_record(root))?;
    let object = fs::read(prebuilt_object(root)).with_context(|| format!("no checked-in object; {REMEDY}"))?;
    compare(&record, &sources::hash(root)?, &object)?;
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
    let rebuilt = sha256(&compile::build(&toolchain, root, &[])?);
    if rebuilt != record.object_sha256 {
        bail!(
            "the checked-in object ({}) is not what its sources and toolchain give ({rebuilt}); {REMEDY}",
            record.object_sha256
        );
    }
    println!("ebpf/prebuilt is of these sources, and a rebuild gives the same bytes ({rebuilt})");
    Ok(())
}

/// Compares hashes of sources and object with the record, which takes no toolchain.
fn compare(record: &Record, sources: &str, object: &[u8]) -> Result<()> {
    if record.sources_sha256 != sources {
        bail!("the sources of the eBPF programs have moved on since ebpf/prebuilt was built; {REMEDY}");
    }
    if record.object_sha256 != sha256(object) {
        bail!("ebpf/prebuilt/signalbox.bpf.o is not the object that its record describes; {REMEDY}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_sources_and_a_replaced_object_are_told_apart() {
        let record = Record {
            sources_sha256: "aa".into(),
            object_sha256: sha256(b"object"),
            rustc: String::new(),
            bpf_linker: String::new(),
        };
        compare(&record, "aa", b"object").unwrap();
        let moved = compare(&record, "bb", b"object").unwrap_err().to_string();
        assert!(
            moved.contains("moved on") && moved.contains("cargo xtask build-ebpf"),
            "{moved}"
        );
        let replaced = compare(&record, "aa", b"other").unwrap_err().to_string();
        assert!(replaced.contains("is not the object"), "{replaced}");
    }
}
