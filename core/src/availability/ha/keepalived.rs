//! keepalived's configuration, as keepalived.conf(5) of version 2.2 describes it.

mod globals;

use std::fmt::Write as _;
use std::time::Duration;

use super::addresses::{self, OwnedAddress};
use super::{ids, priority};
use crate::model::HighAvailability;
use crate::model::ha::{Preemption, VipGroup, VrrpVersion};

/// Addresses of an advert. keepalived drops an advert whose number of addresses differs from its own instance's. With
/// all addresses in it, nodes whose lists differ during a roll-out would all be owners.
const ADVERT_ADDRESSES: usize = 1;
/// Bytes of a password that VRRPv2 has room for.
const PASSWORD_BYTES: usize = 8;
/// Name of the file or script that says whether this node may have addresses.
const READY: &str = "ready";

/// Node that a configuration is for.
#[derive(Clone, Debug)]
pub struct NodeContext<'a> {
    /// Name of the node.
    pub name: &'a str,
    /// Interface of virtual addresses whose group names no other.
    pub interface: &'a str,
    /// Password of VRRPv2; `None`: the beginning of the configuration's name.
    pub password: Option<&'a str>,
    /// Way by which keepalived learns whether the node is well.
    pub tracking: Tracking<'a>,
}

/// Way by which keepalived learns whether the node is well, and where it reports states.
#[derive(Clone, Debug)]
pub enum Tracking<'a> {
    /// Files and a FIFO in the directory of a supervisor.
    Directory(&'a str),
    /// A program that keepalived runs itself.
    Script {
        /// Command line of the program.
        command: &'a str,
        /// Time between two runs.
        interval: Duration,
    },
}

/// Path of the file that says whether this node may have addresses: 0, or 1 if it may not.
#[must_use]
pub fn ready_file(directory: &str) -> String {
    format!("{directory}/{READY}")
}

/// Path of the file that says whether the node keeps away from a group: 0, or 1 if it does.
#[must_use]
pub fn release_file(directory: &str, group: &str) -> String {
    format!("{directory}/release_{group}")
}

/// Group that a file of this name is for; see [`release_file`].
#[must_use]
pub fn group_of_file(name: &str) -> Option<&str> {
    name.strip_prefix("release_")
}

/// Path of the FIFO where keepalived reports states.
#[must_use]
pub fn fifo(directory: &str) -> String {
    format!("{directory}/notify.fifo")
}

/// Instance of VRRP: a group, or its addresses of one family.
struct Instance<'a> {
    name: String,
    is_ipv6: bool,
    adverts: &'a [OwnedAddress],
    others: Vec<&'a OwnedAddress>,
}

/// Renders the configuration of a node.
pub fn render(ha: &HighAvailability, node: &NodeContext<'_>) -> Result<String, String> {
    let groups: Vec<_> = ha.groups.iter().map(VipGroup::named).collect();
    let ids = ids::assign(&groups, ha.vrrp.id_offset, &ha.vrrp.exclude_ids)?;
    let priorities = priority::own_priorities(ha, node.name);
    let mut out = String::from("# Written by signalbox: changes are lost.\n");
    globals::globals(&mut out, ha, node);
    globals::tracked(&mut out, ha, node);
    for ((group, id), priority) in ha.groups.iter().zip(ids).zip(priorities) {
        let owned = addresses::of_group(group, node.interface);
        let instances = instances(ha, group, &owned)?;
        if instances.len() > 1 {
            sync_group(&mut out, ha, group, &instances, node);
        }
        for instance in &instances {
            let is_alone = instances.len() == 1;
            render_instance(&mut out, ha, node, instance, (id, priority), is_alone.then_some(group));
        }
    }
    Ok(out)
}

