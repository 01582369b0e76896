//! A network namespace: commands, threads and sockets inside it.

use std::fs::File;
use std::io::Write;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, setns};

/// Congestion control of all connections: the kernel's own default.
const CONGESTION: &str = "cubic";

/// A namespace by its name under `/run/netns`. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Ns {
    name: Arc<str>,
    handle: Arc<File>,
}

impl Ns {
    /// Makes a namespace.
    pub(crate) fn create(name: &str) -> Result<Self> {
        run(Command::new("ip").args(["netns", "add", name]), "")?;
        Self::open(name)
    }

    /// Opens a namespace that exists.
    pub(crate) fn open(name: &str) -> Result<Self> {
        let handle = File::open(format!("/run/netns/{name}"))?;
        Ok(Self {
            name: name.into(),
            handle: Arc::new(handle),
        })
    }

    /// Name of the namespace.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Moves this thread into the namespace, for good: only for threads made for that.
    pub(crate) fn enter(&self) -> Result<()> {
        setns(&*self.handle, CloneFlags::CLONE_NEWNET).with_context(|| format!("enter {}", self.name))
    }

    /// Runs `work` on a thread inside the namespace. Sockets it opens stay inside wherever they are used.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enter()?;
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A command that will run inside the namespace, with the pid of the command itself, and that dies with this
    /// process: even SIGKILL leaves no balancer behind (save workers of nginx, which the next start removes).
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", self.name))
            .args(["--", "setpriv", "--pdeathsig", "KILL", "--"])
            .arg(program);
        command
    }

    /// Runs lines of `ip -batch` in the namespace.
    pub(crate) fn ip(&self, lines: &str) -> Result<()> {
        run(Command::new("ip").args(["-n", &self.name, "-batch", "-"]), lines)
    }

    /// Sets `name=value` pairs of sysctl in the namespace.
    pub(super) fn sysctl(&self, settings: &[&str]) -> Result<()> {
        let net = format!("--net=/run/netns/{}", self.name);
        run(Command::new("nsenter").args([&net, "sysctl", "-qw"]).args(settings), "")
    }

    /// Loads rules of `nft -f` in the namespace.
    pub(crate) fn nft(&self, rules: &str) -> Result<()> {
        run(self.command("nft").args(["-f", "-"]), rules)
    }

    /// Has the namespace's end of a veth poll for packets (NAPI): only so it takes those that XDP sends from the other
    /// end.
    pub(crate) fn poll_packets(&self) -> Result<()> {
        run(self.command("ethtool").args(["-K", "eth0", "gro", "on"]), "")
    }

    /// Connects this namespace, the balancer's, by a veth pair to `ns`, which sends everything through it.
    ///
    /// Routes say which congestion control is used, because a namespace may not choose one by sysctl that the machine
    /// does not allow to everybody, and would else inherit the machine's: with BBR, pacing is most of what is measured.
    pub(crate) fn join(&self, ns: &Self, link: &str, gateway: Ipv4Addr, addresses: &[Ipv4Addr]) -> Result<()> {
        let (peer, first) = (ns.name(), addresses[0]);
        let [a, b, c, _] = gateway.octets();
        let net = format!("{a}.{b}.{c}.0/24");
        self.ip(&format!(
            "link add {link} type veth peer name eth0 netns {peer}
             addr add {gateway}/24 dev {link}
             link set {link} up
             route replace {net} dev {link} src {gateway} congctl {CONGESTION}"
        ))?;
        let addresses: String = addresses
            .iter()
            .map(|a| format!("addr add {a}/24 dev eth0\n"))
            .collect();
        ns.ip(&format!(
            "{addresses}link set eth0 up
             route replace {net} dev eth0 src {first} congctl {CONGESTION}
             route add default via {gateway} congctl {CONGESTION}"
        ))
    }
}

/// Runs a command that must succeed, with `input` on its stdin.
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
