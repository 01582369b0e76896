//! Stage `packages`: makes all packages of one program, twice, and checks their contents and that they work.

mod contents;
mod exceptions;
mod images;
mod installs;
mod manifests;
mod sandbox;
mod sboms;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum as _;

use super::{
    Effort, Format, PACKAGES, Packing, image,
    product::{self, Product, numbers},
    release::Release,
};
use crate::{apt, exec::is_root, root::root, vm::store::quietly};
use exceptions::{LINTIAN, MANDOC, RPMLINT};
use installs::Versions;

/// Version that a program built on Debian 12 asks for: Red Hat Enterprise Linux 9, Debian 12 and Ubuntu 22.04 have it.
const MAX_GLIBC: &str = "2.34";

/// Runs all checks with packages of the program `built`. With `update`, lists of files are written before.
pub(crate) fn check(built: &Path, update: bool, say: &mut dyn FnMut(&str)) -> Result<()> {
    if let Err(why) = can_run() {
        if std::env::var("REQUIRE_PRIVILEGED_TESTS").is_ok_and(|value| value == "1") {
            return Err(why);
        }
        say(&format!("SKIP packages: {why:#}"));
        return Ok(());
    }
    let root = root()?;
    let scratch = root.join("target/dist-check");
    let release = Release::of_checkout(&root)?;
    let first = Made::make(&root, built, &scratch.join("first"), &release)?;

    first.check_glibc()?;
    say(&format!("packages: the program needs glibc {MAX_GLIBC} at most"));

    first.check_same_again(&root, built, &scratch, &release)?;
    say(&format!(
        "packages: {} of the same commit have the same bytes",
        first.packages.len()
    ));

    sboms::check(&root, built, &first.packages, &first.bills)?;
    say(&format!(
        "packages: {} bills of materials name all crates",
        first.bills.len()
    ));

    let mut problems = Vec::new();
    let archives: Vec<&PathBuf> = first
        .packages
        .iter()
        .filter(|package| image::is_image(package))
        .collect();
    ensure!(
        archives.len() == image::NAMES.len(),
        "{} images were made",
        archives.len()
    );
    for archive in archives {
        problems.extend(images::check(&root, archive, &scratch, &release.version, update)?);
    }
    say("packages: images are read by skopeo, and run as their own user");

    problems.extend(first.problems(&root, &scratch, update)?);
    if !problems.is_empty() {
        problems.iter().for_each(|problem| eprintln!("{problem}"));
        bail!("{} problems in the packages", problems.len());
    }
    say("packages: lists of files, lintian, rpmlint and mandoc: ok");

    manifests::check(&root, &scratch.join("first/deb/signalbox"))?;
    say("packages: manifests in a package build what those of the checkout do");

    first.check_installs(&root, &scratch, &release)?;
    say("packages: installed, upgraded, removed and purged, with programs of systemd and without");
    Ok(())
}

fn can_run() -> Result<()> {
    let missing = apt::missing(&PACKAGES)?;
    if !missing.is_empty() {
        bail!(
            "`cargo xtask test --only install` installs what is missing: {}",
            missing.join(" ")
        );
    }
    ensure!(
        is_root(),
        "packages are installed in a root of their own, which needs root; run this as root"
    );
    Ok(())
}

/// Packages that were made in a directory.
struct Made {
    product: Product,
    packages: Vec<PathBuf>,
    /// Bills of materials of the packages, and that of the program.
    bills: Vec<PathBuf>,
}

impl Made {
    fn make(root: &Path, built: &Path, directory: &Path, release: &Release) -> Result<Self> {
        if directory.exists() {
            fs::remove_dir_all(directory)?;
        }
        let product = Product::make(built, &directory.join("product"), release)?;
        let made = pack(root, &product, directory, release, Format::value_variants())?;
        let is_bill = |file: &PathBuf| file.extension().is_some_and(|end| end == "json");
        let (bills, packages) = made.into_iter().partition(is_bill);
        Ok(Self {
            product,
            packages,
            bills,
        })
    }

    /// The package of a kind: not its debug symbols.
    fn main(&self, kind: &str) -> Result<&Path> {
        let found = self.packages.iter().find(|package| {
            let name = package.file_name().unwrap_or_default().to_string_lossy();
            name.ends_with(kind) && !name.contains("debug") && !name.contains("dbgsym")
        });
        found
            .map(PathBuf::as_path)
            .with_context(|| format!("no {kind} was made"))
    }

    fn check_glibc(&self) -> Result<()> {
        let newest = product::glibc(&self.product.program())?;
        ensure!(
            numbers(&newest) <= numbers(MAX_GLIBC),
            "the program needs glibc {newest}, and distributions have {MAX_GLIBC}: build it on Debian 12"
        );
        Ok(())
    }

    fn check_same_again(&self, root: &Path, built: &Path, scratch: &Path, release: &Release) -> Result<()> {
        let directory = scratch.join("again/below");
        let again = Self::make(root, built, &directory, release)?;
        let (own, others) = (&self.bills, &again.bills);
        for (package, other) in self.packages.iter().chain(own).zip(again.packages.iter().chain(others)) {
            contents::must_be_same(package, other)?;
        }
        ensure!(
            self.packages.len() == again.packages.len() && own.len() == others.len(),
            "other packages are made the second time"
        );
        ensure!(
            contents::must_be_same(self.main(".deb")?, self.main(".rpm")?).is_err(),
            "packages that differ are not noticed"
        );
        Ok(())
    }

