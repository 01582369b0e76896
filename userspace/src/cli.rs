//! The command line. Data goes to standard output, everything else to standard error.

mod agent;
mod check;
pub mod demo;
mod man;
mod serve;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{CommandFactory as _, Parser, Subcommand};
use signalbox_cli::{AskCommand, logging};

use crate::app;
use crate::app::SteeringChoice;
pub use serve::default_workers;

/// A kernel-assisted TCP/TLS/HTTP balancer in front of OpenShift and Kubernetes clusters.
#[derive(Parser)]
#[command(name = "signalbox", version, long_version = long_version(), propagate_version = true)]
struct Cli {
    /// Log level or filter: error, warn, info, debug, trace, or a filter such as signalbox=debug.
    #[arg(
        long,
        global = true,
        env = "SIGNALBOX_LOG",
        default_value = "info",
        value_name = "FILTER"
    )]
    log: String,
    #[command(subcommand)]
    command: Command,
}

/// Version, revision, profile and version of the maps, which distinguish builds without a tag.
fn long_version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let (version, revision) = (env!("CARGO_PKG_VERSION"), env!("SIGNALBOX_REVISION"));
        let (profile, abi) = (env!("SIGNALBOX_PROFILE"), signalbox_common::ABI_VERSION);
        format!("{version} (revision {revision}, profile {profile}, ABI {abi})")
    });
    &TEXT
}

#[derive(Subcommand)]
enum Command {
    /// Run the balancer (SIGTERM: drain and stop; a second SIGTERM: stop at once; SIGHUP: reload; SIGUSR2: start a
    /// successor).
    Run(RunArgs),
    /// Watch a cluster from inside it, and report its hosts and routes to balancers that cannot reach its API server.
    Agent(agent::AgentArgs),
    /// Check a configuration file without using it.
    ///
    /// Exits with 0 if the file is valid, 1 if it has only warnings and --strict is given, 2 if it has errors, 3 if it
    /// cannot be read.
    Check(check::CheckArgs),
    #[command(flatten)]
    Ask(AskCommand),
    /// Run a demo: a balancer and four small servers, on loopback.
    Demo(demo::DemoArgs),
    /// Write a completion script for a shell.
    Completions { shell: clap_complete::Shell },
    /// Write the manual pages that packages contain.
    #[command(hide = true)]
    Man(man::ManArgs),
}

#[derive(clap::Args)]
struct RunArgs {
    /// The configuration file; reloaded when it changes.
    #[arg(short = 'f', long, env = "SIGNALBOX_CONFIG", value_name = "FILE")]
    config: PathBuf,
    /// Take the listening sockets over from the signalbox that runs with the same admin socket.
    #[arg(long)]
    takeover: bool,
    /// Method of listening.
    #[arg(long, default_value = "auto")]
    steering: SteeringChoice,
    /// Threads that carry connections [default: one for each CPU].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: Option<u16>,
}

/// Runs the command given by the arguments.
pub fn main() -> ExitCode {
    if let Some(code) = app::launch_successor() {
        return code;
    }
    let cli = Cli::parse();
    if !cli.command.serves() {
        end_quietly_on_closed_output();
    }
    match dispatch(cli) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Command {
    /// Whether the command runs until it is told to stop: closed output must not end it.
    const fn serves(&self) -> bool {
        match self {
            Self::Ask(command) => command.serves(),
            _ => matches!(self, Self::Run(_) | Self::Agent(_) | Self::Demo(_)),
        }
    }
}

/// Ends the process when its output is closed, such as after `| head`: without a message, and with the status of other
/// commands in that case. SIGPIPE itself would also end it while the balancer refuses a request.
fn end_quietly_on_closed_output() {
    const STATUS: i32 = 128 + libc::SIGPIPE;
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let said = panic.payload().downcast_ref::<String>().map_or("", String::as_str);
        // println! and the writers of completions report this only by a panic.
        if said.starts_with("failed ") && said.contains("Broken pipe") {
            std::process::exit(STATUS);
        }
        others(panic);
    }));
}

fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Run(run) => {
            logging::init(&cli.log).map_err(anyhow::Error::msg)?;
            serve::serve(run)
        }
        Command::Agent(args) => {
            logging::init(&cli.log).map_err(anyhow::Error::msg)?;
            agent::run(args)
        }
        Command::Check(args) => check::check(&args),
        Command::Ask(command) => command.run(&cli.log),
        Command::Demo(args) => {
            logging::init(if args.verbose { &cli.log } else { demo::LOG }).map_err(anyhow::Error::msg)?;
            serve::runtime()?.block_on(demo::run(args))?;
            std::process::exit(0)
        }
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "signalbox", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
        Command::Man(args) => man::run(&args, Cli::command()),
    }
}

#[cfg(test)]
mod tests;
