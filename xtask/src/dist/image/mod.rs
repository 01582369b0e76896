//! Container images, as archives in the layout of OCI: `signalbox`, which has `nft` and `iptables-nft-save` to see rules
//! of packet filters, and `signalbox-ha`, which has keepalived and `ip` for `signalbox ha run` in a second layer.
//!
//! The layout is written here, and not by buildah: that needs no daemon, no mounts and no rights, and the same program
//! on the same Debian gives the same bytes. There is no base image to be fetched: libraries, their licences and
//! authorities are those of this machine's packages, which the image lists where scanners look (`/var/lib/dpkg`).

mod debian;
mod layer;
mod layout;
mod root_files;
mod single;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;

use super::{Effort, Packing, product::Product, release::Release};
use crate::root::root;
pub(super) use debian::DebianPackage;
pub(super) use layout::digest;
use layout::{Labels, Layout};
pub(crate) use single::of_program_at;

/// Names of the images, as the manifests have them after the registry, and each image's description.
pub(crate) const NAMES: [(&str, &str); 2] = [
    ("signalbox", "TCP, TLS and HTTP load balancer"),
    (
        "signalbox-ha",
        "signalbox with keepalived, for virtual addresses of several nodes",
    ),
];

/// User that containers run as by default.
const USER: u32 = 65532;

pub(super) fn pack(packing: &Packing<'_>) -> Result<Vec<PathBuf>> {
    let (packed, release) = (packing.effort.of_gzip(), packing.release);
    let base = layer::tar(&root_files::base(packing)?.0, release.epoch)?;
    let more = layer::tar(&root_files::for_virtual_addresses()?.0, release.epoch)?;
    let mut archives = Vec::new();
    for ((name, title), layers) in NAMES.into_iter().zip([vec![&base], vec![&base, &more]]) {
        let labels = Labels {
            name,
            title,
            release,
            entrypoint: &["/usr/bin/signalbox"],
            user: USER,
        };
        let layout = Layout::new(&labels, &layers, packed)?;
        let path = packing.out.join(file_name(name, &release.version));
        fs::write(&path, layout.archive(release.epoch)?)?;
        archives.push(path);
    }
    Ok(archives)
}

/// Makes both images of a program, quickly. Returns their names and archives.
pub(crate) fn of_program(program: &Path, out: &Path) -> Result<Vec<(&'static str, PathBuf)>> {
    let root = root()?;
    let (release, scratch) = (Release::of_checkout(&root)?, out.join("work"));
    let product = Product::of_images(program, &scratch.join("product"))?;
    let packing = Packing {
        root: &root,
        product: &product,
        release: &release,
        effort: Effort::Quick,
        scratch: &scratch,
        out,
    };
    let archives = pack(&packing)?;
    fs::remove_dir_all(&scratch)?;
    Ok(NAMES.map(|(name, _)| name).into_iter().zip(archives).collect())
}

/// Packages of Debian that are in an image.
pub(super) fn packages(packing: &Packing<'_>, archive: &Path) -> Result<BTreeSet<DebianPackage>> {
    let (_, mut packages) = root_files::base(packing)?;
    let [_, (with_more, _)] = NAMES;
    let name = file_name(with_more, &packing.release.version);
    if archive.file_name().is_some_and(|found| *found == *name) {
        packages.extend(root_files::for_virtual_addresses()?.1);
    }
    Ok(packages)
}

fn file_name(image: &str, version: &str) -> String {
    format!("{image}-{version}-linux-{}.oci.tar", std::env::consts::ARCH)
}

/// Whether a file is an image.
pub(super) fn is_image(file: &Path) -> bool {
    file.to_string_lossy().ends_with(".oci.tar")
}
