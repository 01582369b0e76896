//! Settings of metrics and of the access log.

use std::path::Path;

use signalbox_core::model::{AccessLog, END_LABELS, EndSet, LogTarget, Metrics};

use super::map::MapDecoder;
use super::node::NodeRef;
use super::report::{Report, quote};
use super::scalar::{optional_value, or_default};

/// Most routes with a label: each costs some ten series of a Prometheus server.
const MAX_ROUTE_LABELS: u32 = 1_000_000;

const ALL_PPM: u32 = 1_000_000;
const DEFAULT_LINES_PER_SECOND: u32 = 1000;
/// Most lines in a second that may be configured: more than one thread can write.
const MAX_LINES_PER_SECOND: u32 = 1_000_000;

/// Decodes the settings of `/metrics`.
pub(super) fn metrics(place: Option<&NodeRef<'_>>, report: &mut Report) -> Metrics {
    let Some(mut map) = place.and_then(|place| MapDecoder::open(place, report)) else {
        return Metrics::DEFAULT;
    };
    let routes = map.take("routes");
    map.finish(report);
    Metrics {
        routes: or_default(routes.as_ref(), Metrics::DEFAULT.routes, |place| {
            place.number(0, MAX_ROUTE_LABELS, report)
        }),
    }
}

/// Decodes the access log's settings. `None`: there is a mistake.
pub(super) fn log(place: Option<&NodeRef<'_>>, report: &mut Report) -> Option<Option<AccessLog>> {
    let Some(place) = place else { return Some(None) };
    let mut map = MapDecoder::open(place, report)?;
    let connections = map.take("connections");
    map.finish(report);
    optional_value(connections.as_ref(), |place| access_log(place, report))
}

fn access_log(place: &NodeRef<'_>, report: &mut Report) -> Option<AccessLog> {
    let mut map = MapDecoder::open(place, report)?;
    let to = map.require("to");
    let sample = map.take("sample");
    let most = map.take("max_per_second");
    let only = map.take("only");
    map.finish(report);
    let sample_ppm = or_default(sample.as_ref(), ALL_PPM, |place| sample_ppm(place, report));
    let max_per_second = or_default(most.as_ref(), DEFAULT_LINES_PER_SECOND, |place| {
        place.number(1, MAX_LINES_PER_SECOND, report)
    });
    let only = or_default(only.as_ref(), EndSet::ALL, |place| ends(place, report));
    Some(AccessLog {
        to: to.and_then(|place| target(&place, report))?,
        sample_ppm,
        max_per_second,
        only,
    })
}

fn target(place: &NodeRef<'_>, report: &mut Report) -> Option<LogTarget> {
    let text = place.text(report)?;
    let path = Path::new(text);
    match text {
        "stdout" => Some(LogTarget::Stdout),
        _ if path.is_absolute() && !text.ends_with('/') => Some(LogTarget::File(path.to_owned())),
        _ => {
            let text = quote(text);
            place.error(
                report,
                format!("{text} is neither `stdout` nor the absolute path of a file, such as /var/log/signalbox/connections.log"),
            );
            None
        }
    }
}

/// Decodes a share of all connections, more than nothing, in millionths.
fn sample_ppm(place: &NodeRef<'_>, report: &mut Report) -> Option<u32> {
    let text = place.text(report)?;
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if is_number(whole) && is_number(decimals) && !whole.is_empty() && decimals.len() <= 6 {
        let ppm = format!("{whole}{decimals:0<6}").parse::<u32>().ok();
        if let Some(ppm) = ppm.filter(|ppm| (1..=ALL_PPM).contains(ppm)) {
            return Some(ppm);
        }
    }
    let text = quote(text);
    place.error(
        report,
        format!("{text} is not a share of all connections from 0.000001 to 1, such as 0.1 for every tenth"),
    );
    None
}

fn ends(place: &NodeRef<'_>, report: &mut Report) -> Option<EndSet> {
    let mut words = Vec::new();
    for (at, word) in END_LABELS.into_iter().enumerate() {
        words.push((word, at));
    }
    let mut places = Vec::new();
    let mut items = place.items("ways to end", END_LABELS.len(), report)?.peekable();
    if items.peek().is_none() {
        place.error(
            report,
            "an empty `only` logs nothing: leave `only` out to log every connection",
        );
        return None;
    }
    for item in items {
        places.push(item.keyword("a way to end", &words, report)?);
    }
    Some(EndSet::from_indices(places))
}
