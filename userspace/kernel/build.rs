//! Decides which eBPF objects are embedded: those in the directory `SIGNALBOX_EBPF_OBJECTS`, or those checked in.

use std::env;
use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-env-changed=SIGNALBOX_EBPF_OBJECTS");
    let objects = env::var_os("SIGNALBOX_EBPF_OBJECTS").map_or_else(
        || PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../../ebpf/prebuilt"),
        PathBuf::from,
    );
    let objects = objects.canonicalize().unwrap_or_else(|error| {
        panic!(
            "{} cannot be read ({error}): run `cargo xtask build-ebpf`",
            objects.display()
        );
    });
    // Embedded files are inputs that cargo follows by itself.
    println!("cargo::rustc-env=SIGNALBOX_EBPF_OBJECTS={}", objects.display());
}
