//! Decides which eBPF object is embedded: the one that `SIGNALBOX_EBPF_OBJECT` names, or the one checked in.

use std::env;
use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-env-changed=SIGNALBOX_EBPF_OBJECT");
    let object = env::var_os("SIGNALBOX_EBPF_OBJECT").map_or_else(
        || {
            PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default())
                .join("../ebpf/prebuilt/signalbox.bpf.o")
        },
        PathBuf::from,
    );
    let object = object.canonicalize().unwrap_or_else(|error| {
        panic!(
            "{} cannot be read ({error}): run `cargo xtask build-ebpf`",
            object.display()
        );
    });
    println!("cargo::rerun-if-changed={}", object.display());
    println!("cargo::rustc-env=SIGNALBOX_EBPF_OBJECT={}", object.display());
    let revision = std::process::Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .output()
        .ok();
    let revision = revision
        .filter(|out| out.status.success())
        .and_then(|out| String::from_utf8(out.stdout).ok());
    println!(
        "cargo::rustc-env=SIGNALBOX_REVISION={}",
        revision.as_deref().unwrap_or("unknown").trim()
    );
    println!("cargo::rerun-if-changed=../.git/HEAD");
}
