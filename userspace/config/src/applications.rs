//! Settings of the applications that routing events report, by pattern.

use std::collections::HashMap;

use signalbox_core::model::AppPattern;
use signalbox_core::model::ApplicationSettings;

use super::map::MapDecoder;
use super::node::{NodeRef, Position};
use super::report::{Report, quote};
use super::{clusters, health, proxy};

/// Most patterns, because each application is compared with all of them.
const MAX_PATTERNS: usize = 1024;

/// Settings of all patterns, in the order of the file.
pub(super) fn decode_all(place: &NodeRef<'_>, report: &mut Report) -> Option<Vec<ApplicationSettings>> {
    let mut seen = HashMap::new();
    let mut all = Some(Vec::new());
    for item in place.items("patterns of applications", MAX_PATTERNS, report)? {
        match (decode_one(&item, &mut seen, report), &mut all) {
            (Some(one), Some(all)) => all.push(one),
            _ => all = None,
        }
    }
    all
}

fn decode_one(
    place: &NodeRef<'_>,
    seen: &mut HashMap<String, Position>,
    report: &mut Report,
) -> Option<ApplicationSettings> {
    let mut map = MapDecoder::open(place, report)?;
    let pattern = map.require("match");
    let balance = map.take("balance");
    let health = map.take("health");
    let ejection = map.take("ejection");
    let proxy_protocol = map.take("proxy_protocol");
    let drain = map.take("drain");
    map.finish(report);
    let pattern = pattern.and_then(|place| self::pattern(&place, seen, report));
    let proxy_protocol = proxy::header(proxy_protocol.as_ref(), report);
    let (health, asking) = health::of_applications(health.as_ref(), proxy_protocol.is_some(), report);
    Some(ApplicationSettings {
        pattern: pattern?,
        balance: clusters::balance(balance.as_ref(), report),
        health,
        health_page: asking,
        ejection: clusters::ejection(ejection.as_ref(), report),
        proxy_protocol,
        drain: drain.and_then(|place| place.duration(report)),
    })
}

/// Decodes a pattern. A repeated pattern, and a pattern after `*`, would never count: both are mistakes.
fn pattern(place: &NodeRef<'_>, seen: &mut HashMap<String, Position>, report: &mut Report) -> Option<AppPattern> {
    let text = place.text(report)?;
    let pattern = match AppPattern::parse(text) {
        Ok(pattern) => pattern,
        Err(error) => {
            place.error(
                report,
                format!("{} is not a pattern of applications: {error}", quote(text)),
            );
            return None;
        }
    };
    if let Some(before) = seen.get(text).or_else(|| seen.get("*")) {
        let line = before.line;
        place.error(
            report,
            format!(
                "the first match wins, and line {line} matches all that {} does: put this before it",
                quote(text)
            ),
        );
        return None;
    }
    seen.insert(text.to_owned(), place.position());
    Some(pattern)
}
