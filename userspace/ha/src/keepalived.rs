//! keepalived's process: a child that ends with its parent.

use std::fs;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, Command};

use crate::{Directory, program};

/// Time that keepalived has to give up its addresses and end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that keepalived's child has to notice that its parent has ended.
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(1);
const ORPHAN_INTERVAL: Duration = Duration::from_millis(10);

const PROGRAM: &str = "keepalived";
/// Names of files in the runtime directory.
pub(crate) const CONFIG_FILE: &str = "keepalived.conf";
const PID_FILE: &str = "keepalived.pid";
const VRRP_PID_FILE: &str = "vrrp.pid";
const CHECKERS_PID_FILE: &str = "checkers.pid";

/// Process of keepalived, with a child process that speaks VRRP.
pub(crate) struct Keepalived {
    child: Child,
}

/// Has keepalived check a configuration.
pub(crate) async fn test(file: &Path) -> anyhow::Result<()> {
    let file = file.to_string_lossy();
    let tested = program::output(PROGRAM, &["--config-test", "--vrrp", "--use-file", &file], "").await;
    tested.map(drop).context("keepalived does not take its configuration")
}

impl Keepalived {
    /// Starts keepalived with the configuration in the directory.
    pub(crate) fn start(directory: &Directory) -> anyhow::Result<Self> {
        let mut command = std::process::Command::new(PROGRAM);
        command.args([
            "--vrrp",
            "--dont-fork",
            "--log-console",
            "--log-detail",
            "--no-syslog",
            "--dont-respawn",
        ]);
        for (option, file) in [
            ("--use-file", CONFIG_FILE),
            ("--pid", PID_FILE),
            ("--vrrp_pid", VRRP_PID_FILE),
            ("--checkers_pid", CHECKERS_PID_FILE),
        ] {
            command.arg(format!("{option}={}", directory.file(file).display()));
        }
        // A file left by another run would name a process that is not ours.
        let _ = fs::remove_file(directory.file(VRRP_PID_FILE));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // With SIGTERM it gives its addresses up.
        signalbox_sys::end_with_parent(&mut command, libc::SIGTERM);
        let mut child = Command::from(command)
            .spawn()
            .context("starting keepalived: is the package `keepalived` installed?")?;
        child.stdout.take().map(|output| tokio::spawn(log(output)));
        child.stderr.take().map(|output| tokio::spawn(log(output)));
        Ok(Self { child })
    }

    /// Makes keepalived read its configuration again.
    pub(crate) fn reload(&self) {
        if let Some(pid) = self.pid() {
            // A keepalived that has already ended is noticed by `ended`.
            let _ = kill(pid, Signal::SIGHUP);
        }
    }

    /// Waits for the end of the process.
    pub(crate) async fn ended(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Has keepalived give up its addresses and end.
    pub(crate) async fn stop(&mut self) {
        if let Some(pid) = self.pid() {
            let _ = kill(pid, Signal::SIGTERM);
        }
        if tokio::time::timeout(STOP_TIMEOUT, self.child.wait()).await.is_err() {
            tracing::warn!("keepalived does not end: it is killed.");
            let _ = self.child.kill().await;
        }
    }

    fn pid(&self) -> Option<Pid> {
        let id = self.child.id()?;
        i32::try_from(id).ok().map(Pid::from_raw)
    }
}

/// Waits until the child of a keepalived that has ended is gone, too, and kills it if it stays.
pub(crate) async fn end_orphan(directory: &Directory) {
    let Some(pid) = orphan(directory) else { return };
    let deadline = tokio::time::Instant::now() + ORPHAN_TIMEOUT;
    while orphan(directory) == Some(pid) {
        if tokio::time::Instant::now() >= deadline {
            tracing::warn!(
                pid = pid.as_raw(),
                "keepalived has ended without its child: that is killed."
            );
            let _ = kill(pid, Signal::SIGKILL);
            return;
        }
        tokio::time::sleep(ORPHAN_INTERVAL).await;
    }
}

/// Process that the file of the child's id names, if it is a keepalived.
fn orphan(directory: &Directory) -> Option<Pid> {
    let text = fs::read_to_string(directory.file(VRRP_PID_FILE)).ok()?;
    let pid: i32 = text.trim().parse().ok().filter(|pid| *pid > 1)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    let is_zombie = fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "));
    (name.trim() == PROGRAM && !is_zombie).then(|| Pid::from_raw(pid))
}

/// Repeats keepalived's log in this one's.
async fn log(output: impl AsyncRead + Unpin) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let line = line.trim();
        if !line.is_empty() {
            tracing::debug!(target: "keepalived", "{line}");
        }
    }
}
