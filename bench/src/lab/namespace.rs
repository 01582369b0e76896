//! A network namespace: commands, threads and sockets inside it.

use std::fs::File;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, setns};

/// A namespace by its name under `/run/netns`. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Ns {
    name: Arc<str>,
    handle: Arc<File>,
}

impl Ns {
    /// Makes it.
    pub(super) fn create(name: &str) -> Result<Self> {
        run(Command::new("ip").args(["netns", "add", name]), "")?;
        let handle = File::open(format!("/run/netns/{name}"))?;
        Ok(Self {
            name: name.into(),
            handle: Arc::new(handle),
        })
    }

    /// The name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Moves this thread into it, for good: only for threads made for that.
    pub(crate) fn enter(&self) -> Result<()> {
        setns(&*self.handle, CloneFlags::CLONE_NEWNET).with_context(|| format!("enter {}", self.name))
    }

    /// Runs `work` on a thread inside. Sockets it opens stay inside wherever they are used.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enter()?;
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A command that will run inside, with the pid of the command itself, and that dies with this process: even
    /// SIGKILL leaves no balancer behind (save workers of nginx, which the next start removes).
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", self.name))
            .args(["--", "setpriv", "--pdeathsig", "KILL", "--"])
            .arg(program);
        command
    }

    /// Runs lines of `ip -batch` in it.
    pub(super) fn ip(&self, lines: &str) -> Result<()> {
        run(Command::new("ip").args(["-n", &self.name, "-batch", "-"]), lines)
    }

    /// Sets `name=value` pairs of sysctl in it.
    pub(super) fn sysctl(&self, settings: &[&str]) -> Result<()> {
        let net = format!("--net=/run/netns/{}", self.name);
        run(Command::new("nsenter").args([&net, "sysctl", "-qw"]).args(settings), "")
    }
}

/// Runs a command that must succeed.
fn run(command: &mut Command, input: &str) -> Result<()> {
    let what = format!("{command:?}");
    let mut start = || -> Result<_> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        child
            .stdin
            .take()
            .context("stdin is piped")?
            .write_all(input.as_bytes())?;
        Ok(child.wait_with_output()?)
    };
    let output = start().with_context(|| what.clone())?;
    if !output.status.success() {
        bail!("{what}: {}\n{input}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
