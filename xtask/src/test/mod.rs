//! `test`: installs what the tests need and runs all of them, stage after stage, up to the first failure.
//!
//! A stage that needs root or a tool runs without it too: each test prints `SKIP name: why`, and the summary shows
//! those lines, so that nobody takes a skipped test for a passed one. REQUIRE_PRIVILEGED_TESTS=1 makes them fail
//! instead.

mod install;
mod stages;
mod summary;

use std::{path::PathBuf, time::Instant};

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::vm;
pub(crate) use stages::OBJECTS;
use summary::{Counts, Summary};

#[derive(clap::Args)]
pub(crate) struct TestArgs {
    /// Fuzz for 5 seconds a target instead of 15
    #[arg(long)]
    quick: bool,
    /// Run this stage only; may be given several times
    #[arg(long, value_name = "STAGE", conflicts_with = "kernel")]
    only: Vec<Stage>,
    /// Boot these kernels in virtual machines and test on them, such as `6.1,6.12,newest` or the path of a bzImage
    #[arg(long, value_name = "KERNELS", value_delimiter = ',')]
    kernel: Vec<String>,
    /// With --kernel: all tests of programs, and two machines, instead of what there is time for before each merge
    #[arg(long, requires = "kernel")]
    whole: bool,
    /// With --kernel: nothing but two machines, whose cards have several queues
    #[arg(long, requires = "kernel", conflicts_with = "whole")]
    two_machines: bool,
    /// Boot a Debian in a virtual machine, and test the packages and the tutorial in it; or only the steps that are named
    #[arg(long, value_name = "STEPS", value_delimiter = ',', num_args = 0.., conflicts_with_all = ["kernel", "only"])]
    debian: Option<Vec<String>>,
    /// With --debian: package this program instead of building one
    #[arg(long, value_name = "PATH", requires = "debian")]
    program: Option<PathBuf>,
    /// With --kernel: write the results to docs/kernels.md and README.md
    #[arg(long, requires = "kernel")]
    update_docs: bool,
}

/// Stages in the order they run: those that fail fast and often come first.
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
    /// Units, rules, dashboards and manifests that are packaged
    Packaging,
    /// The checked-in eBPF objects, and fresh ones for the stages below
    Ebpf,
    /// Unit and documentation tests
    Unit,
    /// The eBPF programs on single packets: of `kernel` what is quick
    #[value(skip)]
    Packets,
    /// Tests that load eBPF programs
    Kernel,
    /// Tests of the product over the network
    E2e,
    /// Packages, made of the same binary, and installed
    Packages,
    /// Kernels 6.1 and 6.12 in virtual machines, and a Debian with systemd
    Machines,
    /// Fuzz targets
    Fuzz,
}

/// Results that one stage hands to the later ones.
#[derive(Default)]
struct Context {
    quick: bool,
    /// Whether to run everything, for as long as it takes.
    nightly: bool,
    /// Object that userspace/build.rs embeds instead of the checked-in one, exported to cargo.
    objects: Option<std::path::PathBuf>,
    /// Product whose pinned maps have another layout, for tests of upgrades.
    next_version: Option<std::path::PathBuf>,
    /// A real kube-apiserver.
    kube_apiserver: Option<std::path::PathBuf>,
    /// Programs of suites of others, by the variables that tests read.
    suites: Vec<(&'static str, std::path::PathBuf)>,
    counts: Counts,
}

pub(crate) fn run(args: &TestArgs) -> Result<()> {
    if !args.kernel.is_empty() {
        let depth = match (args.whole, args.two_machines) {
            (true, _) => vm::Depth::Whole,
            (_, true) => vm::Depth::TwoMachines,
            _ => vm::Depth::Gate,
        };
        return vm::run(&args.kernel, depth, args.update_docs, None).map(drop);
    }
    if let Some(steps) = &args.debian {
        vm::debian::can_run()?;
        let built = match &args.program {
            Some(program) => program.canonicalize()?,
            None => vm::build::build_product(&crate::root::root()?, None)?,
        };
        let passed = vm::debian::run(&built, steps)?;
        println!("debian: {passed} passed");
        return Ok(());
    }
    let stages = Stage::value_variants()
        .iter()
        .copied()
        .filter(|stage| args.only.is_empty() || args.only.contains(stage));
    let context = Context {
        quick: args.quick,
        ..Context::default()
    };
    run_stages(&stages.collect::<Vec<_>>(), context)
}

/// Task `quick`: the stages that a developer waits for, once all is built.
pub(crate) fn run_quick() -> Result<()> {
    let stages = [Stage::Fmt, Stage::Clippy, Stage::Deps, Stage::Unit, Stage::Packets];
    run_stages(&stages, Context::default())
}

/// Task `nightly`: everything, the kernels of the mirror, storms and long fuzzing.
pub(crate) fn run_nightly() -> Result<()> {
    let stages: Vec<Stage> = Stage::value_variants().to_vec();
    let context = Context {
        nightly: true,
        ..Context::default()
    };
    run_stages(&stages, context)
}

fn run_stages(stages: &[Stage], mut context: Context) -> Result<()> {
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
            .map_or_else(|| "packets".to_owned(), |value| value.get_name().to_owned())
    }

    fn run(self, context: &mut Context) -> Result<()> {
        match self {
            Self::Install => install::run(context.nightly),
            Self::Fmt => stages::fmt(),
            Self::Clippy => stages::clippy(),
            Self::Deps => crate::deps::run(&crate::deps::DepsArgs::default()).and_then(|()| crate::ui::check()),
            Self::Packaging => stages::packaging(context),
            Self::Ebpf => stages::ebpf(context),
            Self::Unit => stages::unit(context),
            Self::Packets => stages::packets(context),
            Self::Kernel => stages::kernel(context),
            Self::E2e => stages::e2e(context),
            Self::Packages => stages::packages(context),
            Self::Machines => stages::machines(context),
            Self::Fuzz => stages::fuzz(context),
        }
    }
}