/// Divides a group's addresses: by family, unless adverts are sent to nodes of one family.
fn instances<'a>(
    ha: &HighAvailability,
    group: &VipGroup,
    owned: &'a addresses::GroupAddresses,
) -> Result<Vec<Instance<'a>>, String> {
    let unicast = ha.unicast_family();
    let (v4, v6) = (&owned.vips_v4[..], &owned.vips_v6[..]);
    if let Some(is_ipv6) = unicast {
        let (adverts, others) = if is_ipv6 { (v6, v4) } else { (v4, v6) };
        if adverts.is_empty() {
            return Err(no_address_of_family(group, is_ipv6));
        }
        let name = group.name.clone();
        let others = others.iter().chain(&owned.sources).collect();
        return Ok(vec![Instance {
            name,
            is_ipv6,
            adverts,
            others,
        }]);
    }
    let both = !v4.is_empty() && !v6.is_empty();
    let mut instances = Vec::new();
    for (is_ipv6, adverts, family) in [(false, v4, "ipv4"), (true, v6, "ipv6")] {
        if adverts.is_empty() {
            continue;
        }
        let is_here = |source: &&OwnedAddress| !both || source.address.is_ipv6() == is_ipv6;
        instances.push(Instance {
            name: if both {
                format!("{}:{family}", group.name)
            } else {
                group.name.clone()
            },
            is_ipv6,
            adverts,
            others: owned.sources.iter().filter(is_here).collect(),
        });
    }
    Ok(instances)
}

/// Reason why a group cannot be shared by unicast.
#[must_use]
pub fn no_address_of_family(group: &VipGroup, is_ipv6: bool) -> String {
    let family = if is_ipv6 { "IPv6" } else { "IPv4" };
    format!(
        "group `{}` has no {family} address, but `nodes` reach each other by {family}: with `unicast` each group needs one",
        group.name
    )
}

