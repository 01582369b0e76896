//! The shield: lists of prefixes, limits of sources.

use std::path::PathBuf;
use std::sync::Arc;

use ipnet::IpNet;
use signalbox_core::model::Shield;
use signalbox_core::model::shield::{Lists, Policy, Rate, SourceLimits};

use super::map::Map;
use super::node::Place;
use super::report::Report;
use super::scalar::optional;

/// Most prefixes of a list in the configuration itself; longer lists belong into files.
const MOST_PREFIXES: usize = 100_000;
const MOST_FILES: usize = 64;
/// Least and most sources whose rates are known at once: 32 bytes each.
const SOURCES: [u32; 2] = [1024, 16_777_216];
/// Largest packet in bytes: the kernel may have put it together from several.
const LARGEST: u64 = 65_536;

const MALFORMED: [(&str, bool); 2] = [("drop", true), ("pass", false)];
const COOKIES: [(&str, bool); 2] = [("auto", true), ("off", false)];

/// Decodes the settings common to all, and the default policy of listeners and services (`None`: no shield).
pub(super) fn common(place: Option<&Place<'_>>, report: &mut Report) -> (Shield, Option<Policy>) {
    let defaults = Shield::default();
    let Some(mut map) = place.and_then(|place| Map::open(place, report)) else {
        return (defaults, None);
    };
    let sources = map.take("sources");
    let required = map.take("required");
    let mut policy = policy(map, Policy::default(), report);
    let sources = optional(sources.as_ref(), defaults.sources, |place| {
        place.number(SOURCES[0], SOURCES[1], report)
    });
    let required = optional(required.as_ref(), defaults.required, |place| place.flag(report));
    let lists = std::mem::take(&mut policy.lists);
    let shield = Shield {
        lists,
        sources,
        required,
    };
    (shield, Some(policy))
}

/// Decodes the policy of a listener or a service.
pub(super) fn of(place: Option<&Place<'_>>, default: Option<&Policy>, report: &mut Report) -> Option<Policy> {
    let Some(place) = place else {
        return default.cloned();
    };
    if place.plain() == Some("off") {
        return None;
    }
    let map = Map::open(place, report)?;
    Some(policy(map, default.cloned().unwrap_or_default(), report))
}

fn policy(mut map: Map<'_>, default: Policy, report: &mut Report) -> Policy {
    let deny = map.take("deny");
    let allow = map.take("allow");
    let deny_files = map.take("deny_files");
    let allow_files = map.take("allow_files");
    let malformed = map.take("malformed");
    let syn_cookies = map.take("syn_cookies");
    let limits = map.take("limits");
    map.finish(report);
    let lists = Lists {
        deny: prefixes(deny.as_ref(), report),
        allow: prefixes(allow.as_ref(), report),
        deny_files: files(deny_files.as_ref(), report),
        allow_files: files(allow_files.as_ref(), report),
    };
    Policy {
        lists: Arc::new(lists),
        malformed: optional(malformed.as_ref(), default.malformed, |place| {
            place.word("what becomes of packets that are not possible", &MALFORMED, report)
        }),
        syn_cookies: optional(syn_cookies.as_ref(), default.syn_cookies, |place| {
            place.word("a way with SYN cookies", &COOKIES, report)
        }),
        limits: self::limits(limits.as_ref(), default.limits, report),
    }
}

pub(super) fn prefixes(place: Option<&Place<'_>>, report: &mut Report) -> Vec<IpNet> {
    let Some(items) = place.and_then(|place| place.items("prefixes", MOST_PREFIXES, report)) else {
        return Vec::new();
    };
    items.filter_map(|item| item.prefix(report)).collect()
}

fn files(place: Option<&Place<'_>>, report: &mut Report) -> Vec<PathBuf> {
    let Some(items) = place.and_then(|place| place.items("files", MOST_FILES, report)) else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for item in items {
        if let Some(text) = item.text(report) {
            if text.starts_with('/') {
                all.push(text.into());
            } else {
                item.fault(report, "write the whole path of the file, from / on");
            }
        }
    }
    all
}

fn limits(place: Option<&Place<'_>>, default: SourceLimits, report: &mut Report) -> SourceLimits {
    let Some(mut map) = place.and_then(|place| Map::open(place, report)) else {
        return default;
    };
    let connections = map.take("connections");
    let packets = map.take("packets");
    let bytes = map.take("bytes");
    let concurrent = map.take("concurrent");
    let ipv4_prefix = map.take("ipv4_prefix");
    let ipv6_prefix = map.take("ipv6_prefix");
    map.finish(report);
    SourceLimits {
        connections: rate(connections.as_ref(), default.connections, 1, report),
        packets: rate(packets.as_ref(), default.packets, 1, report),
        bytes: rate(bytes.as_ref(), default.bytes, LARGEST, report),
        concurrent: optional(concurrent.as_ref(), default.concurrent, |place| {
            place.number(0, u32::MAX, report)
        }),
        ipv4_prefix: optional(ipv4_prefix.as_ref(), default.ipv4_prefix, |place| {
            place.number(8, 32, report)
        }),
        ipv6_prefix: optional(ipv6_prefix.as_ref(), default.ipv6_prefix, |place| {
            place.number(16, 128, report)
        }),
    }
}

/// Decodes a rate with a burst of at least `least`, or `off`.
fn rate(place: Option<&Place<'_>>, default: Option<Rate>, least: u64, report: &mut Report) -> Option<Rate> {
    const MOST: u64 = 1 << 40;
    let Some(place) = place else { return default };
    if place.plain() == Some("off") {
        return None;
    }
    let mut map = Map::open(place, report)?;
    let rate = map.require("rate");
    let burst = map.take("burst");
    map.finish(report);
    let rate = rate?.number(1, MOST, report)?;
    let burst = optional(burst.as_ref(), rate.max(least), |place| {
        place.number(least, MOST, report)
    });
    Some(Rate { rate, burst })
}
