//! Development tasks: `cargo xtask <task>`. The logic that scripts and CI need lives here, `scripts/` only wraps it.
//!
//! Owns: how the eBPF objects are built and checked, the order of the test stages. Never: anything the product needs
//! at run time; no crate of the workspace depends on this one, and this one on none of them.

mod abi;
mod apt;
mod cluster;
mod commits;
mod deps;
mod dist;
mod docs;
mod ebpf;
mod exec;
mod flaky;
mod fuzz;
mod kube;
mod lint;
mod mirror;
mod prose;
mod rivals;
mod root;
mod suites;
mod test;
mod ui;
mod vm;

use std::{ffi::OsString, process::ExitCode};

use anyhow::Result;
use clap::{Parser, Subcommand};

use exec::Run;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Development tasks of signalbox", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Build the eBPF objects from source, or check that the checked-in ones match the sources
    BuildEbpf(ebpf::EbpfArgs),
    /// Compare the maps and programs of the eBPF objects with ebpf/abi.txt
    Abi(abi::AbiArgs),
    /// Check that crates depend on each other, and use aya and unsafe, only where the architecture allows it
    CheckDeps(deps::DepsArgs),
    /// Check that pages are written in plain English: no odd phrase, no sentence above 35 words
    CheckProse,
    /// Check that messages of commits have the form `area: what changed`, in at most 72 columns
    CheckCommits,
    /// Build the pages as a site with a search, by mdBook, into target/docs
    Docs,
    /// Check the units, rules, dashboards and manifests in packaging/
    Lint(lint::LintArgs),
    /// Make packages of signalbox: deb, rpm, an archive, manual pages, container images, bills of materials
    Dist(dist::DistArgs),
    /// Build the program in two directories, and compare the bytes
    Reproduce(dist::reproducible::ReproduceArgs),
    /// Install what the tests need and run all of them
    Test(test::TestArgs),
    /// Formatting, lints, dependency rules, unit tests and the programs on packets
    Quick,
    /// Repeat tests while the machine is loaded, and report how often each failed
    Flaky(flaky::FlakyArgs),
    /// Start a Kubernetes of several nodes on this machine, to try the manifests on
    Cluster(cluster::ClusterArgs),
    /// Build the Kubernetes that the rotation tests with, and print where it is
    Kube,
    /// Install the suites that the end-to-end tests run, and print their paths
    Suites,
    /// Install the rivals that `bench` compares with, and print their paths
    Rivals,
    /// Check or renew the libraries of the web UI, and the pictures of its pages in docs/
    Ui(ui::UiArgs),
    /// Run fuzz targets, starting from fuzz/seeds
    Fuzz(fuzz::FuzzArgs),
    /// Run the benchmarks; arguments go to signalbox-bench
    #[command(disable_help_flag = true)]
    Bench(PassThrough),
    /// Start a network with real router hosts to try signalbox in; arguments go to `signalbox-bench lab`
    #[command(disable_help_flag = true)]
    Lab(PassThrough),
    /// Run the demo; arguments go to `signalbox demo`
    #[command(disable_help_flag = true)]
    Demo(PassThrough),
}

#[derive(clap::Args)]
struct PassThrough {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

fn main() -> ExitCode {
    // cargo calls this binary in place of rustc while it builds the eBPF programs; see `ebpf::wrapper`.
    if ebpf::wrapper::is_asked_for() {
        return ebpf::wrapper::main();
    }
    match run(Cli::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<()> {
    match task {
        Task::BuildEbpf(args) => ebpf::run(&args),
        Task::Abi(args) => abi::run(&args),
        Task::CheckDeps(args) => deps::run(&args),
        Task::CheckProse => prose::run(),
        Task::CheckCommits => commits::run(),
        Task::Docs => docs::run(),
        Task::Lint(args) => lint::run(&args),
        Task::Dist(args) => dist::run(&args),
        Task::Reproduce(args) => dist::reproducible::run(&args),
        Task::Test(args) => test::run(&args),
        Task::Quick => test::run_quick(),
        Task::Flaky(args) => flaky::run(&args),
        Task::Cluster(args) => cluster::run(args),
        Task::Kube => kube::run(),
        Task::Suites => suites::run(),
        Task::Rivals => rivals::run(),
        Task::Ui(args) => ui::run(&args),
        Task::Fuzz(args) => fuzz::run(&args),
        // The load generator is built like the product that it measures.
        Task::Bench(pass) => cargo_run(
            "dist",
            "signalbox-bench",
            &[],
            rivals::environment(&pass.args),
            pass.args,
        ),
        Task::Lab(pass) => cargo_run("release", "signalbox-bench", &["lab"], Vec::new(), pass.args),
        Task::Demo(pass) => cargo_run("release", "signalbox", &["demo"], Vec::new(), pass.args),
    }
}

/// Runs a package in place of this process, so that a signal for the package does not end only its parent.
fn cargo_run(
    profile: &str,
    package: &str,
    first: &[&str],
    env: Vec<(String, OsString)>,
    args: Vec<OsString>,
) -> Result<()> {
    let run = Run::cargo(["run", "--profile", profile, "-p", package, "--"])?;
    let run = env.iter().fold(run, |run, (name, value)| run.env(name, value));
    run.args(first).args(args).replace()
}
