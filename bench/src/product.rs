//! The signalbox that is measured or tried: a given one, or one built from this checkout.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use signalbox_lab::Ns;

use crate::lab::Lab;
use crate::process;

/// Root folder of the workspace.
pub(crate) fn workspace() -> &'static Path {
    let bench = Path::new(env!("CARGO_MANIFEST_DIR"));
    bench.parent().unwrap_or(bench)
}

/// Profile of packages: figures are of the program that users run.
pub(crate) const MEASURED: &str = "dist";
/// Profile that is built in a third of the time.
pub(crate) const TRIED: &str = "release";

/// Path of the signalbox to run: the given one, or one built from this checkout in a profile of cargo.
pub(crate) fn signalbox(given: Option<&Path>, profile: &str) -> Result<PathBuf> {
    let path = given.map_or_else(|| build(profile), |path| Ok(std::path::absolute(path)?))?;
    ensure!(path.is_file(), "there is no {}", path.display());
    Ok(path)
}

fn build(profile: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--profile", profile, "-p", "signalbox"]);
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
    Ok(workspace().join(target).join(profile).join("signalbox"))
}

/// File of the configuration.
pub(crate) const CONFIG: &str = "signalbox.yaml";

/// A configuration, of which `body` is all except `version`, `admin` and `store`, for a signalbox whose files are in a
/// directory.
pub(crate) fn configuration(dir: &Path, body: &str) -> String {
    let dir = dir.display();
    format!(
        "version: 1
admin: {{ listen: none, socket: {dir}/admin.sock }}
store: {{ path: {dir}/state.redb }}
{body}"
    )
}

/// Command that runs `program` in a namespace with the configuration in a directory.
pub(crate) fn command(ns: &Ns, dir: &Path, program: &Path) -> Command {
    let mut command = process::command(ns, program);
    command.args(["run", "--log=warn", "--config"]).arg(dir.join(CONFIG));
    command
}

/// Writes a configuration to a directory, and returns the command that runs `program` with it in a namespace.
pub(crate) fn run_in(ns: &Ns, dir: &Path, program: &Path, body: &str) -> Result<Command> {
    let config = dir.join(CONFIG);
    std::fs::write(&config, configuration(dir, body)).with_context(|| config.display().to_string())?;
    Ok(command(ns, dir, program))
}

/// Writes a configuration, and returns the command that runs `program` with it in the balancer's namespace.
pub(crate) fn run(lab: &Lab, program: &Path, body: &str) -> Result<Command> {
    run_in(&lab.lb, lab.dir(), program, body)
}

/// Asks the signalbox whose files are in a directory: the body of its answer.
pub(crate) fn ask(dir: &Path, method: &str, path: &str, body: &str) -> Result<String> {
    let mut stream = UnixStream::connect(dir.join("admin.sock")).context("admin socket")?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    ensure!(
        head.split(' ').nth(1).is_some_and(|status| status.starts_with('2')),
        "{method} {path}: {body}"
    );
    Ok(body.to_owned())
}

/// Whether the kernel is still checking the kernel peek's program, according to the answer of `/api/v1/status`: workers
/// route connections until then.
pub(crate) fn is_loading(status: &str) -> bool {
    status.contains("\"loading\"")
}

/// Command that removes pinned programs and maps, which outlive the process.
pub(crate) fn detach(ns: &Ns, program: &Path) -> Command {
    let mut command = ns.command(program);
    command.arg("detach");
    command
}
