//! An archive of the same files, for every other distribution; its debug symbols; the manual pages.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use super::{
    Format, Packing,
    tree::{self, PackagedFile},
};
use crate::vm::store::quietly;

pub(super) fn pack(packing: &Packing<'_>) -> Result<Vec<PathBuf>> {
    let release = packing.release;
    let name = format!("signalbox-{}-linux-{}", release.version, std::env::consts::ARCH);
    let main = tree::main_files(packing.root, packing.product, release, Format::Tar)?;
    let debug = tree::debug_files(packing.product)?;
    Ok(vec![
        archive(packing, &name, &main)?,
        archive(packing, &format!("{name}-debug"), &debug)?,
    ])
}

/// Puts the manual pages into the directory `man`.
pub(super) fn copy_pages(packing: &Packing<'_>) -> Result<Vec<PathBuf>> {
    let to = packing.out.join("man");
    if to.exists() {
        fs::remove_dir_all(&to)?;
    }
    fs::create_dir_all(&to)?;
    for page in fs::read_dir(packing.product.pages())? {
        let page = page?;
        fs::copy(page.path(), to.join(page.file_name()))?;
    }
    Ok(vec![to])
}

fn archive(packing: &Packing<'_>, name: &str, files: &[PackagedFile]) -> Result<PathBuf> {
    let parent = packing.scratch.join("tar");
    tree::stage(files, &parent.join(name), packing.release)?;
    let package = packing.out.join(format!("{name}.tar.xz"));
    let mut tar = Command::new("tar");
    tar.args([
        "--create",
        "--sort=name",
        "--format=gnu",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
    ])
    // Two threads: how many there are decides how the archive is divided.
    .arg(format!("--use-compress-program=xz -T2 -{}", packing.effort.of_xz()))
    .arg("--file")
    .arg(&package)
    .arg("--directory")
    .arg(&parent)
    .arg(Path::new(name));
    quietly(&mut tar)?;
    Ok(package)
}
