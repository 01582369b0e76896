//! `fuzz`: runs the targets of `fuzz/` with cargo-fuzz, which needs a nightly compiler.
//!
//! Inputs that libFuzzer finds go to `fuzz/corpus/<target>`; `fuzz/seeds/<target>` is checked in and only read.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};

use crate::{
    exec::{Run, find_program},
    root::root,
};

#[derive(clap::Args, Default)]
pub(crate) struct FuzzArgs {
    /// Target to run [default: all]
    pub(crate) target: Option<String>,
    /// Seconds for each target
    #[arg(long, default_value_t = 60)]
    pub(crate) seconds: u64,
    /// Install cargo-fuzz, and a nightly compiler by rustup, if they are missing
    #[arg(long)]
    pub(crate) install: bool,
}

const TARGETS: [&str; 13] = [
    "peek_tls",
    "peek_http",
    "peek_proxy",
    "spi",
    "l4",
    "config",
    "http1_head",
    "http1_body",
    "http1_turn",
    "http1_hyper",
    "forwarded",
    "cookie",
    "sync",
];

pub(crate) fn run(args: &FuzzArgs) -> Result<()> {
    if args.install {
        install()?;
    }
    if find_program("cargo-fuzz").is_none() || !has_nightly() {
        bail!("fuzzing needs cargo-fuzz and a nightly compiler; `cargo xtask fuzz --install` installs them");
    }
    let root = root()?;
    let chosen = TARGETS
        .iter()
        .filter(|target| args.target.as_deref().is_none_or(|name| name == **target));
    let chosen: Vec<&str> = chosen.copied().collect();
    if chosen.is_empty() {
        bail!(
            "no fuzz target {:?}; there are {}",
            args.target.as_deref().unwrap_or_default(),
            TARGETS.join(", ")
        );
    }
    for target in chosen {
        fuzz(target, args.seconds, &root)?;
    }
    Ok(())
}

/// Installs cargo-fuzz, and a nightly compiler.
pub(crate) fn install() -> Result<()> {
    if !has_nightly() {
        if find_program("rustup").is_none() {
            bail!("fuzzing needs a nightly compiler, and rustup, which installs one, is missing; install rustup first");
        }
        Run::new("rustup")?
            .args(["toolchain", "install", "nightly", "--profile", "minimal"])
            .run()?;
    }
    if find_program("cargo-fuzz").is_none() {
        let cargo = Run::cargo(["install", "cargo-fuzz", "--locked", "--debug"])?;
        cargo.without_env("RUSTFLAGS").without_env("CARGO_TARGET_DIR").run()?;
    }
    Ok(())
}

fn has_nightly() -> bool {
    Run::new("rustup").is_ok_and(|run| run.args(["run", "nightly", "rustc", "-V"]).answer().is_some())
}

fn fuzz(target: &str, seconds: u64, root: &Path) -> Result<()> {
    let found = format!("fuzz/corpus/{target}");
    fs::create_dir_all(root.join(&found)).with_context(|| format!("{found} cannot be created"))?;
    let mut run = Run::new("rustup")?.args(["run", "nightly", "cargo", "fuzz", "run"]);
    // libFuzzer writes its findings into the first folder and only reads the others.
    run = run.args([target, &found, &format!("fuzz/seeds/{target}")]);
    run = run.args([
        "--",
        &format!("-max_total_time={seconds}"),
        "-timeout=10",
        "-print_final_stats=1",
    ]);
    run.run().with_context(|| {
        format!(
            "fuzz target {target} failed; the input is in fuzz/artifacts/{target}, `cargo fuzz tmin` makes it small"
        )
    })
}
