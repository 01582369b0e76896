//! Treatment of a route's requests: `affinity`, `headers`, `rewrite`, `timeouts`, `limits` and `upgrades`.

use std::borrow::Cow;
use std::time::Duration;

use signalbox_core::model::http::{AffinityScope, CookieAffinity};
use signalbox_core::model::http::{
    HeaderEdits, PassivePolicy, PeriodRate, RequestLimits, RequestPolicy, RouteTimeouts,
};
use signalbox_core::wire::http::cookie::{SameSite, StickyCookie};
use signalbox_core::wire::http1::edit::{FieldEdit, FieldName};
use signalbox_core::wire::http1::grammar::{is_field_value, is_token};

use super::map::MapDecoder;
use super::node::{NodeKind, NodeRef};
use super::report::{Report, quote};
use super::scalar::{optional_value, or_default};
use super::shield::rate_limit;

/// Highest rate of tokens in a second: a token's time is some nanoseconds at the least.
pub(super) const MAX_RATE: u64 = 1_000_000;

/// Most requests, or connections, that a client can be allowed at once.
pub(super) const MAX_CONCURRENT: u32 = 1_000_000;

/// Most changes of fields in each direction, because each request's fields are compared with them.
const MAX_EDITS: usize = 64;

/// Most protocols that clients may upgrade to, because each upgrade is compared with them.
const MAX_UPGRADES: usize = 16;

/// Fields that a route's headers must not change, with the reason.
const RESERVED: [(&str, &str); 3] = [
    (
        "host",
        "applications and router hosts rely on the Host that the client sent",
    ),
    ("cookie", "cookies belong to clients and applications"),
    ("strict-transport-security", "the route's `tls.hsts` sets it"),
];

/// Keys of a route that hold for requests.
pub(super) struct RequestKeys<'a> {
    affinity: Option<NodeRef<'a>>,
    headers: Option<NodeRef<'a>>,
    rewrite: Option<NodeRef<'a>>,
    timeouts: Option<NodeRef<'a>>,
    limits: Option<NodeRef<'a>>,
    upgrades: Option<NodeRef<'a>>,
}

impl<'a> RequestKeys<'a> {
    pub(super) fn take(map: &mut MapDecoder<'a>) -> Self {
        Self {
            affinity: map.take("affinity"),
            headers: map.take("headers"),
            rewrite: map.take("rewrite"),
            timeouts: map.take("timeouts"),
            limits: map.take("limits"),
            upgrades: map.take("upgrades"),
        }
    }

    /// Returns the first key that is there, with its name.
    pub(super) fn first(&self) -> Option<(&'static str, &NodeRef<'a>)> {
        let keys = [
            ("affinity", &self.affinity),
            ("headers", &self.headers),
            ("rewrite", &self.rewrite),
            ("timeouts", &self.timeouts),
            ("limits", &self.limits),
            ("upgrades", &self.upgrades),
        ];
        keys.into_iter().find_map(|(key, place)| Some((key, place.as_ref()?)))
    }

    pub(super) fn decode(&self, report: &mut Report) -> Option<RequestPolicy> {
        let affinity = optional_value(self.affinity.as_ref(), |place| affinity(place, report));
        let headers = optional_value(self.headers.as_ref(), |place| headers(place, report));
        let rewrite = optional_value(self.rewrite.as_ref(), |place| rewrite(place, report));
        let timeouts = optional_value(self.timeouts.as_ref(), |place| timeouts(place, report));
        let limits = optional_value(self.limits.as_ref(), |place| limits(place, report));
        let upgrades = optional_value(self.upgrades.as_ref(), |place| upgrades(place, report));
        Some(RequestPolicy {
            affinity: affinity?,
            headers: headers?,
            rewrite: rewrite?,
            timeouts: timeouts?.unwrap_or_default(),
            limits: limits?,
            upgrades: upgrades?,
            passive: PassivePolicy::default(),
        })
    }
}

fn affinity(place: &NodeRef<'_>, report: &mut Report) -> Option<CookieAffinity> {
    let mut map = MapDecoder::open(place, report)?;
    let cookie = map.require("cookie");
    let to = map.take("to");
    let same_site = map.take("same_site");
    map.finish(report);
    let scope = or_default(to.as_ref(), AffinityScope::default(), |place| {
        place.keyword("a part of a route", &AffinityScope::ALL, report)
    });
    let same_site = or_default(same_site.as_ref(), SameSite::Lax, |place| {
        place.keyword("a value of SameSite", &SameSite::ALL, report)
    });
    let place = cookie?;
    let name = place.text(report)?;
    let Some(cookie) = StickyCookie::new(name, Some(same_site)) else {
        let name = quote(name);
        place.error(report, format!("{name} is not the name of a cookie, such as sb"));
        return None;
    };
    Some(CookieAffinity { cookie, scope })
}

fn headers(place: &NodeRef<'_>, report: &mut Report) -> Option<HeaderEdits> {
    let mut map = MapDecoder::open(place, report)?;
    let request = map.take("request");
    let response = map.take("response");
    map.finish(report);
    let request = request.map_or(Some(Vec::new()), |place| edits(&place, report));
    let response = response.map_or(Some(Vec::new()), |place| edits(&place, report));
    Some(HeaderEdits {
        request: request?,
        response: response?,
    })
}

