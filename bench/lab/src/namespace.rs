//! A network namespace: commands and closures inside it, and cables to others.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, setns};

pub use crate::sockets::connect_here;

/// A namespace by its name under `/run/netns`. Cheap to clone; dropping it removes nothing.
#[derive(Clone)]
pub struct Ns {
    name: Arc<str>,
    handle: Arc<File>,
}

impl Ns {
    /// Makes a namespace, or panics.
    pub fn create(name: &str) -> Self {
        Self::try_create(name).unwrap_or_else(|e| panic!("{e:#}"))
    }

    /// Makes a namespace.
    pub fn try_create(name: &str) -> Result<Self> {
        finish(Command::new("ip").args(["netns", "add", name]), "")?;
        Self::open(name)
    }

    /// Opens a namespace that exists.
    pub fn open(name: &str) -> Result<Self> {
        let path = format!("/run/netns/{name}");
        let handle = File::open(&path).context(path)?;
        Ok(Self {
            name: name.into(),
            handle: Arc::new(handle),
        })
    }

    /// Name of the namespace.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Moves this thread into the namespace for ever: only for threads made for that.
    pub fn enter(&self) -> Result<()> {
        setns(&*self.handle, CloneFlags::CLONE_NEWNET).with_context(|| format!("enter {}", self.name))
    }

    /// Runs `work` on a thread inside the namespace. The sockets it opens stay in the namespace wherever they are used.
    ///
    /// # Panics
    ///
    /// If this process may not enter the namespace, or if `work` panics.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enter().unwrap_or_else(|e| panic!("{e:#}"));
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A command that will run inside. Only the network differs (`nsenter`, not `ip netns exec`, which would also
    /// unmount /sys and with it the bpf file system that a takeover hands over). The child has the command's own pid.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", self.name))
            .arg("--")
            .arg(program);
        command
    }

    /// Runs a command to its end, whether it succeeds or not.
    pub fn output(&self, words: &[&str]) -> Output {
        let output = self.command(words[0]).args(&words[1..]).output();
        output.unwrap_or_else(|e| panic!("{words:?} in {}: {e}", self.name))
    }

    /// Runs a command that must succeed; its standard output.
    pub fn must(&self, words: &[&str]) -> String {
        self.try_must(words, "").unwrap_or_else(|e| panic!("{e:#}"))
    }

    /// Runs a command with `input` on its standard input; its standard output, or why it failed.
    pub fn try_must(&self, words: &[&str], input: &str) -> Result<String> {
        finish(self.command(words[0]).args(&words[1..]), input)
    }

    /// Runs lines of `ip -batch` in the namespace.
    pub fn ip(&self, lines: &str) -> Result<()> {
        finish(Command::new("ip").args(["-n", &self.name, "-batch", "-"]), lines).map(drop)
    }

    /// Sets `name=value` pairs of sysctl in the namespace.
    pub fn sysctl(&self, settings: &[&str]) -> Result<()> {
        self.try_must(&[&["sysctl", "-qw"], settings].concat(), "").map(drop)
    }

    /// Connects this namespace by a veth pair to `peer`: `link` here, `eth0` there, each with addresses such as
    /// `10.1.0.1/24`.
    pub fn cable(&self, link: &str, addresses: &[impl Display], peer: &Self, theirs: &[impl Display]) -> Result<()> {
        let add = format!("link add {link} type veth peer name eth0 netns {}\n", peer.name);
        self.ip(&(add + &up(link, addresses)))?;
        peer.ip(&up("eth0", theirs))
    }
}

/// Lines that give a device its addresses.
fn up(device: &str, addresses: &[impl Display]) -> String {
    let each = addresses.iter().map(|a| format!("addr add {a} dev {device} nodad\n"));
    each.collect::<String>() + &format!("link set {device} up\n")
}

/// Runs `ip`, which must succeed.
pub fn ip(words: &[&str]) {
    finish(Command::new("ip").args(words), "").unwrap_or_else(|e| panic!("{e:#}"));
}

/// Runs a command that must succeed, with `input` on its stdin; its standard output.
fn finish(command: &mut Command, input: &str) -> Result<String> {
    let what = format!("{command:?}");
    let mut run = || -> Result<Output> {
        let piped = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = piped.spawn()?;
        // A command that does not read its input may have ended already.
        let _ = child
            .stdin
            .take()
            .context("stdin is piped")?
            .write_all(input.as_bytes());
        Ok(child.wait_with_output()?)
    };
    let output = run().with_context(|| what.clone())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if !output.status.success() {
        let (out, why) = (text(&output.stdout), text(&output.stderr));
        bail!("{what}: {}\n{out}{why}{input}", output.status);
    }
    Ok(text(&output.stdout))
}
