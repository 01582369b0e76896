//! `check`: says what is wrong with a configuration file.

use std::io::IsTerminal as _;
use std::path::Path;
use std::process::ExitCode;

use super::{OutputFormat, show};
use crate::config;
use crate::control::store::file_problems;

/// Checks a file: 0 where it is good, 1 for warnings with `strict`, 2 where it is wrong, 3 where it cannot be read.
pub(super) fn check(file: &Path, strict: bool, output: OutputFormat) -> anyhow::Result<ExitCode> {
    let (mut files, mut of_files) = (Vec::new(), Vec::new());
    let (code, errors, warnings) = match config::load(file) {
        Ok(parsed) => {
            (files, of_files) = file_problems(&parsed.model);
            let has_warnings = !parsed.warnings.is_empty() || !of_files.is_empty();
            let code = match (files.is_empty(), strict && has_warnings) {
                (false, _) => 2,
                (true, true) => 1,
                (true, false) => 0,
            };
            (code, Vec::new(), parsed.warnings)
        }
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
        show::emit(&report, output)?;
    }
    Ok(ExitCode::from(code))
}
