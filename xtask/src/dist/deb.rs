//! Packages for Debian: the program, and apart from it its debug symbols.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::{
    Format, Packing,
    product::glibc,
    release::architectures,
    tree::{self, PackagedFile},
};
use crate::vm::store::quietly;

const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

pub(super) fn pack(packing: &Packing<'_>) -> Result<Vec<PathBuf>> {
    let main = tree::main_files(packing.root, packing.product, packing.release, Format::Deb)?;
    let mut debug = tree::debug_files(packing.product)?;
    debug.push(tree::debian_link());
    Ok(vec![
        pack_one(packing, "signalbox", "control", &main, &SCRIPTS)?,
        pack_one(packing, "signalbox-dbgsym", "control-dbgsym", &debug, &[])?,
    ])
}

fn pack_one(
    packing: &Packing<'_>,
    name: &str,
    control: &str,
    files: &[PackagedFile],
    scripts: &[&str],
) -> Result<PathBuf> {
    let (architecture, _) = architectures()?;
    let (release, from) = (packing.release, packing.root.join("packaging/deb"));
    let staged = packing.scratch.join("deb").join(name);
    tree::stage(files, &staged, release)?;
    let information = staged.join("DEBIAN");
    fs::create_dir(&information)?;
    let text = fs::read_to_string(from.join(control)).with_context(|| format!("reading {control}"))?;
    let text = text
        .replace("@VERSION@", &release.version)
        .replace("@ARCHITECTURE@", architecture)
        .replace("@SIZE@", &kibibytes(&staged, files)?.to_string())
        .replace("@GLIBC@", &glibc(&packing.product.program())?)
        .replace("@BUILD_ID@", &packing.product.build_id)
        .replace("@HOMEPAGE@", &release.homepage);
    fs::write(information.join("control"), text)?;
    fs::write(information.join("md5sums"), checksums(&staged, files)?)?;
    for script in scripts {
        fs::copy(from.join(script), information.join(script))?;
    }
    tree::settle(&information, release)?;
    for file in fs::read_dir(&information)? {
        let file = file?;
        let is_script = scripts.iter().any(|script| *script == file.file_name());
        let mode = if is_script { 0o755 } else { 0o644 };
        fs::set_permissions(file.path(), fs::Permissions::from_mode(mode))?;
    }
    tree::settle(&staged, release)?;
    let package = packing
        .out
        .join(format!("{name}_{}_{architecture}.deb", release.version));
    let mut pack = Command::new("dpkg-deb");
    pack.env("SOURCE_DATE_EPOCH", release.epoch.to_string())
        .arg("--root-owner-group")
        .args(packing.effort.of_deb())
        .arg("--build")
        .arg(&staged)
        .arg(&package);
    quietly(&mut pack)?;
    Ok(package)
}

/// Size as dpkg estimates it: whole KiB of each file, and one for each directory.
fn kibibytes(staged: &Path, files: &[PackagedFile]) -> Result<u64> {
    let mut sum = 0;
    for file in files.iter().filter(|file| !file.is_link()) {
        sum += fs::metadata(staged.join(&file.path))?.len().div_ceil(1024);
    }
    let directories: std::collections::BTreeSet<&Path> = files
        .iter()
        .flat_map(|file| Path::new(&file.path).ancestors().skip(1))
        .collect();
    Ok(sum + directories.len() as u64)
}

fn checksums(staged: &Path, files: &[PackagedFile]) -> Result<String> {
    let mut sum = Command::new("md5sum");
    sum.current_dir(staged)
        .args(files.iter().filter(|file| !file.is_link()).map(|file| &file.path));
    quietly(&mut sum)
}
