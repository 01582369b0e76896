//! Groups of virtual addresses: by their number, or one by one.

use std::collections::HashMap;
use std::net::IpAddr;

use signalbox_core::availability::ha::ranges::MAX_VIPS;
use signalbox_core::availability::ha::{groups, ids, ranges};
use signalbox_core::model::ha::{FloatingSource, HaNode, VipGroup, Vrrp};

use super::is_interface;
use crate::map::MapDecoder;
use crate::node::{NodeKind, NodeRef, Position};
use crate::report::{Report, quote};
use crate::scalar::optional_value;
use crate::unique::UniqueNames;

/// Most groups: as many as there are virtual router ids.
const MAX_GROUPS: usize = 255;
const MAX_SOURCES: usize = 64;

/// Decodes `vips` and `groups` of the section at `section`.
pub(super) fn decode(
    section: &NodeRef<'_>,
    vips: Option<&NodeRef<'_>>,
    groups: Option<&NodeRef<'_>>,
    nodes: &[HaNode],
    vrrp: &Vrrp,
    report: &mut Report,
) -> Option<Vec<VipGroup>> {
    let mut owners = AddressOwners::default();
    let is_list = |place: &NodeRef<'_>| matches!(place.node.kind, NodeKind::List(_));
    let decoded = match (vips, groups) {
        (Some(vips), Some(list)) if is_list(list) => {
            vips.error(
                report,
                "`vips` needs a number as `groups`: in a list of `groups`, write `vips` in each of them",
            );
            None
        }
        (None, Some(list)) if is_list(list) => group_list(list, nodes, &mut owners, report),
        (None, _) => {
            section.error(
                report,
                "there are no addresses to share: give `vips`, or a list of `groups` that have some",
            );
            None
        }
        (Some(vips), count) => {
            let addresses = self::vips(vips, &mut owners, report)?;
            let count = match count {
                Some(place) => place.number(1, MAX_GROUPS, report)?,
                None => addresses.len(),
            };
            Some(groups::divide(&addresses, count))
        }
    }?;
    let named: Vec<_> = decoded.iter().map(VipGroup::named).collect();
    if let Err(problem) = ids::assign(&named, vrrp.id_offset, &vrrp.exclude_ids) {
        groups.or(vips).unwrap_or(section).error(report, problem);
    }
    Some(decoded)
}

fn group_list(
    place: &NodeRef<'_>,
    nodes: &[HaNode],
    owners: &mut AddressOwners,
    report: &mut Report,
) -> Option<Vec<VipGroup>> {
    let (mut all, mut unique) = (Some(Vec::new()), UniqueNames::default());
    let mut items = place.items("groups", MAX_GROUPS, report)?.peekable();
    if items.peek().is_none() {
        place.error(report, "there are no groups: give at least one");
        return None;
    }
    for item in items {
        match (group(&item, nodes, &mut unique, owners, report), &mut all) {
            (Some(group), Some(all)) => all.push(group),
            _ => all = None,
        }
    }
    all
}

fn group(
    place: &NodeRef<'_>,
    nodes: &[HaNode],
    unique: &mut UniqueNames,
    owners: &mut AddressOwners,
    report: &mut Report,
) -> Option<VipGroup> {
    let mut map = MapDecoder::open(place, report)?;
    let name = map.require("name");
    let vips = map.require("vips");
    let sources = map.take("sources");
    let prefer = map.take("prefer");
    let id = map.take("id");
    map.finish(report);
    let name = name.and_then(|place| unique.name(&place, "group", report));
    let vips = vips.and_then(|place| self::vips(&place, owners, report));
    let sources = optional_value(sources.as_ref(), |place| self::sources(place, owners, report));
    let prefer = optional_value(prefer.as_ref(), |place| {
        let wanted = place.name(report)?;
        if nodes.iter().any(|node| node.name == wanted) {
            return Some(wanted.to_owned());
        }
        let names = nodes.iter().map(|node| node.name.as_str());
        let guess = crate::report::did_you_mean(report.suggest(wanted, names));
        place.error(report, format!("{} is not one of the `nodes`{guess}", quote(wanted)));
        None
    });
    Some(VipGroup {
        name: name?,
        id: optional_value(id.as_ref(), |place| place.number(1, 255, report))?,
        vips: vips?,
        sources: sources?.unwrap_or_default(),
        prefer: prefer?,
    })
}

