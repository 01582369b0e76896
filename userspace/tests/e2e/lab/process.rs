//! A child process that does not outlive its test, and whose words are shown when the test fails.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::eventually;

/// A running child.
pub(crate) struct Proc {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Proc {
    /// Starts it with both outputs going to `<dir>/<name>.log`.
    pub(crate) fn spawn(name: &str, mut command: Command, dir: &Path) -> Self {
        let log = dir.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log).unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap_or_else(|e| panic!("start {name}: {e}"));
        Self {
            name: name.into(),
            child,
            log,
        }
    }

    /// Returns the process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = nix::unistd::Pid::from_raw(self.child.id().cast_signed());
        nix::sys::signal::kill(pid, signal).unwrap_or_else(|e| panic!("{signal} to {}: {e}", self.name));
    }

    /// Kills it without a chance to say goodbye.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end.
    pub(crate) fn wait_exit(&mut self, limit: Duration) -> Option<ExitStatus> {
        let mut status = None;
        eventually(limit, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status
    }

    /// The exit code at its end, which must come within `limit`; 128 + n for signal n.
    pub(crate) fn exit_code(&mut self, limit: Duration) -> i32 {
        let status = self.wait_exit(limit);
        let status = status.unwrap_or_else(|| panic!("{} still runs after {limit:?}", self.name));
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
    }

    /// Returns the log so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read(&self.log).map_or_else(|e| e.to_string(), |text| String::from_utf8_lossy(&text).into_owned())
    }

    /// Returns the resident memory in bytes.
    pub(crate) fn resident(&self) -> u64 {
        proc_kib(&format!("/proc/{}/status", self.pid()), "VmRSS:") * 1024
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            println!("---- {} said last ----", self.name);
            for line in &lines[lines.len().saturating_sub(80)..] {
                println!("{line}");
            }
        }
    }
}

fn proc_kib(file: &str, key: &str) -> u64 {
    let text = std::fs::read_to_string(file).unwrap();
    let line = text.lines().find(|l| l.starts_with(key));
    line.and_then(|l| l.split_whitespace().nth(1))
        .map_or(0, |n| n.parse().unwrap())
}
