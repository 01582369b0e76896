//! Files of the images: the program with its libraries, and the files of a system that a program expects.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use super::{USER, debian, debian::DebianPackage, layer::ImageFiles};
use crate::{
    dist::{Packing, tree::gzip},
    exec::find_program,
};

/// Programs that `signalbox ha run` runs, and where each is in the image.
const PROGRAMS: [(&str, &str); 2] = [("keepalived", "usr/sbin/keepalived"), ("ip", "usr/bin/ip")];
/// Programs that show `signalbox run` the rules of packet filters: a node of Kubernetes always has some.
const RULES: [(&str, &str); 2] = [
    ("nft", "usr/sbin/nft"),
    ("xtables-nft-multi", "usr/sbin/xtables-nft-multi"),
];
/// Names that the second one of them is called by, and the folder of its extensions, which it loads.
const SAVES: [&str; 2] = ["iptables-nft-save", "ip6tables-nft-save"];
const EXTENSIONS: &str = "xtables";
/// Directories that signalbox writes to; the manifests mount something over each.
const OWN: [(&str, u32); 3] = [
    ("run/signalbox", 0o755),
    ("run/signalbox-ha", 0o755),
    ("var/lib/signalbox", 0o700),
];
const DOCUMENTS: &str = "usr/share/doc";

/// Files, and the packages of Debian that some of them are from.
type FilesAndPackages = (ImageFiles, BTreeSet<DebianPackage>);

/// Image `signalbox`.
pub(super) fn base(packing: &Packing<'_>) -> Result<FilesAndPackages> {
    let mut files = ImageFiles::default();
    for name in ["bin", "lib", "lib64", "sbin"] {
        files.directory(&format!("usr/{name}"), 0o755, 0);
        files.link(name, &format!("usr/{name}"));
    }
    // Mount points of every container, which a root that is read-only must have.
    for name in ["dev", "proc", "sys", "etc/signalbox"] {
        files.directory(name, 0o755, 0);
    }
    files.directory("tmp", 0o1777, 0);
    for (name, mode) in OWN {
        files.directory(name, mode, USER);
    }
    let container = packing.root.join("packaging/container");
    for name in ["group", "nsswitch.conf", "passwd"] {
        files.file(&format!("etc/{name}"), 0o644, read(&container.join(name))?);
    }
    files.file("usr/lib/os-release", 0o644, read(Path::new("/usr/lib/os-release"))?);
    files.link("etc/os-release", "../usr/lib/os-release");

    let program = packing.product.program();
    files.file("usr/bin/signalbox", 0o755, read(&program)?);
    let mut packages = add_libraries(&mut files, &program)?;
    packages.extend(add_rules(&mut files)?);
    let (package, bundle) = debian::authorities()?;
    files.file("etc/ssl/certs/ca-certificates.crt", 0o644, bundle);
    packages.insert(package);
    add_records(&mut files, &packages)?;

    let own = format!("{DOCUMENTS}/signalbox");
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        files.file(&format!("{own}/{licence}"), 0o644, read(&packing.root.join(licence))?);
    }
    let notices = gzip(&read(&packing.product.notices())?, "-9n")?;
    files.file(&format!("{own}/THIRD-PARTY.gz"), 0o644, notices);
    Ok((files, packages))
}

/// Files that image `signalbox-ha` has besides.
pub(super) fn for_virtual_addresses() -> Result<FilesAndPackages> {
    let mut files = ImageFiles::default();
    let mut packages = BTreeSet::new();
    for program in PROGRAMS {
        packages.extend(add_program(&mut files, program)?);
    }
    add_records(&mut files, &packages)?;
    Ok((files, packages))
}

fn add_rules(files: &mut ImageFiles) -> Result<BTreeSet<DebianPackage>> {
    let mut packages = BTreeSet::new();
    for program in RULES {
        packages.extend(add_program(files, program)?);
    }
    for name in SAVES {
        files.link(&format!("usr/sbin/{name}"), "xtables-nft-multi");
    }
    let extensions = format!("/usr/lib/{}-linux-gnu/{EXTENSIONS}", std::env::consts::ARCH);
    for extension in fs::read_dir(&extensions).with_context(|| format!("reading {extensions}"))? {
        let path = extension?.path();
        let place = path.to_string_lossy().trim_start_matches('/').to_owned();
        files.file(&place, 0o644, read(&path)?);
    }
    Ok(packages)
}

/// Adds a program of Debian and its libraries. Returns the packages that they are from.
fn add_program(files: &mut ImageFiles, (name, path): (&str, &str)) -> Result<BTreeSet<DebianPackage>> {
    let program = installed(name)?;
    files.file(path, 0o755, read(&program)?);
    let mut packages = debian::packages_of(std::slice::from_ref(&program))?;
    packages.extend(add_libraries(files, &program)?);
    Ok(packages)
}

fn installed(name: &str) -> Result<PathBuf> {
    let found = find_program(name).map(PathBuf::from);
    let places = ["/usr/sbin", "/usr/bin"].map(|place| Path::new(place).join(name));
    let found = found.or_else(|| places.into_iter().find(|place| place.is_file()));
    let found = found.with_context(|| format!("no {name} here: `cargo xtask test --only install` installs it"))?;
    Ok(found.canonicalize()?)
}

/// Adds the libraries of a program, and returns the packages that they are from.
fn add_libraries(files: &mut ImageFiles, program: &Path) -> Result<BTreeSet<DebianPackage>> {
    let libraries = debian::libraries(program)?;
    for (path, from) in &libraries {
        let mode = if path.contains("/ld-linux") { 0o755 } else { 0o644 };
        files.file(path, mode, read(from)?);
    }
    let from: Vec<PathBuf> = libraries
        .into_values()
        .map(|from| from.canonicalize())
        .collect::<std::io::Result<_>>()?;
    debian::packages_of(&from)
}

/// Adds the documents of packages: their records, for scanners, and their licences.
fn add_records(files: &mut ImageFiles, packages: &BTreeSet<DebianPackage>) -> Result<()> {
    for package in packages {
        let name = &package.name;
        let record = package.record.clone().into_bytes();
        files.file(&format!("var/lib/dpkg/status.d/{name}"), 0o644, record);
        files.file(&format!("{DOCUMENTS}/{name}/copyright"), 0o644, package.copyright()?);
    }
    Ok(())
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("reading {}", file.display()))
}
