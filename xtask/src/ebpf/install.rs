//! `build-ebpf --install`: gets a toolchain that can build the eBPF programs.

use anyhow::{Result, bail};

use super::toolchain::{self, Kind};
use crate::{
    apt,
    exec::{Run, find_program},
};

/// Version of bpf-linker that links the output of LLVM 22 without its own LLVM: it opens the one that rustc ships.
const BPF_LINKER: &str = "0.10.4";
const BPF_LINKER_FEATURES: [&str; 3] = ["--no-default-features", "--features", "rust-llvm-22"];

pub(super) const REMEDY: &str = "\
Either: rustup toolchain install nightly --component rust-src
    or: apt-get install rustc-web rust-web-src    (Debian, from its security suite)
   and: cargo install bpf-linker --version 0.10.4 --locked --no-default-features --features rust-llvm-22
`cargo xtask build-ebpf --install` does it for you. Without any of it, the checked-in objects in ebpf/prebuilt are used.";

/// Installs the missing parts, and nothing when a toolchain is complete.
pub(crate) fn ensure() -> Result<()> {
    if find_program("bpf-linker").is_none() {
        let cargo = Run::cargo(["install", "bpf-linker", "--version", BPF_LINKER, "--locked"])?;
        // The toolchain's own flags are for our code, not for tools. LLVM does the work, and comes with the compiler,
        // so bpf-linker itself is built in the fastest way.
        cargo
            .args(BPF_LINKER_FEATURES)
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
            .without_env("RUSTFLAGS")
            .without_env("CARGO_TARGET_DIR")
            .run()?;
    }
    if toolchain::find(Kind::RustupNightly).is_ok() || toolchain::find(Kind::Debian).is_ok() {
        return Ok(());
    }
    // Debian's first: the checked-in objects are built by it, so that their bytes can be compared.
    if apt::may_install() {
        apt::install(&["rustc-web", "rust-web-src"])?;
    } else if find_program("rustup").is_some() {
        let rustup = Run::new("rustup")?.args(["toolchain", "install", "nightly", "--profile", "minimal"]);
        rustup.args(["--component", "rust-src"]).run()?;
    } else {
        bail!("there is neither apt (with root or sudo) nor rustup to install a toolchain with.\n{REMEDY}");
    }
    toolchain::choose(None).map(drop)
}
