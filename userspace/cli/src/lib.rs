//! The commands that ask a running signalbox, or look at this machine. Data goes to standard output, everything else to
//! standard error.
//!
//! Owns: tables, `top`, `doctor`, `ha`. Knows the admin API by the types of `signalbox-api`, and nothing of the balancer
//! that answers.

mod certificates;
mod client;
mod command;
mod config;
mod detach;
mod dns;
mod doctor;
mod events;
mod explain;
mod export;
mod flows;
mod ha;
mod ha_config;
pub mod logging;
mod migrate;
mod rotate;
mod services;
mod shield;
mod show;
#[cfg(feature = "tui")]
mod top;
mod weight;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgMatches, FromArgMatches, Subcommand, ValueEnum};

use command::Command;
pub use config::config_exit_code;
pub use show::{emit, routes_and_hosts};

/// A command of this crate, as a part of the program's command line.
pub struct AskCommand(Command);

impl AskCommand {
    /// Whether the command runs until it is told to stop: closed output must not end it.
    #[must_use]
    pub const fn serves(&self) -> bool {
        matches!(self.0, Command::Ha { .. })
    }

    /// Runs the command. `log` is the filter of its log.
    pub fn run(self, log: &str) -> anyhow::Result<ExitCode> {
        self.0.run(log)
    }
}

impl FromArgMatches for AskCommand {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Command::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

impl Subcommand for AskCommand {
    fn augment_subcommands(all: clap::Command) -> clap::Command {
        Command::augment_subcommands(all)
    }

    fn augment_subcommands_for_update(all: clap::Command) -> clap::Command {
        Command::augment_subcommands_for_update(all)
    }

    fn has_subcommand(name: &str) -> bool {
        Command::has_subcommand(name)
    }
}

/// Arguments of commands that show something.
#[derive(clap::Args)]
struct ShowArgs {
    #[arg(short, long, global = true, default_value = "table")]
    output: OutputFormat,
    /// The admin socket of the running signalbox.
    #[arg(
        long,
        global = true,
        env = "SIGNALBOX_SOCKET",
        default_value = "/run/signalbox/admin.sock",
        value_name = "PATH"
    )]
    socket: PathBuf,
}

/// A form of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    Table,
    Json,
    Yaml,
}
