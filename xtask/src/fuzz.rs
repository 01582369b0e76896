//! `fuzz`: runs the targets of `fuzz/` with cargo-fuzz, which needs a nightly compiler.
//!
//! What libFuzzer finds goes to `fuzz/corpus/<target>`; `fuzz/seeds/<target>` is checked in and only read.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};

use crate::{
    exec::{Run, find_program},
    root::root,
};

#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// All targets without it
    pub(crate) target: Option<String>,
    /// For each target
    #[arg(long, default_value_t = 60)]
    pub(crate) seconds: u64,
    /// Install cargo-fuzz, and a nightly compiler by rustup, if they are missing
    #[arg(long)]
    pub(crate) install: bool,
}

/// A target, the feature it needs, and what has to be there to compile it.
struct Target {
    name: &'static str,
    feature: Option<&'static str>,
    needs: &'static [&'static str],
}

const TARGETS: [Target; 6] = [
    Target {
        name: "peek_tls",
        feature: None,
        needs: &["core/src/peek/tls.rs", "core/src/peek/tls"],
    },
    Target {
        name: "peek_http",
        feature: None,
        needs: &["core/src/peek/http.rs", "core/src/peek/http"],
    },
    Target {
        name: "peek_proxy",
        feature: None,
        needs: &["core/src/peek/proxy.rs", "core/src/peek/proxy"],
    },
    Target {
        name: "spi",
        feature: None,
        needs: &["core/src/spi.rs", "core/src/spi"],
    },
    Target {
        name: "l4",
        feature: None,
        needs: &["common/src/l4/decide.rs", "common/src/l4"],
    },
    Target {
        name: "config",
        feature: Some("config"),
        needs: &["userspace/src/config.rs", "userspace/src/config"],
    },
];

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.install {
        install()?;
    }
    if find_program("cargo-fuzz").is_none() || !has_nightly() {
        bail!("fuzzing takes cargo-fuzz and a nightly compiler; `cargo xtask fuzz --install` gets them");
    }
    let root = root()?;
    let chosen = TARGETS
        .iter()
        .filter(|target| args.target.as_deref().is_none_or(|name| name == target.name));
    let chosen: Vec<&Target> = chosen.collect();
    if chosen.is_empty() {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        bail!(
            "no fuzz target {:?}; there are {}",
            args.target.as_deref().unwrap_or_default(),
            names.join(", ")
        );
    }
    for target in chosen {
        if !target.needs.iter().any(|path| root.join(path).exists()) {
            println!("fuzz target {} waits for {}", target.name, target.needs.join(" or "));
            continue;
        }
        fuzz(target, args.seconds, &root)?;
    }
    Ok(())
}

/// cargo-fuzz, and a nightly compiler.
pub(crate) fn install() -> Result<()> {
    if !has_nightly() {
        if find_program("rustup").is_none() {
            bail!("fuzzing takes a nightly compiler, and there is no rustup to get one; install rustup first");
        }
        Run::new("rustup")?
            .args(["toolchain", "install", "nightly", "--profile", "minimal"])
            .run()?;
    }
    if find_program("cargo-fuzz").is_none() {
        let cargo = Run::cargo(["install", "cargo-fuzz", "--locked"])?;
        cargo.without_env("RUSTFLAGS").without_env("CARGO_TARGET_DIR").run()?;
    }
    Ok(())
}

fn has_nightly() -> bool {
    Run::new("rustup").is_ok_and(|run| run.args(["run", "nightly", "rustc", "-V"]).answer().is_some())
}

fn fuzz(target: &Target, seconds: u64, root: &Path) -> Result<()> {
    let found = format!("fuzz/corpus/{}", target.name);
    fs::create_dir_all(root.join(&found)).with_context(|| format!("{found} cannot be created"))?;
    let mut run = Run::new("rustup")?.args(["run", "nightly", "cargo", "fuzz", "run"]);
    if let Some(feature) = target.feature {
        run = run.args(["--features", feature]);
    }
    // libFuzzer writes what it finds into the first folder and only reads the others.
    run = run.args([target.name, &found, &format!("fuzz/seeds/{}", target.name)]);
    run = run.args([
        "--",
        &format!("-max_total_time={seconds}"),
        "-timeout=10",
        "-print_final_stats=1",
    ]);
    run.run().with_context(|| {
        format!(
            "fuzz target {} failed; the input is in fuzz/artifacts/{0}, `cargo fuzz tmin` makes it small",
            target.name
        )
    })
}
