//! The shield: lists of prefixes, limits of sources.

use std::path::PathBuf;
use std::sync::Arc;

use ipnet::IpNet;
use signalbox_core::model::Shield;
use signalbox_core::model::shield::{PrefixLists, RateLimit, ShieldPolicy, SourceLimits};

use super::map::MapDecoder;
use super::node::NodeRef;
use super::report::Report;
use super::scalar::or_default;

/// Most prefixes of a list in the configuration itself; longer lists belong into files.
const MAX_PREFIXES: usize = 100_000;
const MAX_FILES: usize = 64;
/// Least and most sources whose rates are known at once: 32 bytes each.
const SOURCES_RANGE: [u32; 2] = [1024, 16_777_216];
/// Largest packet in bytes: the kernel may have put it together from several.
const MAX_PACKET_BYTES: u64 = 65_536;

const MALFORMED: [(&str, bool); 2] = [("drop", true), ("pass", false)];
const COOKIES: [(&str, bool); 2] = [("auto", true), ("off", false)];

/// Decodes the settings common to all, and the default policy of listeners and services (`None`: no shield).
pub(super) fn common(place: Option<&NodeRef<'_>>, report: &mut Report) -> (Shield, Option<ShieldPolicy>) {
    let defaults = Shield::default();
    let Some(mut map) = place.and_then(|place| MapDecoder::open(place, report)) else {
        return (defaults, None);
    };
    let sources = map.take("sources");
    let required = map.take("required");
    let mut policy = policy(map, ShieldPolicy::default(), report);
    let sources = or_default(sources.as_ref(), defaults.sources, |place| {
        place.number(SOURCES_RANGE[0], SOURCES_RANGE[1], report)
    });
    let required = or_default(required.as_ref(), defaults.required, |place| place.flag(report));
    let lists = std::mem::take(&mut policy.lists);
    let shield = Shield {
        lists,
        sources,
        required,
    };
    (shield, Some(policy))
}

/// Decodes the policy of a listener or a service.
pub(super) fn decode(
    place: Option<&NodeRef<'_>>,
    default: Option<&ShieldPolicy>,
    report: &mut Report,
) -> Option<ShieldPolicy> {
    let Some(place) = place else {
        return default.cloned();
    };
    if place.plain() == Some("off") {
        return None;
    }
    let map = MapDecoder::open(place, report)?;
    Some(policy(map, default.cloned().unwrap_or_default(), report))
}

fn policy(mut map: MapDecoder<'_>, default: ShieldPolicy, report: &mut Report) -> ShieldPolicy {
    let deny = map.take("deny");
    let allow = map.take("allow");
    let deny_files = map.take("deny_files");
    let allow_files = map.take("allow_files");
    let malformed = map.take("malformed");
    let syn_cookies = map.take("syn_cookies");
    let limits = map.take("limits");
    map.finish(report);
    let lists = PrefixLists {
        deny: prefixes(deny.as_ref(), report),
        allow: prefixes(allow.as_ref(), report),
        deny_files: files(deny_files.as_ref(), report),
        allow_files: files(allow_files.as_ref(), report),
    };
    ShieldPolicy {
        lists: Arc::new(lists),
        malformed: or_default(malformed.as_ref(), default.malformed, |place| {
            place.keyword("a setting of malformed packets", &MALFORMED, report)
        }),
        syn_cookies: or_default(syn_cookies.as_ref(), default.syn_cookies, |place| {
            place.keyword("a setting of SYN cookies", &COOKIES, report)
        }),
        limits: self::limits(limits.as_ref(), default.limits, report),
    }
}

pub(super) fn prefixes(place: Option<&NodeRef<'_>>, report: &mut Report) -> Vec<IpNet> {
    let Some(items) = place.and_then(|place| place.items("prefixes", MAX_PREFIXES, report)) else {
        return Vec::new();
    };
    items.filter_map(|item| item.prefix(report)).collect()
}

fn files(place: Option<&NodeRef<'_>>, report: &mut Report) -> Vec<PathBuf> {
    let Some(items) = place.and_then(|place| place.items("files", MAX_FILES, report)) else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for item in items {
        if let Some(text) = item.text(report) {
            if text.starts_with('/') {
                all.push(text.into());
            } else {
                item.error(report, "write the absolute path of the file");
            }
        }
    }
    all
}

fn limits(place: Option<&NodeRef<'_>>, default: SourceLimits, report: &mut Report) -> SourceLimits {
    let Some(mut map) = place.and_then(|place| MapDecoder::open(place, report)) else {
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
        bytes: rate(bytes.as_ref(), default.bytes, MAX_PACKET_BYTES, report),
        concurrent: or_default(concurrent.as_ref(), default.concurrent, |place| {
            place.number(0, u32::MAX, report)
        }),
        ipv4_prefix: or_default(ipv4_prefix.as_ref(), default.ipv4_prefix, |place| {
            place.number(8, 32, report)
        }),
        ipv6_prefix: or_default(ipv6_prefix.as_ref(), default.ipv6_prefix, |place| {
            place.number(16, 128, report)
        }),
    }
}

/// Decodes a rate with a burst of at least `least`, or `off`.
fn rate(place: Option<&NodeRef<'_>>, default: Option<RateLimit>, least: u64, report: &mut Report) -> Option<RateLimit> {
    const MAX_RATE: u64 = 1 << 40;
    let Some(place) = place else { return default };
    if place.plain() == Some("off") {
        return None;
    }
    rate_limit(place, least, MAX_RATE, report)
}

/// Decodes a rate of at most `most`, with a burst of at least `least`.
pub(super) fn rate_limit(place: &NodeRef<'_>, least: u64, most: u64, report: &mut Report) -> Option<RateLimit> {
    let mut map = MapDecoder::open(place, report)?;
    let rate = map.require("rate");
    let burst = map.take("burst");
    map.finish(report);
    let rate = rate?.number(1, most, report)?;
    let burst = or_default(burst.as_ref(), rate.max(least), |place| {
        place.number(least, most, report)
    });
    Some(RateLimit { rate, burst })
}
