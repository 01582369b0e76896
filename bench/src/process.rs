//! Child processes of a run, and the CPU time and memory of processes.

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use signalbox_lab::{Ns, Proc};

/// A command that will run inside a namespace, with the pid of the command itself, and that dies with this process:
/// even SIGKILL leaves no balancer running (except workers of nginx, which the next start removes).
pub(crate) fn command(ns: &Ns, program: impl AsRef<OsStr>) -> Command {
    let mut command = ns.command("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Writes a configuration, and returns the command that runs a program inside a namespace with it: `words`, of which the
/// first is the program, and the file's path.
pub(crate) fn with_config(ns: &Ns, words: &[impl AsRef<OsStr>], config: &Path, text: &str) -> Result<Command> {
    std::fs::write(config, text).with_context(|| config.display().to_string())?;
    let mut command = command(ns, &words[0]);
    command.args(&words[1..]).arg(config);
    Ok(command)
}

/// Starts a child whose log is its own, and which is ended in order: on one of two SIGTERMs all children end at once.
pub(crate) fn start(name: &str, command: Command, dir: &Path) -> Result<Proc> {
    File::create(dir.join(format!("{name}.log")))?;
    Ok(Proc::try_spawn(name, command, dir)?.ended_in_order())
}

/// End of a child's output.
pub(crate) fn last_words(process: &Proc) -> String {
    process.last_words(5).join(" | ")
}

/// Pids of a child and its own children.
pub(crate) fn family(process: &Proc) -> Vec<u32> {
    let me = process.pid();
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let children = pids.filter(|&pid| Stat::of(pid).is_some_and(|stat| stat.parent == me));
    std::iter::once(me).chain(children).collect()
}

/// A contender at work, until dropped: a process, rules in the kernel, or nothing.
#[derive(Default)]
pub(crate) struct Running {
    pub(crate) process: Option<Proc>,
    /// Command that removes what outlives the process, or needs none.
    pub(crate) after: Option<Command>,
}

impl Running {
    /// Last output of the contender, if it has ended unexpectedly.
    pub(crate) fn death(&mut self) -> Option<String> {
        let process = self.process.as_mut()?;
        process.ended().map(|_| last_words(process))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.process = None;
        if let Some(mut after) = self.after.take() {
            // A signalbox without tier cut has nothing to clear away: an error is ignored.
            let _ = after.output();
        }
    }
}

/// Some fields of `/proc/<pid>/stat`.
#[derive(Debug, PartialEq)]
struct Stat {
    parent: u32,
    user: u64,
    system: u64,
}

impl Stat {
    fn of(pid: u32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses a line, whose second field is a name in brackets that may itself have brackets and spaces.
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<_> = line.rsplit_once(')')?.1.split_whitespace().collect();
        Some(Self {
            parent: fields.get(1)?.parse().ok()?,
            user: fields.get(11)?.parse().ok()?,
            system: fields.get(12)?.parse().ok()?,
        })
    }
}

/// CPU time of processes in jiffies: in user space, and in the kernel on their behalf.
pub(crate) fn jiffies(pids: &[u32]) -> (u64, u64) {
    let stats = pids.iter().filter_map(|&pid| Stat::of(pid));
    stats.fold((0, 0), |(user, system), stat| (user + stat.user, system + stat.system))
}

/// Resident memory of processes in bytes.
pub(crate) fn resident(pids: &[u32]) -> u64 {
    pids.iter().map(|&pid| signalbox_lab::resident(pid)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_look_like_fields() {
        let line = "7 (a ) 1 (b) S 42 7 7 0 -1 4194560 1 0 0 0 12 34 0 0 20 0 1 0";
        assert_eq!(
            Stat::parse(line),
            Some(Stat {
                parent: 42,
                user: 12,
                system: 34
            })
        );
        assert_eq!(Stat::parse("7 (cut"), None);
    }
}
