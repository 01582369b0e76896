//! `dist`: packages for Debian and for Red Hat's distributions, an archive of the same files, and container images.
//!
//! The packers are the distributions' own, dpkg-deb and rpmbuild, fed with one list of files: cargo-deb and
//! cargo-generate-rpm would each need another list, and take minutes to build.

mod check;
mod checksums;
mod deb;
pub(crate) mod image;
mod notices;
mod product;
mod release;
pub(crate) mod reproducible;
mod rpm;
mod sbom;
mod tar;
mod tree;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::ValueEnum;

use crate::{
    apt::{AptPackage, package},
    root::root,
};
pub(crate) use check::{check, debs};
use product::Product;
pub(crate) use product::build;
use release::Release;

/// Debian packages that make packages, and check them.
pub(crate) const PACKAGES: [AptPackage; 12] = [
    package("binutils"),
    package("rpm"),
    package("xz-utils"),
    package("mandoc"),
    package("lintian"),
    package("rpmlint"),
    package("mmdebstrap"),
    package("skopeo"),
    // Parts of the images.
    package("ca-certificates"),
    package("keepalived"),
    package("nftables"),
    package("iptables"),
];

#[derive(clap::Args)]
pub(crate) struct DistArgs {
    /// Formats to make; all of them if none is named
    what: Vec<Format>,
    /// Directory for the packages
    #[arg(long, value_name = "DIR", default_value = "target/packages")]
    out: PathBuf,
    /// Profile of cargo that the program is built with
    #[arg(long, default_value = "dist")]
    profile: String,
    /// Package this program instead of building one; it still has its debug symbols
    #[arg(long, value_name = "PATH", conflicts_with = "profile")]
    program: Option<PathBuf>,
    /// Refuse unless the commit has the tag of its version, and nothing is changed
    #[arg(long)]
    tagged: bool,
    /// Instead of packages for use, make some to be checked, and check them, as stage `packages` does
    #[arg(long, conflicts_with_all = ["what", "out", "tagged"])]
    check: bool,
    /// With --check: write the checked-in lists of files
    #[arg(long, requires = "check")]
    update: bool,
}

impl DistArgs {
    /// The program to package, built if it is missing.
    fn built(&self) -> Result<PathBuf> {
        match &self.program {
            Some(program) => Ok(program.canonicalize()?),
            // The check uses the program of the tests; a release has the same bytes wherever it is built.
            None if self.check => build(&self.profile),
            None => {
                let root = root()?;
                reproducible::build(&root, &root.join("target/dist-build"), "signalbox", &self.profile)
            }
        }
    }
}

/// A form of package.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Format {
    /// Packages for Debian and Ubuntu
    Deb,
    /// Packages for Fedora and Red Hat Enterprise Linux
    Rpm,
    /// Archives of the same files
    Tar,
    /// The manual pages alone
    Man,
    /// Container images, in the layout of OCI
    Image,
    /// Bills of materials of the program, and of each package that is made with it
    Sbom,
}

/// Effort of the compression.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Effort {
    /// As much as makes packages small.
    Thorough,
    /// As little as possible, for packages that are only checked.
    Quick,
}

impl Effort {
    /// Options of dpkg-deb.
    const fn of_deb(self) -> [&'static str; 2] {
        match self {
            Self::Thorough => ["-Zxz", "-z6"],
            Self::Quick => ["-Zgzip", "-z1"],
        }
    }

    /// Payload of rpm.
    const fn of_rpm(self) -> &'static str {
        match self {
            Self::Thorough => "w6.xzdio",
            Self::Quick => "w1.gzdio",
        }
    }

    /// Level of gzip, for layers of images.
    const fn of_gzip(self) -> &'static str {
        match self {
            Self::Thorough => "-9n",
            Self::Quick => "-1n",
        }
    }

    /// Level of xz, for archives.
    const fn of_xz(self) -> u8 {
        match self {
            Self::Thorough => 6,
            Self::Quick => 0,
        }
    }
}

/// All that a packer needs.
struct Packing<'a> {
    root: &'a Path,
    product: &'a Product,
    release: &'a Release,
    effort: Effort,
    /// Directory for intermediate files.
    scratch: &'a Path,
    out: &'a Path,
}

pub(crate) fn run(args: &DistArgs) -> Result<()> {
    if args.check {
        return check::check(&args.built()?, args.update, &mut |line| println!("{line}"));
    }
    let root = root()?;
    let release = Release::of_checkout(&root)?;
    if args.tagged {
        release.must_be_tagged()?;
    }
    let scratch = root.join("target/dist-work");
    let built = args.built()?;
    let product = Product::make(&built, &scratch.join("product"), &release)?;
    let out = root.join(&args.out);
    std::fs::create_dir_all(&out)?;
    let packing = Packing {
        root: &root,
        product: &product,
        release: &release,
        effort: Effort::Thorough,
        scratch: &scratch,
        out: &out,
    };
    let formats = if args.what.is_empty() {
        Format::value_variants()
    } else {
        &args.what
    };
    let mut made = Vec::new();
    // Bills come last, because they describe all others.
    for format in Format::value_variants()
        .iter()
        .filter(|format| formats.contains(format))
    {
        for file in packing.pack(*format, &made)? {
            println!("{}", file.display());
            if image::is_image(&file) {
                println!("  {}", image::digest(&file)?);
            }
            made.push(file);
        }
    }
    println!("{}", checksums::write(&out, &made)?.display());
    Ok(())
}

impl Packing<'_> {
    /// Makes packages, and returns their paths; `made` are those that were made before.
    fn pack(&self, format: Format, made: &[PathBuf]) -> Result<Vec<PathBuf>> {
        match format {
            Format::Deb => deb::pack(self),
            Format::Rpm => rpm::pack(self),
            Format::Tar => tar::pack(self),
            Format::Man => tar::copy_pages(self),
            Format::Image => image::pack(self),
            Format::Sbom => sbom::pack(self, made),
        }
    }
}
