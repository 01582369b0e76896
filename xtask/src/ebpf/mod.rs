//! `build-ebpf`: builds the eBPF object from source and keeps a checked-in copy honest.
//!
//! The copy in `ebpf/prebuilt` is what `cargo run` embeds, so that nobody needs a BPF toolchain to try signalbox.
//! Beside it stands a [`record::Record`] of what it was built from, which `--check` compares with the sources.

mod check;
mod compile;
mod install;
mod record;
mod sources;
mod toolchain;
pub(crate) mod wrapper;

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};

use crate::root::{prebuilt_object, prebuilt_record, root};
use record::Record;

pub(crate) use install::ensure as ensure_toolchain;

#[derive(clap::Args, Default)]
pub(crate) struct EbpfArgs {
    /// Install a toolchain first if there is none that works
    #[arg(long)]
    pub(crate) install: bool,
    /// Build nothing new: fail unless the checked-in object is what the sources give
    #[arg(long, conflicts_with = "out")]
    pub(crate) check: bool,
    /// Write the object here instead of ebpf/prebuilt
    #[arg(long, value_name = "PATH")]
    pub(crate) out: Option<PathBuf>,
    /// Build the object of another version of the maps, for the tests of upgrades
    #[arg(long, requires = "out")]
    pub(crate) next_abi: bool,
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
    // Before the build: a source edited while it runs must show as "moved on", not as the source of this object.
    let sources = sources::hash(&root)?;
    let object = compile::build(&toolchain, &root, if args.next_abi { &["next_abi"] } else { &[] })?;
    let out = args.out.clone().unwrap_or_else(|| prebuilt_object(&root));
    write(&out, &object)?;
    if args.out.is_none() {
        let record = Record::new(sources, &object, &toolchain);
        record.write(&prebuilt_record(&root))?;
    }
    println!(
        "built {} ({} bytes) with {}",
        out.display(),
        object.len(),
        toolchain.rustc_version
    );
    Ok(())
}

/// Writes a file by rename, so that a reader (another build's build.rs) sees the old bytes or the new ones, never half.
fn write(path: &std::path::Path, bytes: &[u8]) -> Result<()> {
    let dir = path
        .parent()
        .filter(|dir| !dir.as_os_str().is_empty())
        .unwrap_or_else(|| ".".as_ref());
    fs::create_dir_all(dir).with_context(|| format!("{} cannot be created", dir.display()))?;
    let half = path.with_extension("half");
    fs::write(&half, bytes).with_context(|| format!("{} cannot be written", half.display()))?;
    fs::rename(&half, path).with_context(|| format!("{} cannot be replaced", path.display()))
}