/// Decodes the changes of one direction: removals come first, so that a field can be removed and added again.
fn edits(place: &NodeRef<'_>, report: &mut Report) -> Option<Vec<FieldEdit>> {
    let mut map = MapDecoder::open(place, report)?;
    let remove = map.take("remove");
    let set = map.take("set");
    let add = map.take("add");
    map.finish(report);
    let mut edits = Vec::new();
    if let Some(place) = remove {
        for item in place.items("fields", MAX_EDITS, report)? {
            let name = item.text(report)?;
            edits.push(FieldEdit::Remove(field_name(name, &item, report)?));
        }
    }
    values(set.as_ref(), FieldEdit::Set, &mut edits, report)?;
    values(add.as_ref(), FieldEdit::Add, &mut edits, report)?;
    if edits.len() > MAX_EDITS {
        place.error(report, format!("there are more than {MAX_EDITS} changes of fields"));
        return None;
    }
    Some(edits)
}

/// Decodes fields with their values.
fn values(
    place: Option<&NodeRef<'_>>,
    edit: impl Fn(FieldName, Vec<u8>) -> FieldEdit,
    edits: &mut Vec<FieldEdit>,
    report: &mut Report,
) -> Option<()> {
    let Some(place) = place else { return Some(()) };
    if !matches!(place.node.kind, NodeKind::Map(_)) {
        place.error(report, "write names of fields with values, as in { X-Env: prod }");
        return None;
    }
    for entry in place.entries(report)? {
        let place = NodeRef {
            node: &entry.value,
            path: place.path.key(&entry.key),
        };
        let value = match place.plain() {
            Some("") => Cow::Borrowed(""),
            _ => place.text(report)?.into(),
        };
        let name = field_name(&entry.key, &place, report)?;
        if !is_field_value(value.as_bytes()) {
            place.error(report, "a field's value is one line without control characters");
            return None;
        }
        edits.push(edit(name, value.as_bytes().to_vec()));
    }
    Some(())
}

fn field_name(text: &str, place: &NodeRef<'_>, report: &mut Report) -> Option<FieldName> {
    let reserved = RESERVED.into_iter().find(|(name, _)| text.eq_ignore_ascii_case(name));
    let shown = quote(text);
    let message = match (FieldName::parse(text), reserved) {
        (_, Some((_, reason))) => format!("{shown} cannot be changed: {reason}"),
        (Some(name), None) if name.is_editable() => return Some(name),
        (Some(_), None) => format!("{shown} cannot be changed: it controls where the message or the connection ends"),
        (None, None) => format!("{shown} is not the name of a field, such as X-Env"),
    };
    place.error(report, message);
    None
}

fn rewrite(place: &NodeRef<'_>, report: &mut Report) -> Option<String> {
    let path = super::routes::path(place, report)?;
    let message = "applications see another path than clients: links and cookies in their answers are not rewritten";
    place.warn(report, message);
    Some(path)
}

fn timeouts(place: &NodeRef<'_>, report: &mut Report) -> Option<RouteTimeouts> {
    let mut map = MapDecoder::open(place, report)?;
    let answer = map.take("answer");
    let body = map.take("body");
    let tunnel = map.take("tunnel");
    map.finish(report);
    let mut time = |place: Option<NodeRef<'_>>| optional_value(place.as_ref(), |place| place.duration(report));
    Some(RouteTimeouts {
        answer: time(answer)?,
        body: time(body)?,
        tunnel: time(tunnel)?,
    })
}

fn limits(place: &NodeRef<'_>, report: &mut Report) -> Option<RequestLimits> {
    let mut map = MapDecoder::open(place, report)?;
    let requests = map.take("requests");
    let concurrent = map.take("concurrent");
    map.finish(report);
    if requests.is_none() && concurrent.is_none() {
        place.error(
            report,
            "write `requests: { rate: 100, burst: 200 }`, `concurrent: 50` or both",
        );
        return None;
    }
    let requests = optional_value(requests.as_ref(), |place| rate_limit(place, 1, MAX_RATE, report))?;
    let concurrent = optional_value(concurrent.as_ref(), |place| place.number(1, MAX_CONCURRENT, report))?;
    Some(RequestLimits {
        requests: requests.map(|limit| per_second(limit.rate, limit.burst)),
        concurrent: concurrent.unwrap_or(0),
    })
}

/// Makes a rate of tokens in a second.
pub(super) const fn per_second(count: u64, burst: u64) -> PeriodRate {
    PeriodRate {
        count,
        period: Duration::from_secs(1),
        burst,
    }
}

/// Decodes the protocols that clients may upgrade to.
fn upgrades(place: &NodeRef<'_>, report: &mut Report) -> Option<Vec<String>> {
    let mut protocols: Vec<String> = Vec::new();
    for item in place.items("protocols", MAX_UPGRADES, report)? {
        let text = item.text(report)?;
        let shown = quote(text);
        let is_known = |known: &String| known.eq_ignore_ascii_case(text);
        let message = if !text.splitn(2, '/').all(|part| is_token(part.as_bytes())) {
            format!("{shown} is not the name of a protocol, such as websocket or SPDY/3.1")
        } else if text.eq_ignore_ascii_case("h2c") {
            "hosts are not upgraded to h2c: HTTP/2 to them without TLS is `h2c: true` of their cluster".to_owned()
        } else if protocols.iter().any(is_known) {
            "the protocol is in the list already".to_owned()
        } else {
            protocols.push(text.to_owned());
            continue;
        };
        item.error(report, message);
        return None;
    }
    Some(protocols)
}