    fn problems(&self, root: &Path, scratch: &Path, update: bool) -> Result<Vec<String>> {
        let mut problems = Vec::new();
        for package in self.packages.iter().filter(|package| !image::is_image(package)) {
            problems.extend(contents::check(root, package, &self.product.build_id, update)?);
        }
        let of_kind = |end: &str| -> Vec<&PathBuf> {
            let is_such = |package: &&PathBuf| package.extension().is_some_and(|found| found == end);
            self.packages.iter().filter(is_such).collect()
        };
        LINTIAN.must_notice(&broken_deb(scratch)?, "file-in-usr-local")?;
        problems.extend(LINTIAN.check(root, &of_kind("deb"))?);
        RPMLINT.must_notice(&broken_rpm(scratch)?, "dir-or-file-in-usr-local")?;
        problems.extend(RPMLINT.check(root, &of_kind("rpm"))?);
        let page = scratch.join("broken.8");
        fs::write(&page, ".TH X 8\n.SH NAME\nx \\- y\n.nosuch\n")?;
        MANDOC.must_notice(&page, "ERROR: skipping unknown macro")?;
        let pages: Vec<PathBuf> = fs::read_dir(self.product.pages())?
            .map(|page| Ok(page?.path()))
            .collect::<Result<_>>()?;
        problems.extend(MANDOC.check(root, &pages)?);
        Ok(problems)
    }

    fn check_installs(&self, root: &Path, scratch: &Path, release: &Release) -> Result<()> {
        let next = release.next();
        let directory = scratch.join("next");
        let upgrade = Self {
            product: self.product.clone(),
            packages: pack(root, &self.product, &directory, &next, &[Format::Deb, Format::Rpm])?,
            bills: Vec::new(),
        };
        let versions = |kind| {
            Ok::<_, anyhow::Error>(Versions {
                first: self.main(kind)?,
                next: upgrade.main(kind)?,
                next_version: &next.version,
            })
        };
        let directory = scratch.join("root");
        for has_systemd in [true, false] {
            installs::deb(&directory, &versions(".deb")?, has_systemd)?;
        }
        installs::rpm(&directory, &versions(".rpm")?)?;
        fs::remove_dir_all(&directory)?;
        Ok(())
    }
}

/// Makes packages for Debian of a program, of this version and of the next one.
pub(crate) fn debs(built: &Path, directory: &Path) -> Result<[PathBuf; 2]> {
    let root = root()?;
    let first = Release::of_checkout(&root)?;
    let next = first.next();
    if directory.exists() {
        fs::remove_dir_all(directory)?;
    }
    let product = Product::make(built, &directory.join("product"), &first)?;
    let made = |name: &str, release: &Release| {
        let packages = pack(&root, &product, &directory.join(name), release, &[Format::Deb])?;
        let main = packages
            .into_iter()
            .find(|package| !package.to_string_lossy().contains("dbgsym"));
        main.context("no package was made")
    };
    Ok([made("first", &first)?, made("next", &next)?])
}

/// Packs a product into the directory `packages` below another one.
fn pack(
    root: &Path,
    product: &Product,
    directory: &Path,
    release: &Release,
    formats: &[Format],
) -> Result<Vec<PathBuf>> {
    let out = directory.join("packages");
    fs::create_dir_all(&out)?;
    let packing = Packing {
        root,
        product,
        release,
        effort: Effort::Quick,
        scratch: directory,
        out: &out,
    };
    let mut packages = Vec::new();
    for format in formats.iter().filter(|format| **format != Format::Man) {
        let made = packing.pack(*format, &packages)?;
        packages.extend(made);
    }
    Ok(packages)
}

/// A package with a file where packages have none.
fn broken_deb(scratch: &Path) -> Result<PathBuf> {
    let (tree, package) = (scratch.join("broken-deb"), scratch.join("broken.deb"));
    fs::create_dir_all(tree.join("usr/local"))?;
    fs::write(tree.join("usr/local/file"), "")?;
    fs::create_dir_all(tree.join("DEBIAN"))?;
    let control = "Package: broken\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.invalid>\nDescription: x\n";
    fs::write(tree.join("DEBIAN/control"), control)?;
    let mut build = Command::new("dpkg-deb");
    quietly(build.args(["--root-owner-group", "--build"]).args([&tree, &package]))?;
    Ok(package)
}

fn broken_rpm(scratch: &Path) -> Result<PathBuf> {
    let (top, spec) = (scratch.join("broken-rpm"), scratch.join("broken.spec"));
    let text = "Name: broken\nVersion: 1\nRelease: 1\nSummary: x\nLicense: MIT\nBuildArch: noarch\n%description\nx\n\
                %install\nmkdir -p %{buildroot}/usr/local\ntouch %{buildroot}/usr/local/file\n%files\n/usr/local/file\n";
    fs::write(&spec, text)?;
    let mut build = Command::new("rpmbuild");
    build
        .arg("--define")
        .arg(format!("_topdir {}", top.display()))
        .arg("-bb")
        .arg(spec);
    quietly(&mut build)?;
    Ok(top.join("RPMS/noarch/broken-1-1.noarch.rpm"))
}
