//! Contenders that balance packets, and how each is started.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::{PORT, PORTS};
use crate::lab::{HOSTS, Lab, Ns, VIP};
use crate::process::Process;

/// A contender by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PacketContender {
    /// No balancer: the client chooses the host, and the kernel forwards. The limit.
    Forwarding,
    /// DNAT by a hash of the flow, and masquerading, with connection tracking.
    Nftables,
    /// signalbox with its default on a veth: TC programs.
    Tc,
    /// signalbox with `layer4: { hook: native }`: XDP programs.
    Native,
}

impl PacketContender {
    pub(super) const ALL: [Self; 4] = [Self::Forwarding, Self::Nftables, Self::Tc, Self::Native];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Forwarding => "forwarding",
            Self::Nftables => "nftables",
            Self::Tc => "signalbox, TC",
            Self::Native => "signalbox, XDP on veth",
        }
    }

    /// Addresses that the client sends to, port by port in turns.
    pub(super) fn targets(self) -> &'static [Ipv4Addr] {
        match self {
            Self::Forwarding => &HOSTS,
            _ => &[VIP],
        }
    }

    pub(super) fn start(self, lab: &Lab, signalbox: &Path) -> Result<RunningPacketContender> {
        match self {
            Self::Forwarding => Ok(RunningPacketContender::default()),
            Self::Nftables => nftables(&lab.lb),
            Self::Tc => services(lab, signalbox, ""),
            Self::Native => services(lab, signalbox, "layer4: { hook: native }\n"),
        }
    }
}

/// A contender at work, until dropped.
#[derive(Default)]
pub(super) struct RunningPacketContender {
    process: Option<Process>,
    /// Command that removes what outlives the process, or needs none.
    after: Option<Command>,
}

impl RunningPacketContender {
    /// Last output of the contender, if it has ended by itself.
    pub(super) fn death(&mut self) -> Option<String> {
        let process = self.process.as_mut()?;
        (!process.is_running()).then(|| process.last_words())
    }
}

impl Drop for RunningPacketContender {
    fn drop(&mut self) {
        self.process = None;
        if let Some(mut after) = self.after.take() {
            let _ = after.output();
        }
    }
}

/// Loads rules that a flow's first packet goes through; for later ones there is connection tracking.
fn nftables(lb: &Ns) -> Result<RunningPacketContender> {
    let ports = format!("{PORT}-{}", PORT + PORTS - 1);
    let [first, second] = HOSTS;
    lb.nft(&format!(
        "table ip balance {{
           chain in {{
             type nat hook prerouting priority dstnat
             ip daddr {VIP} udp dport {ports} dnat to \
               jhash ip saddr . udp sport . udp dport mod 2 map {{ 0 : {first}, 1 : {second} }}
           }}
           chain out {{
             type nat hook postrouting priority srcnat
             udp dport {ports} masquerade
           }}
         }}"
    ))?;
    let mut after = lb.command("nft");
    after.args(["delete", "table", "ip", "balance"]);
    Ok(RunningPacketContender {
        process: None,
        after: Some(after),
    })
}

fn services(lab: &Lab, program: &Path, layer4: &str) -> Result<RunningPacketContender> {
    let config = lab.dir().join("signalbox.yaml");
    let socket = lab.dir().join("admin.sock");
    let socket = socket.to_str().context("the temporary directory's name is not UTF-8")?;
    let host = |(i, host)| format!("      - {{ name: host{i}, address: {host} }}\n");
    let hosts: String = (1..).zip(HOSTS).map(host).collect();
    let last = PORT + PORTS - 1;
    let text = format!(
        "version: 1
admin: {{ listen: none, socket: {socket} }}
store: {{ path: {socket}.redb }}
{layer4}services:
  - {{ name: packets, protocol: udp, listen: [\"{VIP}:{PORT}-{last}\"], cluster: hosts }}
clusters:
  - name: hosts
    health: {{ tcp: {{ port: {PORT} }}, interval: 5s, timeout: 2s }}
    hosts:
{hosts}"
    );
    std::fs::write(&config, text)?;
    let mut command = lab.lb.command(program);
    command.arg("run").arg("--config").arg(config).args(["--log", "warn"]);
    // Pinned programs and maps outlive the process.
    let mut after = lab.lb.command(program);
    after.arg("detach");
    Ok(RunningPacketContender {
        process: Some(Process::start("contender", command, lab.dir())?),
        after: Some(after),
    })
}
