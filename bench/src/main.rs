//! Side-by-side benchmarks: `cargo xtask bench`. See `docs/benchmarks.md` for the measurements and how to read them.
//! Also `cargo xtask lab`, a network to be tried by hand, which needs the same namespaces.
//!
//! Owns: small networks of namespaces, the load, the contenders' configurations, statistics and reports. Never: code
//! of the balancer; signalbox is run as a process like the others, so that all are measured from the same distance.

mod args;
mod bpf;
mod campaign;
mod contender;
mod facts;
mod histogram;
mod hosts;
mod interrupt;
mod lab;
mod load;
mod machine;
mod measure;
mod order;
mod packages;
mod packets;
mod playground;
mod process;
mod product;
mod report;
mod scenario;
mod stats;
mod suite;
mod xdp;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use args::{BenchArgs, BenchCommand, RunArgs};
use facts::Facts;
use report::Report;
use suite::Suite;

fn main() -> ExitCode {
    let args = BenchArgs::parse();
    let outcome = match &args.instead {
        Some(BenchCommand::Lab(args)) => playground::run(args).map(|()| 0),
        Some(BenchCommand::Xdp(args)) => xdp::run(args).map(|()| 0),
        Some(BenchCommand::Http(args)) => run(args, Suite::Http),
        Some(BenchCommand::Conditions(args)) => run(args, Suite::Conditions),
        Some(BenchCommand::Ha(args)) => run(args, Suite::Ha),
        Some(BenchCommand::Failures(args)) => run(args, Suite::Failures),
        Some(BenchCommand::Anatomy(args)) => run(args, Suite::Anatomy),
        None => run(&args.run, Suite::Connections),
    };
    match outcome {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failed) => {
            eprintln!("{failed} rows failed");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the benchmarks and writes the report: the number of rows that failed.
fn run(args: &RunArgs, suite: Suite) -> Result<usize> {
    ensure!(nix::unistd::geteuid().is_root(), "network namespaces need root");
    let plan = args.plan(suite)?;
    packages::ensure_installed(&packages::BENCH, !args.no_install)?;
    raise_limits()?;
    let facts = Facts::gather(&plan);
    eprintln!("about {:.0} minutes", plan.estimate().as_secs_f64() / 60.0);
    if plan.estimate() > Duration::from_secs(60 * 60) {
        eprintln!("for a shorter run, reduce --contenders, --threads, --rounds or --seconds");
    }
    interrupt::install()?;
    let began = Instant::now();
    let findings = campaign::run(&plan)?;
    let report = Report::new(facts, began.elapsed().as_secs_f64(), findings);
    let default = product::workspace().join(suite.results());
    println!("{}", report.write(args.results.as_ref().unwrap_or(&default))?);
    Ok(report.failed())
}

/// Raises the limit of open files as far as we may, for us and, inherited, for all contenders: idle connections are two
/// each, of WebSockets also here.
fn raise_limits() -> Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    ensure!(
        hard >= 20_000,
        "the hard limit on open files is {hard}: at least 20000 are needed (`ulimit -Hn 20000`)"
    );
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("the limit on open files cannot be raised")
}
