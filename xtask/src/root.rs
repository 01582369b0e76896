//! Where things stand in the checkout. Nothing here depends on the directory that xtask was called from.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// The root of the checkout. Asked at run time: two checkouts may share a target directory, and so this binary.
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

/// Where the eBPF object is left by a build whose result goes nowhere else.
pub(crate) fn fresh_object(root: &Path) -> PathBuf {
    root.join("target/ebpf/signalbox.bpf.o")
}

/// The checked-in object, embedded by `cargo run` on a machine without a BPF toolchain.
pub(crate) fn prebuilt_object(root: &Path) -> PathBuf {
    root.join("ebpf/prebuilt/signalbox.bpf.o")
}

/// What the checked-in object was built from and by.
pub(crate) fn prebuilt_record(root: &Path) -> PathBuf {
    root.join("ebpf/prebuilt/signalbox.bpf.json")
}
