//! signalbox in the lab: started here, killed by the user, and started again here or from a shell.

use std::io::Result as IoResult;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use signalbox_lab::{Ns, Proc, is_alive, router};

use super::network::Network;
use super::site::{BALANCER, Site};
use crate::process;

/// Names whose TLS ends at signalbox.
const TERMINATED_NAMES: [&str; 2] = ["edge.lab.example", "reencrypt.lab.example"];

/// The signalbox that runs in the balancer's namespace, if one does.
pub(super) struct Balancer {
    ns: Ns,
    dir: PathBuf,
    program: PathBuf,
    socket: PathBuf,
    /// Process that was started here.
    process: Option<Proc>,
    /// Pid of the process that answers on the admin socket: started here or by the operator.
    serving: Option<u32>,
    /// Command line with which an operator starts signalbox.
    command: String,
}

impl Balancer {
    /// Writes signalbox' configuration and starts it.
    pub(super) fn new(site: &Site, network: &Network) -> Result<Self> {
        router::certificate(site.dir(), BALANCER, &TERMINATED_NAMES)?;
        let text = include_str!("signalbox.yaml").replace("@DIR@", &site.dir().display().to_string());
        std::fs::write(config(site), text)?;
        let mut balancer = Self {
            ns: network.balancer.clone(),
            dir: site.dir().to_owned(),
            program: site.program(),
            socket: site.socket(),
            process: None,
            serving: None,
            command: run_command(site),
        };
        balancer.start()?;
        Ok(balancer)
    }

    /// Starts signalbox where none runs.
    pub(super) fn start(&mut self) -> Result<()> {
        if self.is_down() {
            let mut command = process::command(&self.ns, &self.program);
            command.arg("run").arg("--config").arg(self.dir.join(CONFIG));
            // A Ctrl-C is for the lab, which ends its processes itself, in its own order.
            command.process_group(0);
            self.process = Some(process::start("balancer", command, &self.dir)?);
        }
        Ok(())
    }

    /// Whether no signalbox runs, and none is being started.
    pub(super) fn is_down(&self) -> bool {
        self.process.is_none() && self.serving.is_none()
    }

    /// Message about changes since the last call, if there are any.
    pub(super) fn news(&mut self) -> Option<String> {
        let mut news = Vec::new();
        if let Some(process) = &mut self.process
            && let Some(how) = process.ended()
        {
            news.push(format!("signalbox, process {}, has ended: {how}.", process.pid()));
            if how.code().is_some_and(|code| code != 0) {
                news.push(process::last_words(process));
            }
            self.process = None;
        }
        if !self.serving.is_some_and(is_alive) {
            let before = self.serving;
            self.serving = server(&self.socket).ok();
            match (before, self.serving) {
                (_, Some(pid)) => news.push(format!("signalbox serves, as process {pid}.")),
                (Some(pid), None) if news.is_empty() => news.push(format!("signalbox, process {pid}, has ended.")),
                _ => {}
            }
        }
        if !news.is_empty() && self.is_down() {
            news.push(format!(
                "Cut flows continue without it. To start it again, press Enter here, or:\n\n  {}\n",
                self.command
            ));
        }
        (!news.is_empty()).then(|| news.join("\n"))
    }
}

const CONFIG: &str = "signalbox.yaml";

/// Path of signalbox' configuration.
pub(super) fn config(site: &Site) -> PathBuf {
    site.path(CONFIG)
}

/// Beginning of the command with which an operator runs signalbox in the balancer's namespace. Not by `ip netns exec`:
/// that puts a fresh /sys over the one where programs and maps are pinned.
pub(super) fn enter(site: &Site) -> String {
    let namespace = site.namespace(BALANCER);
    format!("nsenter --net=/run/netns/{namespace} {}", site.program().display())
}

fn run_command(site: &Site) -> String {
    format!("{} run --config {} &", enter(site), config(site).display())
}

/// Pid of the process that listens on a socket.
fn server(socket: &Path) -> IoResult<u32> {
    let stream = UnixStream::connect(socket)?;
    Ok(getsockopt(&stream, PeerCredentials)?.pid().cast_unsigned())
}
