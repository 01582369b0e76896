//! Suites of others against listeners that route requests. They take long to build or to run: the nightly runs them.

mod httpwg;
mod redbot;
mod testssl;

use std::path::PathBuf;

/// Program of a suite, which a variable names; says SKIP where there is none.
fn program(test: &str, variable: &str) -> Option<PathBuf> {
    let program = std::env::var_os(variable).map(PathBuf::from);
    if program.is_none() {
        println!("SKIP {test}: {variable} names no program; `cargo xtask suites` prints it");
    }
    program
}
