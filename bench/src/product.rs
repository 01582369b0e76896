//! The signalbox that is measured or tried: a given one, or one built from this checkout.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::lab::Lab;
use crate::process;

/// Root folder of the workspace.
pub(crate) fn workspace() -> &'static Path {
    let bench = Path::new(env!("CARGO_MANIFEST_DIR"));
    bench.parent().unwrap_or(bench)
}

/// Path of the signalbox to run: the given one, or one built from this checkout.
pub(crate) fn signalbox(given: Option<&Path>) -> Result<PathBuf> {
    let path = given.map_or_else(build, |path| Ok(std::path::absolute(path)?))?;
    ensure!(path.is_file(), "there is no {}", path.display());
    Ok(path)
}

fn build() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--release", "-p", "signalbox"]);
    // ring's build script asks for the variables that `cargo run` has set for signalbox-bench: with other values than in a
    // shell, cargo would build ring again, and all crates that depend on ring.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    let status = command.current_dir(workspace()).status().context("cargo")?;
    ensure!(status.success(), "signalbox cannot be built");
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    Ok(workspace().join(target).join("release/signalbox"))
}

/// Writes a configuration, all but `version`, `admin` and `store`, and returns the command that runs `program` with it
/// in the balancer's namespace.
pub(crate) fn run(lab: &Lab, program: &Path, body: &str) -> Result<Command> {
    let (config, dir) = (lab.dir().join("signalbox.yaml"), lab.dir().display());
    let text = format!(
        "version: 1
admin: {{ listen: none, socket: {dir}/admin.sock }}
store: {{ path: {dir}/state.redb }}
{body}"
    );
    let words = [
        program.as_os_str(),
        "run".as_ref(),
        "--log=warn".as_ref(),
        "--config".as_ref(),
    ];
    process::with_config(&lab.lb, &words, &config, &text)
}

/// Command that removes pinned programs and maps, which outlive the process.
pub(crate) fn detach(lab: &Lab, program: &Path) -> Command {
    let mut command = lab.lb.command(program);
    command.arg("detach");
    command
}
