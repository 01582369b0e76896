//! High availability: virtual addresses and the nodes that share them.

mod groups;
mod sync;
mod vrrp;
mod watch;

use signalbox_core::model::HighAvailability;
use signalbox_core::model::ha::{DEFAULT_HA_NAME, HaMode, HaNode, MAX_HA_NODES};

use super::address::BindOwners;
use super::error::{ConfigError, ConfigErrors};
use super::map::MapDecoder;
use super::node::NodeRef;
use super::read::read;
use super::report::{Report, quote};
use super::scalar::{optional_value, or_default};
use super::unique::UniqueNames;

const MODES: [(&str, HaMode); 3] = [
    (HaMode::Keepalived.as_str(), HaMode::Keepalived),
    (HaMode::Address.as_str(), HaMode::Address),
    (HaMode::External.as_str(), HaMode::External),
];

const FIREWALL: [(&str, bool); 2] = [("accept", true), ("off", false)];

/// Longest name of an interface, in bytes: `IFNAMSIZ` less its closing NUL.
const MAX_INTERFACE_BYTES: usize = 15;

/// Parses the section alone; on failure, with all of its mistakes. The second part are its oddities.
pub fn parse(text: &str) -> Result<(HighAvailability, Vec<ConfigError>), ConfigErrors> {
    let mut report = Report::default();
    let parsed = read(text, "`vips` or `groups`", &mut report);
    let parsed = parsed.and_then(|root| decode(&NodeRef::root(&root), &mut BindOwners::default(), &mut report));
    match parsed {
        Some(ha) if report.is_clean() => Ok((ha, report.take_warnings())),
        _ => Err(report.into_errors(text)),
    }
}

/// Decodes the section; its addresses must not be in `taken`, and are added to it. `None`: there is a mistake.
pub(super) fn decode(place: &NodeRef<'_>, taken: &mut BindOwners, report: &mut Report) -> Option<HighAvailability> {
    let mut map = MapDecoder::open(place, report)?;
    let name = map.take("name");
    let mode = map.take("mode");
    let node = map.take("node");
    let nodes_at = map.take("nodes");
    let interface = map.take("interface");
    let vips = map.take("vips");
    let groups = map.take("groups");
    let watch = map.take("watch");
    let preemption = map.take("preemption");
    let vrrp_at = map.take("vrrp");
    let notify = map.take("notify");
    let firewall = map.take("firewall");
    let email = map.take("email");
    let sync_at = map.take("sync");
    map.finish(report);

    let name = optional_value(name.as_ref(), |place| place.name(report).map(str::to_owned));
    let nodes = optional_value(nodes_at.as_ref(), |place| nodes(place, report));
    let known = nodes.as_ref().and_then(Option::as_deref).unwrap_or_default();
    let node = optional_value(node.as_ref(), |place| own_node(place, known, report));
    let interface = optional_value(interface.as_ref(), |place| place.interface(report));
    let vrrp = vrrp::decode(vrrp_at.as_ref(), report);
    let groups = groups::decode(place, vips.as_ref(), groups.as_ref(), known, &vrrp, report);
    let notify = optional_value(notify.as_ref(), |place| watch::program(place, report));
    let email = optional_value(email.as_ref(), |place| watch::email(place, report));
    let sync = optional_value(sync_at.as_ref(), |place| sync::decode(place, taken, report));
    if let (Some(place), Some(nodes)) = (&sync_at, &nodes)
        && nodes.as_ref().map_or(0, Vec::len) < 2
    {
        place.error(report, "flows are replicated between `nodes`: give at least two");
    }
    let mode = or_default(mode.as_ref(), HaMode::default(), |place| {
        place.keyword("a mode", &MODES, report)
    });
    if let (Some(place), HaMode::Address) = (&sync_at, mode) {
        place.warn(
            report,
            "with `mode: address` each node considers itself the owner of all addresses, and connections are not \
             protected: see docs/high-availability.md, BGP",
        );
    }
    let watch = watch::decode(watch.as_ref(), report);
    let preemption = vrrp::preemption(preemption.as_ref(), report);
    let firewall = or_default(firewall.as_ref(), false, |place| {
        place.keyword("a setting of the firewall", &FIREWALL, report)
    });
    let ha = HighAvailability {
        name: name?.unwrap_or_else(|| DEFAULT_HA_NAME.to_owned()),
        mode,
        node: node?,
        nodes: nodes?.unwrap_or_default(),
        interface: interface?,
        groups: groups?,
        watch,
        preemption,
        vrrp,
        notify: notify?,
        firewall,
        email: email?,
        sync: sync?,
    };
    vrrp::check(&ha, place, vrrp_at.as_ref(), report);
    Some(ha)
}

fn own_node(place: &NodeRef<'_>, nodes: &[HaNode], report: &mut Report) -> Option<String> {
    let own = place.name(report)?;
    if nodes.is_empty() || nodes.iter().any(|node| node.name == own) {
        return Some(own.to_owned());
    }
    let names: Vec<_> = nodes.iter().map(|node| node.name.as_str()).collect();
    let message = format!("{} is not one of the `nodes` ({})", quote(own), names.join(", "));
    place.error(report, message);
    None
}

fn nodes(place: &NodeRef<'_>, report: &mut Report) -> Option<Vec<HaNode>> {
    let (mut all, mut unique) = (Some(Vec::<HaNode>::new()), UniqueNames::default());
    for item in place.items("nodes", MAX_HA_NODES, report)? {
        let node = node(&item, &mut unique, report);
        match (node, &mut all) {
            (Some(node), Some(all)) => {
                if let Some(other) = all.iter().find(|other| other.address == node.address) {
                    let (address, name) = (node.address, quote(&other.name));
                    let message = format!("{address} is already the address of node {name}: give each node its own");
                    item.error(report, message);
                }
                all.push(node);
            }
            _ => all = None,
        }
    }
    all
}

fn node(place: &NodeRef<'_>, unique: &mut UniqueNames, report: &mut Report) -> Option<HaNode> {
    let mut map = MapDecoder::open(place, report)?;
    let name = map.require("name");
    let address = map.require("address");
    map.finish(report);
    let name = name.and_then(|place| unique.name(&place, "node", report));
    let address = address.and_then(|place| place.host_address(report));
    Some(HaNode {
        name: name?,
        address: address?,
    })
}

impl NodeRef<'_> {
    /// Value as the name of a network interface.
    fn interface(&self, report: &mut Report) -> Option<String> {
        let text = self.text(report)?;
        if is_interface(text) {
            return Some(text.to_owned());
        }
        let text = quote(text);
        self.error(
            report,
            format!(
                "{text} is not the name of an interface: 1 to {MAX_INTERFACE_BYTES} letters, digits, `.`, `_` or `-`"
            ),
        );
        None
    }
}

/// Whether the text can name an interface, also in keepalived's configuration.
fn is_interface(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=MAX_INTERFACE_BYTES).contains(&text.len()) && text.bytes().all(allowed) && !matches!(text, "." | "..")
}
