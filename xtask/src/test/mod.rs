//! `test`: installs what the tests need and runs them, stage after stage, up to the first failure: those of a merge, a
//! share of the rotation, or all.
//!
//! A stage that needs root or a tool runs without it too: each test prints `SKIP name: why`, and the summary shows
//! those lines, so that a skipped test does not count as passed. REQUIRE_PRIVILEGED_TESTS=1 makes them fail
//! instead.

mod install;
mod rotation;
mod stages;
mod summary;

use std::{path::PathBuf, time::Instant};

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::vm;
use rotation::Share;
use summary::{Counts, Summary};

#[derive(clap::Args)]
pub(crate) struct TestArgs {
    /// Run this stage only; may be given several times
    #[arg(long, value_name = "STAGE", conflicts_with_all = ["kernel", "share", "all"])]
    only: Vec<Stage>,
    /// Run a share of the rotation instead of a merge's tests: its number, or `of-commit` for this commit's share
    #[arg(long, value_name = "N", conflicts_with_all = ["kernel", "all"])]
    share: Option<Share>,
    /// Run a merge's tests and the whole rotation, without a time limit
    #[arg(long, conflicts_with = "kernel")]
    all: bool,
    /// Boot these kernels in virtual machines and test on them, such as `6.1,6.12,newest` or the path of a bzImage
    #[arg(long, value_name = "KERNELS", value_delimiter = ',')]
    kernel: Vec<String>,
    /// With --kernel: all tests of programs, and two machines, instead of the part that runs before each merge
    #[arg(long, requires = "kernel")]
    whole: bool,
    /// With --kernel: only two machines, whose cards have several queues
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

/// Stages of a merge, in the order they run: those that fail fast and often come first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Stage {
    /// Packages, tools, suites of others
    Install,
    /// rustfmt
    Fmt,
    /// Lints, warnings are errors
    Clippy,
    /// Dependency rules of the architecture
    Deps,
    /// Units, rules, dashboards and manifests that are packaged
    Packaging,
    /// The checked-in eBPF objects
    Ebpf,
    /// Unit and documentation tests
    Unit,
    /// The eBPF programs on single packets: the quick part of `kernel`
    #[value(skip)]
    Packets,
    /// Tests that load eBPF programs
    Kernel,
    /// Tests of the product over the network
    E2e,
}

