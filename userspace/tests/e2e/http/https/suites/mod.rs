//! Other projects' suites against listeners that route requests. Before a merge those run that are installed in
//! seconds; the rotation runs the others.

mod autobahn;
mod httpwg;
mod redbot;
mod sslyze;
mod testssl;

use std::path::PathBuf;

/// Program of a suite, which a variable names; says SKIP where there is none, or fails where there must be.
fn program(test: &str, variable: &str) -> Option<PathBuf> {
    let program = std::env::var_os(variable).map(PathBuf::from);
    if program.is_none() {
        let why = format!("{test}: {variable} names no program; `cargo xtask suites` prints it");
        let required = std::env::var("REQUIRE_PRIVILEGED_TESTS").is_ok_and(|v| v == "1");
        assert!(!required, "{why}");
        println!("SKIP {why}");
    }
    program
}
