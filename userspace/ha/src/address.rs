//! Addresses of this machine: which it has, and adding and removing some, by `ip` of iproute2.

use std::collections::HashSet;
use std::net::IpAddr;

use anyhow::Context as _;
use serde::Deserialize;
use signalbox_core::availability::ha::addresses::OwnedAddress;

use crate::program;

#[derive(Deserialize)]
struct Link {
    #[serde(default)]
    ifname: String,
    #[serde(default)]
    addr_info: Vec<AddressInfo>,
}

#[derive(Deserialize)]
struct AddressInfo {
    local: Option<IpAddr>,
    prefixlen: Option<u8>,
}

/// Returns the wanted addresses that this machine has now, each on its interface and with its prefix.
pub(crate) async fn present(wanted: &[OwnedAddress]) -> anyhow::Result<Vec<OwnedAddress>> {
    let text = program::output("ip", &["-json", "address", "show"], "").await?;
    let links: Vec<Link> = serde_json::from_str(&text).context("reading what `ip -json address show` says")?;
    let mut all = HashSet::new();
    for link in links {
        for info in link.addr_info {
            if let (Some(address), Some(prefix)) = (info.local, info.prefixlen) {
                all.insert((address, prefix, link.ifname.clone()));
            }
        }
    }
    let is_present = |owned: &&OwnedAddress| all.contains(&(owned.address, owned.prefix, owned.interface.clone()));
    Ok(wanted.iter().filter(is_present).cloned().collect())
}

/// Adds addresses; those that are there stay.
pub(crate) async fn add(addresses: &[OwnedAddress]) -> anyhow::Result<()> {
    batch("replace", addresses).await
}

/// Removes those of the addresses that this machine has, and returns them.
pub(crate) async fn remove(addresses: &[OwnedAddress]) -> anyhow::Result<Vec<OwnedAddress>> {
    let present = present(addresses).await?;
    batch("delete", &present).await?;
    Ok(present)
}

async fn batch(verb: &str, addresses: &[OwnedAddress]) -> anyhow::Result<()> {
    let mut lines = String::new();
    for owned in addresses {
        let no_dad = if verb == "replace" && owned.address.is_ipv6() {
            " nodad"
        } else {
            ""
        };
        let OwnedAddress {
            address,
            prefix,
            interface,
        } = owned;
        lines += &format!("address {verb} {address}/{prefix} dev {interface}{no_dad}\n");
    }
    if !lines.is_empty() {
        program::output("ip", &["-force", "-batch", "-"], &lines).await?;
    }
    Ok(())
}
