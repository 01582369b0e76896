//! Settings of this node in the configuration.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use signalbox_config::load;
use signalbox_core::availability::ha::addresses::{self, OwnedAddress};
use signalbox_core::availability::ha::keepalived::{NodeContext, Tracking, render};
use signalbox_core::model::HighAvailability;
use signalbox_core::model::ha::HaMode;

use crate::interface;

/// Prefixes of addresses on the loopback interface, which has only the addresses themselves.
const LOOPBACK: &str = "lo";

/// Section `ha` of a configuration, completed by facts of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The section.
    pub ha: HighAvailability,
    /// Name of this node.
    pub node: String,
    /// Interface of virtual addresses.
    pub interface: String,
    /// Password of VRRPv2.
    pub password: Option<String>,
    /// Admin socket of signalbox.
    pub socket: PathBuf,
}

impl Settings {
    /// Reads a configuration file.
    pub fn load(config: &Path) -> anyhow::Result<Self> {
        let model = load(config).map_err(anyhow::Error::msg)?.model;
        let Some(ha) = model.ha else {
            bail!(
                "{} has no section `ha`: there are no addresses to share",
                config.display()
            );
        };
        Self::new(ha, model.admin.socket)
    }

    /// Completes the section with facts of this machine.
    pub fn new(ha: HighAvailability, socket: PathBuf) -> anyhow::Result<Self> {
        let host_name = signalbox_sys::node_name();
        let node = ha.own_name(&host_name).to_owned();
        if !ha.nodes.is_empty() && ha.own_slot(&host_name).is_none() {
            let names: Vec<_> = ha.nodes.iter().map(|node| node.name.as_str()).collect();
            let names = names.join(", ");
            bail!(
                "this node is called `{node}`, which is not one of `ha.nodes` ({names}): set `ha.node`, or add it there"
            );
        }
        let interface = match &ha.interface {
            Some(interface) => interface.clone(),
            None if ha.mode == HaMode::Keepalived => interface::of_default_route()?,
            None => LOOPBACK.to_owned(),
        };
        let password = ha.vrrp.password_file.as_deref().map(read_password).transpose()?;
        Ok(Self {
            ha,
            node,
            interface,
            password,
            socket,
        })
    }

    /// Renders keepalived's configuration, with files in `directory`.
    pub fn keepalived(&self, directory: &str) -> anyhow::Result<String> {
        let node = NodeContext {
            name: &self.node,
            interface: &self.interface,
            password: self.password.as_deref(),
            tracking: Tracking::Directory(directory),
        };
        render(&self.ha, &node).map_err(anyhow::Error::msg)
    }

    /// Addresses that this node has while it owns all groups except those for which `is_left_out` holds.
    #[must_use]
    pub fn addresses(&self, is_left_out: impl Fn(&str) -> bool) -> Vec<OwnedAddress> {
        let mut all = Vec::new();
        for group in self.ha.groups.iter().filter(|group| !is_left_out(&group.name)) {
            all.extend(addresses::of_group(group, &self.interface).all().cloned());
        }
        if self.ha.mode == HaMode::Address {
            for owned in &mut all {
                // A longer network would make the machine take packets for all of it.
                owned.prefix = if owned.address.is_ipv4() { 32 } else { 128 };
                LOOPBACK.clone_into(&mut owned.interface);
            }
        }
        all
    }

    /// Address of this node that does not move, where its port is checked.
    #[must_use]
    pub fn own_address(&self) -> IpAddr {
        let node = self.ha.nodes.iter().find(|node| node.name == self.node);
        let own = node.map(|node| node.address);
        let moves = |address: &IpAddr| self.ha.groups.iter().any(|group| group.has(*address));
        own.or_else(|| interface::own_address(&self.interface, moves))
            .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }
}

fn read_password(path: &Path) -> anyhow::Result<String> {
    let text = fs::read_to_string(path).with_context(|| format!("reading the password of VRRP, {}", path.display()))?;
    let password = text.trim();
    if password.is_empty() || password.contains(['"', '\n', '\\']) {
        bail!("{}: a password is one line without `\"` and `\\`", path.display());
    }
    Ok(password.to_owned())
}
