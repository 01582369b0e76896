//! `test`: installs what the tests need and runs all of them, stage after stage, up to the first failure.
//!
//! A stage that needs root or a tool runs without it too: each test prints `SKIP name: why`, and the summary shows
//! those lines, so that nobody takes a skipped test for a passed one. REQUIRE_PRIVILEGED_TESTS=1 makes them fail instead.

mod install;
mod stages;
mod summary;

use std::time::Instant;

use anyhow::{Result, bail};
use clap::ValueEnum;

use summary::{Counts, Summary};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Fuzz for 10 seconds a target instead of 45
    #[arg(long)]
    quick: bool,
    /// Run this stage only; may be given several times
    #[arg(long, value_name = "STAGE")]
    only: Vec<Stage>,
}

/// In the order they run: what fails fast and often first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Stage {
    /// Packages, bpf-linker, cargo-fuzz
    Install,
    /// rustfmt
    Fmt,
    /// Lints, warnings are errors
    Clippy,
    /// Dependency rules of the architecture
    Deps,
    /// The checked-in eBPF object, and a fresh one for the stages below
    Ebpf,
    /// Unit and documentation tests
    Unit,
    /// Tests that load eBPF programs
    Kernel,
    /// Tests of the release binary over the network
    E2e,
    /// Fuzz targets
    Fuzz,
}

/// What one stage hands to the later ones.
#[derive(Default)]
struct Context {
    quick: bool,
    /// Exported to cargo: userspace/build.rs embeds this object instead of the checked-in one.
    object: Option<std::path::PathBuf>,
    counts: Counts,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let stages = Stage::value_variants()
        .iter()
        .copied()
        .filter(|stage| args.only.is_empty() || args.only.contains(stage));
    let stages: Vec<Stage> = stages.collect();
    let mut context = Context {
        quick: args.quick,
        ..Context::default()
    };
    let mut summary = Summary::default();
    for (number, stage) in stages.iter().enumerate() {
        println!("\n== {}/{} {} ==", number + 1, stages.len(), stage.name());
        let start = Instant::now();
        let result = stage.run(&mut context);
        let seconds = start.elapsed().as_secs_f64();
        let state = if result.is_ok() { "ok" } else { "FAILED" };
        println!("== {} {state} in {seconds:.1} s ==", stage.name());
        summary.add(stage.name(), state, seconds);
        if let Err(error) = result {
            eprintln!("error: {error:#}");
            stages[number + 1..]
                .iter()
                .for_each(|stage| summary.add(stage.name(), "not run", 0.0));
            print!("{}", summary.text(&context.counts));
            bail!(
                "stage {} failed; `cargo xtask test --only {0}` repeats it",
                stage.name()
            );
        }
    }
    print!("{}", summary.text(&context.counts));
    Ok(())
}

impl Stage {
    fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn run(self, context: &mut Context) -> Result<()> {
        match self {
            Self::Install => install::run(),
            Self::Fmt => stages::fmt(),
            Self::Clippy => stages::clippy(),
            Self::Deps => crate::deps::run(),
            Self::Ebpf => stages::ebpf(context),
            Self::Unit => stages::unit(context),
            Self::Kernel => stages::kernel(context),
            Self::E2e => stages::e2e(context),
            Self::Fuzz => stages::fuzz(context),
        }
    }
}
