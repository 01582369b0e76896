//! Child processes that do not outlive their owner, and the CPU time and memory of processes.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A running child process.
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a child, both outputs going to `<dir>/<name>.log`.
    pub(crate) fn start(name: &str, mut command: Command, dir: &Path) -> Result<Self> {
        let log = dir.join(format!("{name}.log"));
        let file = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("start {name}: {command:?}"))?;
        Ok(Self { child, log })
    }

    /// Whether the child still runs.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Exit status of the child, if it has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Pid of the child.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// End of the child's output.
    pub(crate) fn last_words(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }

    /// Pids of the child and its own children.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let me = self.child.id();
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let children = pids.filter(|&pid| Stat::of(pid).is_some_and(|stat| stat.parent == me));
        std::iter::once(me).chain(children).collect()
    }
}

impl Drop for Process {
    /// Ends the child: by two SIGTERMs, at one or the other of which all of ours end at once, then by SIGKILL.
    fn drop(&mut self) {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        for _ in 0..2 {
            let _ = kill(pid, Signal::SIGTERM);
            let limit = Instant::now() + Duration::from_millis(500);
            while Instant::now() < limit {
                if !self.is_running() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
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
    let status = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    pids.iter()
        .map(|pid| crate::machine::field(&status(pid), "VmRSS:") * 1024)
        .sum()
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
