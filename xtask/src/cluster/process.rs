//! Processes of a cluster: each has a log and a file with its number, and ends with the process that started it.

use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{SigSet, Signal};

use crate::vm::store::quietly;

/// Starts a command. It is killed when this process ends, however that happens, if it is `bound` to it.
pub(super) fn start(dir: &Path, name: &str, command: &Command, bound: bool) -> Result<Child> {
    let pids = dir.join("pids");
    fs::create_dir_all(&pids)?;
    let log = File::create(dir.join(format!("{name}.log")))?;
    let mut whole = if bound {
        let mut with = Command::new("setpriv");
        with.args(["--pdeathsig", "KILL"]);
        with
    } else {
        Command::new("setsid")
    };
    whole.arg(command.get_program()).args(command.get_args());
    for (key, value) in command.get_envs() {
        if let Some(value) = value {
            whole.env(key, value);
        }
    }
    whole.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let child = whole.spawn().with_context(|| format!("{name} cannot be started"))?;
    let pid = child.id().to_string();
    let identity = identity(&pid).with_context(|| format!("{name} has ended at once"))?;
    fs::write(pids.join(name), format!("{pid} {identity}"))?;
    Ok(child)
}

/// Kills the processes whose numbers are in a directory, with those below them.
pub(super) fn end_all(pids: &Path) -> Result<()> {
    let Ok(files) = fs::read_dir(pids) else {
        return Ok(());
    };
    for file in files.flatten() {
        end(&file.path())?;
    }
    Ok(())
}

/// Kills the process that a file names.
pub(super) fn end(file: &Path) -> Result<()> {
    let Ok(text) = fs::read_to_string(file) else {
        return Ok(());
    };
    let (pid, noted) = text.split_once(' ').unwrap_or((&text, ""));
    let is_there = || identity(pid).is_some_and(|found| found == noted);
    for _ in 0..200 {
        if !is_there() {
            fs::remove_file(file)?;
            return Ok(());
        }
        let _ = quietly(Command::new("kill").args(["-KILL", pid]));
        thread::sleep(Duration::from_millis(50));
    }
    bail!("process {pid} does not end")
}

/// Tells a living process from all others that have its number: when it was started, after which start of the machine.
fn identity(pid: &str) -> Option<String> {
    let stat = fs::read_to_string(Path::new("/proc").join(pid).join("stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    // A zombie has ended: its parent has not asked yet.
    if fields.next()? == "Z" {
        return None;
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    // Field 22 of the file (proc(5)): the time of the start.
    Some(format!("{} {}", fields.nth(18)?, boot.trim()))
}

/// Returns when the terminal or another process wants this one to end.
pub(super) fn until_told_to_end() -> Result<()> {
    // Not before: processes that were started with blocked signals would keep them blocked.
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    signals.thread_block()?;
    signals.wait()?;
    Ok(())
}
