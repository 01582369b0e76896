//! VRRP: its version, timers, ids, and when a node takes over from another.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use signalbox_core::availability::ha::keepalived;
use signalbox_core::model::HighAvailability;
use signalbox_core::model::ha::{HaMode, Preemption, VipGroup, Vrrp, VrrpVersion};

use crate::map::MapDecoder;
use crate::node::{NodeKind, NodeRef};
use crate::report::{Report, quote};
use crate::scalar::{duration_text, or_default};

/// Longest time between adverts of version 3: 4095 hundredths of a second, RFC 9568, 5.2.7.
const MAX_ADVERT_INTERVAL: Duration = Duration::from_millis(40_950);
/// Longest time between adverts of version 2, RFC 3768, 5.3.7.
const MAX_ADVERT_V2_INTERVAL: Duration = Duration::from_secs(255);
/// Unit of adverts of version 3, and so the shortest time between two.
const ADVERT_UNIT_MS: u128 = 10;
/// Longest delay that keepalived takes.
const MAX_PREEMPTION_TIMEOUT: Duration = Duration::from_secs(1000);
/// Bytes of a password that version 2 has room for.
const PASSWORD_BYTES: usize = 8;

/// Decodes the settings of VRRP.
pub(super) fn decode(place: Option<&NodeRef<'_>>, report: &mut Report) -> Vrrp {
    let defaults = Vrrp::default();
    let Some(mut map) = place.and_then(|place| MapDecoder::open(place, report)) else {
        return defaults;
    };
    let version = map.take("version");
    let advert = map.take("advert");
    let unicast = map.take("unicast");
    let id_offset = map.take("id_offset");
    let exclude_ids = map.take("exclude_ids");
    let password_file = map.take("password_file");
    map.finish(report);
    let version = or_default(version.as_ref(), defaults.version, |place| {
        let number = place.number(2, 3, report)?;
        Some(if number == 2 { VrrpVersion::V2 } else { VrrpVersion::V3 })
    });
    if let (Some(place), VrrpVersion::V3) = (&password_file, version) {
        place.error(
            report,
            "VRRPv3 has no password: leave it out, or write `version: 2` for IPv4",
        );
    }
    Vrrp {
        version,
        advert: or_default(advert.as_ref(), version.default_advert(), |place| {
            self::advert(place, version, report)
        }),
        unicast: or_default(unicast.as_ref(), defaults.unicast, |place| place.flag(report)),
        id_offset: or_default(id_offset.as_ref(), defaults.id_offset, |place| {
            place.number(0, 254, report)
        }),
        exclude_ids: exclude_ids
            .and_then(|place| self::exclude_ids(&place, report))
            .unwrap_or_default(),
        password_file: password_file.and_then(|place| place.text(report).map(PathBuf::from)),
    }
}

fn advert(place: &NodeRef<'_>, version: VrrpVersion, report: &mut Report) -> Option<Duration> {
    let advert = place.duration(report)?;
    let most = match version {
        VrrpVersion::V2 => MAX_ADVERT_V2_INTERVAL,
        VrrpVersion::V3 => MAX_ADVERT_INTERVAL,
    };
    let shown = duration_text(advert);
    if advert > most {
        let most = duration_text(most);
        place.error(
            report,
            format!("`{shown}` is too long between two adverts: at most {most}"),
        );
    } else if version == VrrpVersion::V3 && !advert.as_millis().is_multiple_of(ADVERT_UNIT_MS) {
        place.error(
            report,
            format!("`{shown}`: VRRPv3 counts in hundredths of a second: write a multiple of 10ms"),
        );
    } else {
        return Some(advert);
    }
    None
}

fn exclude_ids(place: &NodeRef<'_>, report: &mut Report) -> Option<BTreeSet<u8>> {
    let mut ids = BTreeSet::new();
    for item in place.items("virtual router ids", 255, report)? {
        if !ids.insert(item.number(1, 255, report)?) {
            item.error(report, "this id is given twice: remove one");
        }
    }
    Some(ids)
}

/// Decodes when a node takes over from another; OpenShift's words are accepted, too.
pub(super) fn preemption(place: Option<&NodeRef<'_>>, report: &mut Report) -> Preemption {
    or_default(place, Preemption::default(), |place| {
        if matches!(place.node.kind, NodeKind::Map(_)) {
            let mut map = MapDecoder::open(place, report)?;
            let delay = map.require("delay");
            map.finish(report);
            let at = delay?;
            return checked_delay(at.duration(report)?, &at, report);
        }
        let text = place.text(report)?;
        let seconds = || text.strip_prefix("preempt_delay ")?.trim().parse().ok();
        match text {
            "when-synced" => Some(Preemption::WhenSynced),
            "never" | "nopreempt" => Some(Preemption::Never),
            _ => {
                if let Some(seconds) = seconds() {
                    return checked_delay(Duration::from_secs(seconds), place, report);
                }
                let text = quote(text);
                place.error(
                    report,
                    format!("{text} is neither `when-synced`, `never`, `{{ delay: 300s }}`, `nopreempt` nor `preempt_delay 300`"),
                );
                None
            }
        }
    })
}

fn checked_delay(delay: Duration, place: &NodeRef<'_>, report: &mut Report) -> Option<Preemption> {
    if delay <= MAX_PREEMPTION_TIMEOUT {
        return Some(Preemption::Delay(delay));
    }
    place.error(report, format!("`{}` is too long: at most 1000s", duration_text(delay)));
    None
}

/// Notes contradictions in the section at `section`, and settings that are probably mistakes.
pub(super) fn check(ha: &HighAvailability, section: &NodeRef<'_>, vrrp: Option<&NodeRef<'_>>, report: &mut Report) {
    let place = vrrp.unwrap_or(section);
    if ha.mode != HaMode::Keepalived {
        if let Some(place) = vrrp {
            place.warn(
                report,
                format!("`mode: {}` does not speak VRRP: `vrrp` has no effect", ha.mode.as_str()),
            );
        }
        return;
    }
    let mixed =
        ha.nodes.iter().any(|node| node.address.is_ipv4()) && ha.nodes.iter().any(|node| node.address.is_ipv6());
    if ha.vrrp.unicast && mixed {
        place.error(
            report,
            "`unicast` needs addresses of one family: `nodes` have IPv4 and IPv6",
        );
    }
    if let Some(is_ipv6) = ha.unicast_family() {
        let lacks = |group: &&VipGroup| group.vips.iter().all(|vip| vip.is_ipv6() != is_ipv6);
        if let Some(group) = ha.groups.iter().find(lacks) {
            place.error(report, keepalived::no_address_of_family(group, is_ipv6));
        }
    }
    if ha.vrrp.unicast && ha.nodes.len() < 2 {
        place.warn(
            report,
            "`unicast` has no effect without other `nodes`: adverts are sent by multicast",
        );
    }
    if ha.vrrp.version != VrrpVersion::V2 {
        return;
    }
    if ha.vrrp.advert.subsec_millis() != 0 {
        let shown = duration_text(ha.vrrp.advert);
        place.warn(
            report,
            format!("VRRPv2 counts adverts in whole seconds: `{shown}` is rounded up; `version: 3` has shorter times"),
        );
    }
    if ha.vrrp.password_file.is_none() && ha.name.len() > PASSWORD_BYTES {
        let password = &ha.name[..PASSWORD_BYTES];
        place.warn(
            report,
            format!(
                "the password of VRRPv2 is `{password}`, the first {PASSWORD_BYTES} characters of the name: other \
                 configurations whose names begin alike have the same; give `password_file`"
            ),
        );
    }
}
