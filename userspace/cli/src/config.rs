//! `signalbox config`.

use std::process::ExitCode;

use signalbox_config::LoadError;

use super::{OutputFormat, ShowArgs, client, show};

#[derive(clap::Subcommand)]
pub(super) enum ConfigCommand {
    /// Show the current configuration with its defaults: the file or the configuration set by API, discovered routes,
    /// and weights that operators have set.
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

/// Exit code for an unusable configuration: 2 if it is wrong, 3 if it cannot be read.
#[must_use]
pub fn config_exit_code(error: &LoadError) -> ExitCode {
    ExitCode::from(if matches!(error, LoadError::Config(_)) { 2 } else { 3 })
}
