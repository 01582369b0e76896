//! `check`: says what is wrong with a configuration file.

use std::io::IsTerminal as _;
use std::path::Path;
use std::process::ExitCode;

use super::{OutputFormat, show};
use crate::config;
use crate::control::store::file_problems;

/// Whether files that the configuration names for TLS cannot be used; the mistakes are left in `problems`.
fn has_wrong_files(model: &signalbox_core::model::Model, problems: &mut Vec<String>) -> bool {
    *problems = file_problems(model);
    !problems.is_empty()
}

/// Checks a file: 0 where it is good, 1 for warnings with `strict`, 2 where it is wrong, 3 where it cannot be read.
pub(super) fn check(file: &Path, strict: bool, output: OutputFormat) -> anyhow::Result<ExitCode> {
    let mut files = Vec::new();
    let (code, errors, warnings) = match config::load(file) {
        Ok(parsed) if has_wrong_files(&parsed.model, &mut files) => (2, Vec::new(), parsed.warnings),
        Ok(parsed) if strict && !parsed.warnings.is_empty() => (1, Vec::new(), parsed.warnings),
        Ok(parsed) => (0, Vec::new(), parsed.warnings),
        Err(config::LoadError::Config(errors)) => {
            if output == OutputFormat::Table {
                // A terminal gets the lines of the file with each error; other readers get one line for each error.
                if std::io::stderr().is_terminal() {
                    eprint!("{}", errors.render());
                } else {
                    eprintln!("{errors}");
                }
            }
            (2, errors.iter().cloned().collect(), Vec::new())
        }
        Err(error) => {
            eprintln!("{error}");
            return Ok(ExitCode::from(3));
        }
    };
    if output == OutputFormat::Table {
        for problem in &files {
            eprintln!("{}: {problem}", file.display());
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
        if code == 0 {
            println!("{}: ok", file.display());
        }
    } else {
        let report = serde_json::json!({ "file": file, "ok": code == 0, "errors": errors, "files": files, "warnings": warnings });
        show::emit(&report, output)?;
    }
    Ok(ExitCode::from(code))
}