/// Decodes addresses and ranges: one text with commas, or a list of such texts.
fn vips(place: &NodeRef<'_>, owners: &mut AddressOwners, report: &mut Report) -> Option<Vec<IpAddr>> {
    let mut all = Some(Vec::new());
    let mut add = |place: &NodeRef<'_>, report: &mut Report| {
        let found = place.text(report).and_then(|text| {
            let parsed = ranges::parse(text);
            parsed.map_err(|problem| place.error(report, problem)).ok()
        });
        let mut is_free = |address: &IpAddr, report: &mut Report| owners.claim(*address, place, report);
        match (found, &mut all) {
            (Some(found), Some(all)) if found.iter().all(|address| is_free(address, report)) => all.extend(found),
            _ => all = None,
        }
    };
    if matches!(place.node.kind, NodeKind::List(_)) {
        for item in place.items("addresses", MAX_VIPS, report)? {
            add(&item, report);
        }
    } else {
        add(place, report);
    }
    let all = all?;
    let problem = match all.len() {
        0 => "the list of addresses is empty: give at least one".to_owned(),
        count if count > MAX_VIPS => format!("there are {count} virtual addresses; at most {MAX_VIPS} are allowed"),
        _ => return Some(all),
    };
    place.error(report, problem);
    None
}

fn sources(place: &NodeRef<'_>, owners: &mut AddressOwners, report: &mut Report) -> Option<Vec<FloatingSource>> {
    let mut all = Some(Vec::new());
    for item in place.items("sources", MAX_SOURCES, report)? {
        let source = item.text(report).and_then(|text| {
            let parsed = source(text);
            parsed.map_err(|problem| item.error(report, problem)).ok()
        });
        match (source, &mut all) {
            (Some(source), Some(all)) if owners.claim(source.address, &item, report) => all.push(source),
            _ => all = None,
        }
    }
    all
}

/// Parses `ADDRESS[/LENGTH][@INTERFACE]`.
fn source(text: &str) -> Result<FloatingSource, String> {
    let (net, interface) = match text.split_once('@') {
        Some((net, interface)) => (net, Some(interface)),
        None => (text, None),
    };
    let (address, length) = match net.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (net, None),
    };
    let wrong = || {
        format!(
            "{} is not a source, such as 10.2.0.5/24@eth1, 10.2.0.5 or fd00:2::5/64",
            quote(text)
        )
    };
    let [address] = ranges::parse(address)?[..] else {
        return Err(wrong());
    };
    let most = if address.is_ipv4() { 32 } else { 128 };
    let prefix = match length {
        Some(length) => length.parse().ok().filter(|length| (1..=most).contains(length)),
        None => Some(most),
    };
    if interface.is_some_and(|interface| !is_interface(interface)) {
        return Err(wrong());
    }
    Ok(FloatingSource {
        address,
        prefix: prefix.ok_or_else(|| format!("{}: the prefix length of {address} must be 1 to {most}", quote(text)))?,
        interface: interface.map(str::to_owned),
    })
}

/// Addresses given so far, with their places: each belongs to one group.
#[derive(Default)]
struct AddressOwners(HashMap<IpAddr, Position>);

impl AddressOwners {
    /// Takes an address; a repeated one is reported.
    fn claim(&mut self, address: IpAddr, place: &NodeRef<'_>, report: &mut Report) -> bool {
        let Some(first) = self.0.insert(address, place.position()) else {
            return true;
        };
        let message = format!("{address} is given twice, first on line {}", first.line);
        place.error(report, message);
        false
    }
}
