//! Paths in the checkout. Nothing here depends on the directory that xtask was called from.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// Root of the checkout. Found at run time: two checkouts may share a target directory, and so this binary.
pub(crate) fn root() -> Result<PathBuf> {
    let manifest = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let manifest = PathBuf::from(manifest);
    let root = manifest.parent().unwrap_or(&manifest);
    root.canonicalize().with_context(|| {
        format!(
            "the checkout {} is gone; run this as `cargo xtask` inside a checkout",
            root.display()
        )
    })
}

/// Directory of the checked-in objects, embedded by `cargo run` on a machine without a BPF toolchain.
pub(crate) fn prebuilt_objects(root: &Path) -> PathBuf {
    root.join("ebpf/prebuilt")
}

/// Directory of objects whose pinned maps have another version and layout, for the tests of upgrades.
pub(crate) fn next_abi_objects(root: &Path) -> PathBuf {
    root.join("ebpf/prebuilt/next-abi")
}

/// Path of the record of the checked-in objects: the sources and toolchain that they were built from.
pub(crate) fn prebuilt_record(root: &Path) -> PathBuf {
    root.join("ebpf/prebuilt/record.json")
}
