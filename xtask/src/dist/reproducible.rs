//! Builds whose bytes do not depend on where the checkout is, or which user builds it; and the proof, by building
//! twice.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use super::checksums::hex;
use crate::{
    exec::{Run, cargo_home},
    root::root,
};

#[derive(clap::Args)]
pub(crate) struct ReproduceArgs {
    /// Profile of cargo
    #[arg(long, default_value = "dist")]
    profile: String,
}

/// Builds the commit in two directories of different lengths, and fails unless both programs have the same bytes.
pub(crate) fn run(args: &ReproduceArgs) -> Result<()> {
    let root = root()?;
    let below = root.join("target/reproduce");
    let checkouts = [below.join("one"), below.join("and/another")];
    for checkout in &checkouts {
        if checkout.exists() {
            fs::remove_dir_all(checkout)?;
        }
        let clone = Run::new("git")?.args(["clone", "--quiet", "--no-hardlinks"]);
        clone.args([&root, checkout]).run()?;
    }
    let digest = same_bytes(&checkouts, "signalbox", &args.profile)?;
    println!("both programs are sha256:{digest}");
    Ok(())
}

/// Builds a package in both directories, and returns the digest of its program.
fn same_bytes(roots: &[PathBuf; 2], package: &str, profile: &str) -> Result<String> {
    let mut programs = Vec::new();
    for root in roots {
        let target = root.join("target");
        programs.push(fs::read(build(root, &target, package, profile)?)?);
        let place = root.to_string_lossy().into_owned();
        if let Some(at) = position(programs.last().map_or(&[], Vec::as_slice), place.as_bytes()) {
            bail!("the program names {place}, where it was built, at byte {at}");
        }
    }
    if programs[0] != programs[1] {
        bail!(
            "the programs built in {} and {} differ; diffoscope shows how",
            roots[0].display(),
            roots[1].display()
        );
    }
    Ok(hex(&programs[0]))
}

/// Builds a package of a checkout into `target`, and returns the program's path.
pub(super) fn build(root: &Path, target: &Path, package: &str, profile: &str) -> Result<PathBuf> {
    let mut run = Run::cargo(["build", "--locked", "-p", package, "--profile", profile])?.dir(root);
    for (name, value) in settings(root, target)? {
        run = run.env(name, value);
    }
    run.env("CARGO_TARGET_DIR", target).run()?;
    let folder = if profile == "dev" { "debug" } else { profile };
    Ok(target.join(folder).join(package))
}

/// Variables that keep this machine's paths out of the compilers' output.
fn settings(root: &Path, target: &Path) -> Result<[(&'static str, String); 3]> {
    let cargo = cargo_home().context("neither CARGO_HOME nor HOME is set")?;
    // The last one that fits counts: the target may be in the checkout.
    let places = [(root, "/signalbox"), (&cargo, "/cargo"), (target, "/signalbox/target")];
    let all = |variable: &str, option: &str| {
        let before = env::var(variable).unwrap_or_default();
        let options = places.map(|(from, to)| format!("{option}={}={to}", from.display()));
        [before, options.join(" ")].join(" ").trim_start().to_owned()
    };
    Ok([
        ("RUSTFLAGS", all("RUSTFLAGS", "--remap-path-prefix")),
        // Parts of libraries are in C.
        ("CFLAGS", all("CFLAGS", "-ffile-prefix-map")),
        ("CARGO_INCREMENTAL", "0".to_owned()),
    ])
}

fn position(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that would name its place: by a panic, by a file that its build script has written, in its debug
    /// symbols.
    fn package(root: &Path, text: &str) {
        fs::create_dir_all(root.join("src")).unwrap();
        let manifest = "[package]\nname = \"toy\"\nversion = \"1.0.0\"\nedition = \"2024\"\n\n[workspace]\n";
        let script = "fn main() { let out = std::env::var(\"OUT_DIR\").unwrap();\n\
                      std::fs::write(out + \"/made.rs\", \"fn made() -> &'static str { file!() }\").unwrap(); }\n";
        let program = format!(
            "include!(concat!(env!(\"OUT_DIR\"), \"/made.rs\"));\n\
             fn main() {{ println!(\"{text} {{}} {{}}\", file!(), made()); std::env::args().nth(9).expect(\"none\"); }}\n"
        );
        let lock = "version = 4\n\n[[package]]\nname = \"toy\"\nversion = \"1.0.0\"\n";
        let files = [
            ("Cargo.toml", manifest),
            ("Cargo.lock", lock),
            ("build.rs", script),
            ("src/main.rs", &program),
        ];
        for (name, text) in files {
            fs::write(root.join(name), text).unwrap();
        }
    }

    #[test]
    fn a_program_has_the_same_bytes_wherever_it_is_built() {
        let below = env::temp_dir().join(format!("signalbox-reproducible-{}", std::process::id()));
        let roots = [below.join("one"), below.join("and/another")];
        roots.iter().for_each(|root| package(root, "x"));
        same_bytes(&roots, "toy", "dev").unwrap();
        package(&roots[1], "y");
        let error = same_bytes(&roots, "toy", "dev").unwrap_err().to_string();
        assert!(error.contains("differ; diffoscope"), "{error}");
        // Without the settings the place is in it: the test would notice.
        let target = roots[0].join("plain");
        let cargo = Run::cargo(["build", "--quiet"]).unwrap().dir(&roots[0]);
        cargo.env("CARGO_TARGET_DIR", &target).run().unwrap();
        let plain = fs::read(target.join("debug/toy")).unwrap();
        assert!(position(&plain, roots[0].to_string_lossy().as_bytes()).is_some());
        fs::remove_dir_all(below).unwrap();
    }
}