fn sync_group(
    out: &mut String,
    ha: &HighAvailability,
    group: &VipGroup,
    instances: &[Instance<'_>],
    node: &NodeContext<'_>,
) {
    line(out, 0, &format!("vrrp_sync_group {} {{", group.name));
    line(out, 1, "group {");
    for instance in instances {
        line(out, 2, &instance.name);
    }
    line(out, 1, "}");
    notify(out, ha, node);
    tracking(out, group, node);
    line(out, 0, "}");
}

/// Writes the program that hears of changes, where no supervisor calls it.
fn notify(out: &mut String, ha: &HighAvailability, node: &NodeContext<'_>) {
    if let (Tracking::Script { .. }, Some(program)) = (&node.tracking, &ha.notify) {
        line(out, 1, &format!("notify \"{}\"", program.display()));
    }
}

/// Writes what a group or instance depends on.
fn tracking(out: &mut String, group: &VipGroup, node: &NodeContext<'_>) {
    let (kind, released) = match node.tracking {
        Tracking::Directory(_) => ("track_file", Some(format!("release_{}", group.name))),
        Tracking::Script { .. } => ("track_script", None),
    };
    line(out, 1, &format!("{kind} {{"));
    line(out, 2, READY);
    if let Some(released) = released {
        line(out, 2, &released);
    }
    line(out, 1, "}");
    let mut others: Vec<_> = group
        .sources
        .iter()
        .filter_map(|source| source.interface.as_deref())
        .collect();
    others.retain(|interface| *interface != node.interface);
    others.sort_unstable();
    others.dedup();
    if others.is_empty() {
        return;
    }
    // A node that cannot reach hosts from the group's sources cannot serve clients.
    line(out, 1, "track_interface {");
    others.iter().for_each(|interface| line(out, 2, interface));
    line(out, 1, "}");
}

fn render_instance(
    out: &mut String,
    ha: &HighAvailability,
    node: &NodeContext<'_>,
    instance: &Instance<'_>,
    (id, priority): (u8, u8),
    alone: Option<&VipGroup>,
) {
    let version = if instance.is_ipv6 {
        VrrpVersion::V3
    } else {
        ha.vrrp.version
    };
    line(out, 0, &format!("vrrp_instance {} {{", instance.name));
    // Always: preemption is obeyed only by instances that begin so.
    line(out, 1, "state BACKUP");
    line(out, 1, &format!("interface {}", node.interface));
    line(out, 1, &format!("version {}", version_number(version)));
    line(out, 1, &format!("virtual_router_id {id}"));
    line(out, 1, &format!("priority {priority}"));
    line(out, 1, &format!("advert_int {}", advert(ha.vrrp.advert, version)));
    match ha.preemption {
        Preemption::WhenSynced => {}
        Preemption::Delay(delay) => line(out, 1, &format!("preempt_delay {}", seconds(delay))),
        Preemption::Never => line(out, 1, "nopreempt"),
    }
    if version == VrrpVersion::V2 {
        authentication(out, ha, node);
    }
    if ha.unicast_family().is_some() {
        unicast(out, ha, node);
    }
    notify(out, ha, node);
    if let Some(group) = alone {
        tracking(out, group, node);
    }
    let (shown, hidden) = instance.adverts.split_at(instance.adverts.len().min(ADVERT_ADDRESSES));
    addresses_block(out, "virtual_ipaddress", shown.iter());
    addresses_block(
        out,
        "virtual_ipaddress_excluded",
        hidden.iter().chain(instance.others.iter().copied()),
    );
    line(out, 0, "}");
}

fn authentication(out: &mut String, ha: &HighAvailability, node: &NodeContext<'_>) {
    let password = node.password.unwrap_or(&ha.name);
    let end = password
        .char_indices()
        .map(|(at, c)| at + c.len_utf8())
        .take_while(|end| *end <= PASSWORD_BYTES);
    let password = &password[..end.last().unwrap_or(0)];
    line(out, 1, "authentication {");
    line(out, 2, "auth_type PASS");
    line(out, 2, &format!("auth_pass \"{password}\""));
    line(out, 1, "}");
}

fn unicast(out: &mut String, ha: &HighAvailability, node: &NodeContext<'_>) {
    let is_own = |name: &str| name == node.name;
    if let Some(own) = ha.nodes.iter().find(|other| is_own(&other.name)) {
        line(out, 1, &format!("unicast_src_ip {}", own.address));
    }
    line(out, 1, "unicast_peer {");
    for peer in ha.nodes.iter().filter(|other| !is_own(&other.name)) {
        line(out, 2, &peer.address.to_string());
    }
    line(out, 1, "}");
}

fn addresses_block<'a>(out: &mut String, name: &str, addresses: impl Iterator<Item = &'a OwnedAddress>) {
    let mut addresses = addresses.peekable();
    if addresses.peek().is_none() {
        return;
    }
    line(out, 1, &format!("{name} {{"));
    for OwnedAddress {
        address,
        prefix,
        interface,
    } in addresses
    {
        // By default keepalived leaves duplicate address detection out, which would be an outage of two seconds.
        line(out, 2, &format!("{address}/{prefix} dev {interface}"));
    }
    line(out, 1, "}");
}

fn advert(time: Duration, version: VrrpVersion) -> String {
    match version {
        VrrpVersion::V2 => (time.as_secs() + u64::from(time.subsec_nanos() > 0)).to_string(),
        VrrpVersion::V3 => seconds(time),
    }
}

/// Shows a time in seconds, with decimals if it has a fraction.
fn seconds(time: Duration) -> String {
    let text = format!("{}.{:03}", time.as_secs(), time.subsec_millis());
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

const fn version_number(version: VrrpVersion) -> u8 {
    match version {
        VrrpVersion::V2 => 2,
        VrrpVersion::V3 => 3,
    }
}

/// Name with `_` for everything but letters, digits and `_`, as OpenShift's ipfailover writes names.
#[must_use]
pub fn scrubbed(name: &str) -> String {
    name.replace(|c: char| !c.is_ascii_alphanumeric(), "_")
}

fn line(out: &mut String, depth: usize, text: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{:width$}{text}", "", width = 4 * depth);
}

#[cfg(test)]
mod tests;
