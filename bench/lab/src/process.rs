//! Child processes that do not outlive their owner, and whose output is shown when a test fails.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::eventually;

/// Time that a child has to end in order, after each of two signals.
const END_TIMEOUT: Duration = Duration::from_millis(500);

/// A running child.
pub struct Proc {
    name: String,
    child: Child,
    log: PathBuf,
    in_order: bool,
}

impl Proc {
    /// Starts a child, which must succeed.
    pub fn spawn(name: &str, command: Command, dir: &Path) -> Self {
        Self::try_spawn(name, command, dir).unwrap_or_else(|e| panic!("{e:#}"))
    }

    /// Starts a child with both outputs appended to `<dir>/<name>.log`.
    pub fn try_spawn(name: &str, mut command: Command, dir: &Path) -> Result<Self> {
        let log = dir.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log);
        let file = file.with_context(|| log.display().to_string())?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("start {name}: {command:?}"))?;
        Ok(Self {
            name: name.into(),
            child,
            log,
            in_order: false,
        })
    }

    /// Ends the child by two SIGTERMs, before it is killed when this is dropped.
    #[must_use]
    pub fn ended_in_order(mut self) -> Self {
        self.in_order = true;
        self
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, which must succeed.
    pub fn signal(&self, signal: Signal) {
        kill(self.raw_pid(), signal).unwrap_or_else(|e| panic!("{signal} to {}: {e}", self.name));
    }

    /// Kills the child without a chance to clean up.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Exit status of the child, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for the child's end.
    pub fn wait_exit(&mut self, limit: Duration) -> Option<ExitStatus> {
        let mut status = None;
        eventually(limit, || {
            status = self.ended();
            status.is_some()
        });
        status
    }

    /// The exit code at the child's end, which must come within `limit`; 128 + n for signal n.
    pub fn exit_code(&mut self, limit: Duration) -> i32 {
        let status = self.wait_exit(limit);
        let status = status.unwrap_or_else(|| panic!("{} still runs after {limit:?}", self.name));
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        std::fs::read(&self.log).map_or_else(|e| e.to_string(), |text| String::from_utf8_lossy(&text).into_owned())
    }

    /// Returns the last lines of the log.
    pub fn last_words(&self, lines: usize) -> Vec<String> {
        let log = self.log();
        let all: Vec<_> = log.lines().map(str::to_owned).collect();
        all[all.len().saturating_sub(lines)..].to_vec()
    }

    /// Returns the resident memory in bytes.
    pub fn resident(&self) -> u64 {
        crate::resident(self.pid())
    }

    fn raw_pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        for _ in 0..if self.in_order { 2 } else { 0 } {
            let _ = kill(self.raw_pid(), Signal::SIGTERM);
            if self.wait_exit(END_TIMEOUT).is_some() {
                return;
            }
        }
        self.kill();
        if std::thread::panicking() {
            println!("---- {} said last ----", self.name);
            self.last_words(80).iter().for_each(|line| println!("{line}"));
        }
    }
}