/// Results that one stage hands to the later ones.
#[derive(Default)]
struct Context {
    /// Whether to run everything at its whole length.
    is_whole: bool,
    /// Share of the rotation that is under way.
    share: Option<Share>,
    /// Product whose pinned maps have another layout, for tests of upgrades.
    next_version: Option<PathBuf>,
    /// A real kube-apiserver.
    kube_apiserver: Option<PathBuf>,
    /// Programs of Kubernetes, for clusters.
    kubernetes: Option<PathBuf>,
    /// Programs of suites of others, by the variables that tests read.
    suites: Vec<(&'static str, PathBuf)>,
    counts: Counts,
}

type Step = (String, Box<dyn Fn(&mut Context) -> Result<()>>);

pub(crate) fn run(args: &TestArgs) -> Result<()> {
    if !args.kernel.is_empty() {
        let depth = match (args.whole, args.two_machines) {
            (true, _) => vm::Depth::Whole,
            (_, true) => vm::Depth::TwoMachines,
            _ => vm::Depth::Gate,
        };
        return vm::run(&args.kernel, depth, args.update_docs).map(drop);
    }
    if let Some(steps) = &args.debian {
        vm::debian::can_run()?;
        let built = match &args.program {
            Some(program) => program.canonicalize()?,
            None => vm::build::build_product(&crate::root::root()?)?,
        };
        let passed = vm::debian::run(&built, steps)?;
        println!("debian: {passed} passed");
        return Ok(());
    }
    if let Some(share) = args.share {
        println!("{share}");
        return run_steps(&steps_of_share(share), Context::default());
    }
    let stages = Stage::value_variants().iter().copied();
    let stages = stages.filter(|stage| match args.only.as_slice() {
        // Stage `kernel` runs the packets, too.
        [] => *stage != Stage::Packets,
        only => only.contains(stage),
    });
    let mut steps: Vec<Step> = stages.map(Stage::step).collect();
    if args.all {
        steps.extend(Share::all().flat_map(steps_of_share));
    }
    let context = Context {
        is_whole: args.all,
        ..Context::default()
    };
    run_steps(&steps, context)
}

/// Task `quick`: the stages that a developer waits for, once all is built.
pub(crate) fn run_quick() -> Result<()> {
    let stages = [Stage::Fmt, Stage::Clippy, Stage::Deps, Stage::Unit, Stage::Packets];
    run_steps(&stages.map(Stage::step), Context::default())
}

fn steps_of_share(share: Share) -> Vec<Step> {
    let install: Step = (
        "install".to_owned(),
        Box::new(move |context| {
            install::run()?;
            context.share = Some(share);
            share.install()
        }),
    );
    let work = share.work().map(|(name, run)| -> Step { (name, Box::new(run)) });
    std::iter::once(install).chain(work).collect()
}

fn run_steps(steps: &[Step], mut context: Context) -> Result<()> {
    let mut summary = Summary::default();
    for (number, (name, run)) in steps.iter().enumerate() {
        println!("\n== {}/{} {name} ==", number + 1, steps.len());
        let start = Instant::now();
        let result = run(&mut context);
        let seconds = start.elapsed().as_secs_f64();
        let state = if result.is_ok() { "ok" } else { "FAILED" };
        println!("== {name} {state} in {seconds:.1} s ==");
        summary.add(name.clone(), state, seconds);
        if let Err(error) = result {
            eprintln!("error: {error:#}");
            let rest = &steps[number + 1..];
            rest.iter()
                .for_each(|(name, _)| summary.add(name.clone(), "not run", 0.0));
            print!("{}", summary.text(&context.counts));
            match context.share {
                Some(share) => bail!("{name} failed, of {share}"),
                None => bail!("stage {name} failed; `cargo xtask test --only {name}` repeats it"),
            }
        }
    }
    print!("{}", summary.text(&context.counts));
    Ok(())
}

/// Programs of tests that are run repeatedly.
pub(crate) struct Repeated(Context);

impl Repeated {
    /// Builds the programs of the tests.
    pub(crate) fn prepare() -> Result<Self> {
        let mut context = Context::default();
        stages::prepare(&mut context)?;
        Ok(Self(context))
    }

    /// Runs the tests of a program that a filter of nextest's chooses, and passes each line of output on.
    pub(crate) fn run(&self, program: &str, filter: Option<&str>, each: &mut dyn FnMut(&str)) -> Result<()> {
        let mut words = vec!["--no-tests", "pass"];
        words.extend(filter.iter().flat_map(|filter| ["-E", filter]));
        stages::nextest_command(&self.0, program, &words)?.run_tee(each)
    }
}

impl Stage {
    fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(|| "packets".to_owned(), |value| value.get_name().to_owned())
    }

    fn step(self) -> Step {
        (self.name(), Box::new(move |context| self.run(context)))
    }

    fn run(self, context: &mut Context) -> Result<()> {
        match self {
            Self::Install => install::run(),
            Self::Fmt => stages::fmt(),
            Self::Clippy => stages::clippy(),
            Self::Deps => crate::deps::run(&crate::deps::DepsArgs::default())
                .and_then(|()| crate::prose::run())
                .and_then(|()| crate::commits::run())
                .and_then(|()| crate::ui::check()),
            Self::Packaging => stages::packaging(context),
            Self::Ebpf => stages::ebpf(context),
            Self::Unit => stages::unit(context),
            Self::Packets => stages::packets(context),
            Self::Kernel => stages::kernel(context),
            Self::E2e => stages::e2e(context),
        }
    }
}
