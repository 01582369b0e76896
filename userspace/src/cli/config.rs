//! `signalbox config`.

use std::process::ExitCode;

use super::{OutputFormat, ShowArgs, client, show};

#[derive(clap::Subcommand)]
pub(super) enum ConfigCommand {
    /// Show the configuration in force, defaults included: the file, or what the API has put in its place, with
    /// discovered routes and with weights that operators have set.
    ///
    /// Prints YAML unless `-o json` is given. Secrets are left out.
    Show(ShowArgs),
}

pub(super) fn show(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let answer = client::get(&args.socket, "/api/v1/config")?;
    match args.output {
        OutputFormat::Table => show::emit(&answer["config"], OutputFormat::Yaml)?,
        output => show::emit(&answer, output)?,
    }
    Ok(ExitCode::SUCCESS)
}
