//! `check`: reports the errors of a configuration file.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use signalbox_cli::{OutputFormat, emit};

use crate::admin::tls_problem;
use crate::config::{self, ConfigError, ConfigPlace};
use crate::control::store::{FileProblem, file_problems};

/// Arguments of `signalbox check`.
#[derive(clap::Args)]
pub(super) struct CheckArgs {
    /// The file; - for standard input.
    #[arg(value_name = "FILE", required_unless_present = "config", conflicts_with = "config")]
    file: Option<PathBuf>,
    /// The file, given in the same way as to `signalbox run`.
    #[arg(short = 'f', long, alias = "file", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Treat warnings as errors.
    #[arg(long)]
    strict: bool,
    #[arg(short, long, default_value = "table")]
    output: OutputFormat,
}

/// Returns errors in files that a configuration names, each with the position of the name. A file may be named at
/// several places: the one under the problem's key is it.
fn placed(problems: Vec<FileProblem>, text: &str) -> Vec<ConfigError> {
    if problems.is_empty() {
        return Vec::new();
    }
    let places = config::paths(text);
    let place_of = |problem: &FileProblem| {
        let is_under = |place: &ConfigPlace| {
            let rest = place.path.strip_prefix(problem.key.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        let named = places.iter().filter(|place| problem.message.contains(&place.text));
        named.max_by_key(|place| (is_under(place), place.text.len()))
    };
    let placed = problems.into_iter().map(|problem| {
        let place = place_of(&problem);
        let (line, column) = place.map_or((1, 1), |place| place.at);
        let path = place.map_or_else(String::new, |ConfigPlace { path, .. }| path.clone());
        ConfigError {
            line,
            column,
            path,
            message: problem.message,
        }
    });
    let mut placed: Vec<_> = placed.collect();
    placed.sort_by_key(|mistake| (mistake.line, mistake.column));
    placed
}

/// Checks a file: 0 if it is good, 1 for warnings with `strict`, 2 if it is wrong, 3 if it cannot be read.
pub(super) fn check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let (strict, output) = (args.strict, args.output);
    let file = args.file.as_ref().or(args.config.as_ref());
    let input = Path::new("standard input");
    let (file, loaded) = match file.map(PathBuf::as_path) {
        Some(file) if file != Path::new("-") => (file, config::load(file)),
        _ => (input, config::load_input()),
    };
    let mut of_files = Vec::new();
    let (code, errors, files, warnings) = match loaded {
        Ok(parsed) => {
            let (mut problems, told) = file_problems(&parsed.model);
            problems.extend(parsed.model.admin.tls.as_ref().and_then(tls_problem));
            of_files = told;
            let files = placed(problems, &parsed.text);
            let has_warnings = !parsed.warnings.is_empty() || !of_files.is_empty();
            let code = match (files.is_empty(), strict && has_warnings) {
                (false, _) => 2,
                (true, true) => 1,
                (true, false) => 0,
            };
            (code, Vec::new(), files, parsed.warnings)
        }
        Err(config::LoadError::Config(errors)) => {
            if output == OutputFormat::Table {
                // A terminal gets the file's lines with each error; other readers get one line per error.
                if std::io::stderr().is_terminal() {
                    eprint!("{}", errors.render());
                } else {
                    eprintln!("{errors}");
                }
            }
            (2, errors.iter().cloned().collect(), Vec::new(), Vec::new())
        }
        Err(error) => {
            eprintln!("{error}");
            return Ok(ExitCode::from(3));
        }
    };
    if output == OutputFormat::Table {
        for mistake in &files {
            eprintln!("{}:{mistake}", file.display());
        }
        for warning in &warnings {
            eprintln!(
                "{}:{}:{}: warning: {}: {}",
                file.display(),
                warning.line,
                warning.column,
                warning.path,
                warning.message
            );
        }
        for warning in &of_files {
            eprintln!("{}: warning: {warning}", file.display());
        }
        if code == 0 {
            println!("{}: ok", file.display());
        }
    } else {
        let report = serde_json::json!({
            "file": file,
            "ok": code == 0,
            "errors": errors,
            "files": files,
            "warnings": warnings,
            "file_warnings": of_files,
        });
        emit(&report, output)?;
    }
    Ok(ExitCode::from(code))
}
