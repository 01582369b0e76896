//! Contenders that balance packets, and how each is started.

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::Result;
use signalbox_lab::Ns;

use super::{PORT, PORTS};
use crate::lab::{HOSTS, Lab, VIP};
use crate::process::{self, Running};
use crate::product;

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

    pub(super) fn start(self, lab: &Lab, signalbox: &Path) -> Result<Running> {
        match self {
            Self::Forwarding => Ok(Running::default()),
            Self::Nftables => nftables(&lab.lb),
            Self::Tc => services(lab, signalbox, ""),
            Self::Native => services(lab, signalbox, "layer4: { hook: native }\n"),
        }
    }
}

/// Loads rules that a flow's first packet goes through; for later ones there is connection tracking.
fn nftables(lb: &Ns) -> Result<Running> {
    let ports = format!("{PORT}-{}", PORT + PORTS - 1);
    let [first, second] = HOSTS;
    let rules = format!(
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
    );
    lb.try_must(&["nft", "-f", "-"], &rules)?;
    let mut after = lb.command("nft");
    after.args(["delete", "table", "ip", "balance"]);
    Ok(Running {
        process: None,
        after: Some(after),
    })
}

fn services(lab: &Lab, program: &Path, layer4: &str) -> Result<Running> {
    let host = |(i, host)| format!("      - {{ name: host{i}, address: {host} }}\n");
    let hosts: String = (1..).zip(HOSTS).map(host).collect();
    let last = PORT + PORTS - 1;
    let text = format!(
        "{layer4}services:
  - {{ name: packets, protocol: udp, listen: [\"{VIP}:{PORT}-{last}\"], cluster: hosts }}
clusters:
  - name: hosts
    health: {{ tcp: {{ port: {PORT} }}, interval: 5s, timeout: 2s }}
    hosts:
{hosts}"
    );
    let command = product::run(lab, program, &text)?;
    Ok(Running {
        process: Some(process::start("contender", command, lab.dir())?),
        after: Some(product::detach(&lab.lb, program)),
    })
}
