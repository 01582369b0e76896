//! `check`: reports the errors of a configuration file.

use std::fmt;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use signalbox_cli::{OutputFormat, emit};
use signalbox_core::model::Model;
use signalbox_core::routing::obstacle::{PeekObstacle, PlannedPath, planned_paths};

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
    /// Also show which listeners and routes the kernel may route, and why not the others, as far as the file decides.
    #[arg(long)]
    fast_path: bool,
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

/// Path of a listener's or route's connections.
#[derive(Serialize)]
struct PathView {
    kind: &'static str,
    name: String,
    in_kernel: bool,
    reasons: Vec<PathReason>,
}

#[derive(Serialize)]
struct PathReason {
    label: &'static str,
    text: &'static str,
    remedy: &'static str,
}

fn path_views(model: &Model) -> Vec<PathView> {
    let reason = |obstacle: PeekObstacle| PathReason {
        label: obstacle.label(),
        text: obstacle.text(),
        remedy: obstacle.remedy(),
    };
    let view = |path: PlannedPath| PathView {
        kind: path.kind,
        name: path.name,
        in_kernel: path.obstacles.is_empty(),
        reasons: path.obstacles.into_iter().map(reason).collect(),
    };
    planned_paths(model).into_iter().map(view).collect()
}

impl fmt::Display for PathView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = if self.in_kernel { "the kernel" } else { "workers" };
        write!(f, "{} {}: routed by {by}", self.kind, self.name)?;
        for reason in &self.reasons {
            write!(f, "; {}: {}", reason.label, reason.text)?;
            if !reason.remedy.is_empty() {
                write!(f, " ({})", reason.remedy)?;
            }
        }
        Ok(())
    }
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
    let (mut of_files, mut paths) = (Vec::new(), None);
    let (code, errors, files, warnings) = match loaded {
        Ok(parsed) => {
            let (mut problems, told) = file_problems(&parsed.model);
            problems.extend(parsed.model.admin.tls.as_ref().and_then(tls_problem));
            of_files = told;
            paths = args.fast_path.then(|| path_views(&parsed.model));
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
        for path in paths.iter().flatten() {
            println!("{path}");
        }
    } else {
        let report = serde_json::json!({
            "file": file,
            "ok": code == 0,
            "errors": errors,
            "files": files,
            "warnings": warnings,
            "file_warnings": of_files,
            "fast_path": paths,
        });
        emit(&report, output)?;
    }
    Ok(ExitCode::from(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_what_the_file_leaves_to_workers() {
        let file = "version: 1
listeners:
  - { name: http, protocol: http, listen: [\"10.1.0.1:80\"] }
  - { name: https, protocol: tls, listen: [\"10.1.0.1:443\"] }
  - { name: api, protocol: http, routing: request, listen: [\"10.1.0.1:8080\"] }
clusters:
  - { name: east, hosts: [{ name: e1, address: 10.2.0.2, http: 80, https: 443 }] }
  - { name: grpc, h2c: true, hosts: [{ name: g1, address: 10.2.0.3, http: 80 }] }
routes:
  - { host: app.test, clusters: { east: 1 } }
  - { host: grpc.test, clusters: { grpc: 1 } }
";
        let lines = |file: &str| -> Vec<String> {
            let paths = path_views(&config::parse(file).unwrap().model);
            paths.iter().map(ToString::to_string).collect()
        };
        let shown = lines(file);
        assert_eq!(
            shown,
            [
                "listener http: routed by the kernel",
                "listener https: routed by the kernel",
                "listener api: routed by workers; per_request: requests are routed one by one",
                "route app.test: routed by the kernel",
                "route grpc.test: routed by the kernel",
            ],
            "HTTP/2 of hosts is no matter where TLS is passed through"
        );
        let http_only = file.replace("  - { name: https, protocol: tls, listen: [\"10.1.0.1:443\"] }\n", "");
        assert!(lines(&http_only)[3].contains("grpc.test: routed by workers; h2c: a cluster has `h2c`"));
    }
}
