//! `build-ebpf`: builds the eBPF objects from source and keeps checked-in copies honest.
//!
//! `cargo run` embeds the copies in `ebpf/prebuilt`, so that a BPF toolchain is not needed to try signalbox. Beside
//! them is a [`record::Record`] of the sources that they were built from, which `--check` compares with the current
//! ones.

mod check;
mod compile;
mod install;
mod record;
mod sources;
mod strip;
mod toolchain;
pub(crate) mod wrapper;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{
    root::{next_abi_objects, prebuilt_objects, prebuilt_record, root},
    vm,
};
use record::Record;

/// Names of the objects, which are the binaries of `ebpf/Cargo.toml`.
pub(crate) const OBJECTS: [&str; 6] = ["steering", "cut_through", "kernel_peek", "layer4", "decap", "testing"];

/// Objects that the product embeds; the other one is for tests and benchmarks.
pub(crate) const SHIPPED: [&str; 5] = ["steering", "cut_through", "kernel_peek", "layer4", "decap"];

/// Features of the objects that tests of upgrades take for those of a later release.
const NEXT_ABI: &[&str] = &["next_abi"];

/// Bytes of objects, by name.
type Objects = Vec<(&'static str, Vec<u8>)>;

/// Name of an object's file.
pub(crate) fn file_name(object: &str) -> String {
    format!("{object}.bpf.o")
}

/// Reads the objects in a directory.
pub(crate) fn read(dir: &Path) -> Result<Objects> {
    let read = |name: &'static str| {
        let path = dir.join(file_name(name));
        let bytes = fs::read(&path)
            .with_context(|| format!("{} cannot be read; `cargo xtask build-ebpf` builds it", path.display()))?;
        Ok((name, bytes))
    };
    OBJECTS.into_iter().map(read).collect()
}

#[derive(clap::Args, Default)]
pub(crate) struct EbpfArgs {
    /// Install a toolchain first if there is none that works
    #[arg(long)]
    pub(crate) install: bool,
    /// Build nothing new: fail unless the checked-in objects match the sources
    #[arg(long, conflicts_with = "out")]
    pub(crate) check: bool,
    /// Write the objects into this directory instead of ebpf/prebuilt
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) out: Option<PathBuf>,
}

pub(crate) fn run(args: &EbpfArgs) -> Result<()> {
    let root = root()?;
    if args.install {
        install::ensure()?;
    }
    if args.check {
        return check::run(&root);
    }
    let recorded = Record::read(&prebuilt_record(&root)).ok();
    let toolchain = toolchain::choose(recorded.as_ref())?;
    // Before the build: a source edited while it runs must show as "moved on", not as the source of these objects.
    let sources = sources::hash(&root)?;
    let objects = compile::build(&toolchain, &root, &[])?;
    if let Some(out) = &args.out {
        write_all(out, &objects)?;
    } else {
        let next_abi = compile::build(&toolchain, &root, NEXT_ABI)?;
        write_all(&prebuilt_objects(&root), &objects)?;
        write_all(&next_abi_objects(&root), &next_abi)?;
        let record = Record::new(sources, [&objects, &next_abi], &toolchain);
        record.write(&prebuilt_record(&root))?;
        vm::docs::rewrite(&root)?;
    }
    println!("with {}", toolchain.rustc_version);
    Ok(())
}

fn write_all(dir: &Path, objects: &Objects) -> Result<()> {
    for (name, bytes) in objects {
        let path = dir.join(file_name(name));
        write(&path, bytes)?;
        println!("built {} ({} bytes)", path.display(), bytes.len());
    }
    Ok(())
}

/// Fails unless the checked-in objects match their record, and the record matches the current sources.
pub(crate) fn check_hashes() -> Result<()> {
    check::compare_hashes(&root()?).map(drop)
}

/// Writes a file by rename, so that a reader (another build's build.rs) sees the old bytes or the new ones, never half.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let dir = path
        .parent()
        .filter(|dir| !dir.as_os_str().is_empty())
        .unwrap_or_else(|| ".".as_ref());
    fs::create_dir_all(dir).with_context(|| format!("{} cannot be created", dir.display()))?;
    let half = path.with_extension("half");
    fs::write(&half, bytes).with_context(|| format!("{} cannot be written", half.display()))?;
    fs::rename(&half, path).with_context(|| format!("{} cannot be replaced", path.display()))
}
