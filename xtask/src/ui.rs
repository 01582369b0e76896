//! `ui`: the libraries of the web UI and the pictures of its pages in the documents.

use std::{env, fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::{exec::Run, root::root, vm::store::quietly};

/// Folder of the libraries, as they were published, with `SHA256SUMS` and their licences.
const VENDOR: &str = "userspace/ui/vendor";

/// Packages of npm, with the files that are taken of each: path in the package, name in the folder.
const PACKAGES: [(&str, &[(&str, &str)]); 2] = [
    (
        "htm@3.1.1",
        &[
            ("preact/standalone.module.js", "preact-htm.js"),
            ("LICENSE", "htm.LICENSE"),
        ],
    ),
    (
        "uplot@1.6.32",
        &[
            ("dist/uPlot.iife.min.js", "uplot.js"),
            ("dist/uPlot.min.css", "uplot.css"),
            ("LICENSE", "uplot.LICENSE"),
        ],
    ),
];

/// Folder of the pictures.
const PICTURES: &str = "docs/pictures";
/// Most bytes of all pictures, so that the checkout stays small.
const MAX_PICTURE_BYTES: u64 = 600_000;

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct UiArgs {
    /// Check libraries and pictures offline: nothing missing, nothing changed, nothing too large
    #[arg(long)]
    check: bool,
    /// Download the libraries again (npm), and draw the pictures again (Chromium, as root)
    #[arg(long)]
    update: bool,
}

pub(crate) fn run(args: &UiArgs) -> Result<()> {
    if args.update {
        let scratch = env::temp_dir().join(format!("signalbox-ui-{}", std::process::id()));
        fs::create_dir_all(&scratch)?;
        let updated = update_libraries(&scratch);
        fs::remove_dir_all(&scratch)?;
        updated?;
        draw_pictures()?;
    }
    check()
}

/// Checks the libraries against their list, and the pictures against the documents.
pub(crate) fn check() -> Result<()> {
    let root = root()?;
    let vendor = root.join(VENDOR);
    let list = fs::read_to_string(vendor.join("SHA256SUMS"))?;
    for line in list.lines() {
        let (wanted, name) = line.split_once("  ").context("SHA256SUMS has another form")?;
        let found = digest(&vendor.join(name))?;
        if found != wanted {
            bail!(
                "{VENDOR}/{name} is not as it was published: its SHA-256 is {found}; `cargo xtask ui --update` replaces it"
            );
        }
    }
    let mut pages = String::new();
    for entry in fs::read_dir(root.join("docs"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "md") {
            pages += &fs::read_to_string(path)?;
        }
    }
    let (mut bytes, mut count) = (0, 0);
    for entry in fs::read_dir(root.join(PICTURES)).with_context(|| format!("there is no {PICTURES}"))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !pages.contains(&format!("pictures/{name}")) {
            bail!("{PICTURES}/{name} is in no page of docs/");
        }
        bytes += entry.metadata()?.len();
        count += 1;
    }
    if count == 0 || bytes > MAX_PICTURE_BYTES {
        bail!("{PICTURES} has {count} pictures of {bytes} bytes; one is needed, and {MAX_PICTURE_BYTES} bytes at most");
    }
    println!(
        "ui: {} libraries and {count} pictures ({bytes} bytes) are as they should be",
        list.lines().count()
    );
    Ok(())
}

fn digest(file: &Path) -> Result<String> {
    let bytes = fs::read(file).with_context(|| format!("{} cannot be read", file.display()))?;
    Ok(format!("{:x}", Sha256::digest(bytes)))
}

/// Downloads the packages; npm compares each with the registry's hash. Rewrites the folder, except Preact's licence,
/// which htm's package lacks.
fn update_libraries(scratch: &Path) -> Result<()> {
    let vendor = root()?.join(VENDOR);
    for (package, files) in PACKAGES {
        let archive = quietly(
            Command::new("npm")
                .args(["pack", "--silent", package])
                .current_dir(scratch),
        )
        .context("npm (of Node.js) downloads the libraries")?;
        let archive = archive.lines().last().unwrap_or_default().trim().to_owned();
        quietly(Command::new("tar").args(["-xzf", &archive]).current_dir(scratch))?;
        for (path, name) in files {
            fs::copy(scratch.join("package").join(path), vendor.join(name))
                .with_context(|| format!("{package} has no {path}"))?;
        }
        fs::remove_dir_all(scratch.join("package"))?;
    }
    let mut names: Vec<_> = PACKAGES
        .iter()
        .flat_map(|(_, files)| files.iter().map(|(_, name)| *name))
        .chain(["preact.LICENSE"])
        .collect();
    names.sort_unstable();
    let mut list = String::new();
    for name in names {
        list += &format!("{}  {name}\n", digest(&vendor.join(name))?);
    }
    Ok(fs::write(vendor.join("SHA256SUMS"), list)?)
}

/// Makes the end-to-end test of the pages write its screenshots.
fn draw_pictures() -> Result<()> {
    let root = root()?;
    let pictures = root.join(PICTURES);
    fs::create_dir_all(&pictures)?;
    let words = [
        "nextest",
        "run",
        "-p",
        "signalbox",
        "--test",
        "e2e",
        "-E",
        "test(/^operator::ui::pictures::/)",
    ];
    Run::cargo(words)?
        .env("SIGNALBOX_UI_PICTURES", &pictures)
        .env("REQUIRE_PRIVILEGED_TESTS", "1")
        .run()
}
