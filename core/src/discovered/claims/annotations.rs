//! Annotations of the objects that ask for names: the weight is signalbox's own, others are for OpenShift's router.
//!
//! Decoded here for routers and for signalbox alike. A senseless value is noted, and affects no other value.

mod grammar;
pub(crate) mod keys;
mod plain_http;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::object::{HeaderActions, Object, ObjectKind};
use crate::discovered::discovery::{HeaderAction, RouteSettings, WEIGHT_RANGE};
use crate::wire::http::path::is_route_path;

/// Annotations that set a weight: signalbox's own, then that of the thesis' prototype.
const WEIGHT_ANNOTATIONS: [&str; 2] = ["signalbox.io/weight", "smartlb-weight"];

/// Prefixes of annotations meant for signalbox or for a router: none of these is ignored without a note.
const SIGNALBOX_PREFIX: &str = "signalbox.io/";
const ROUTER_PREFIXES: [&str; 2] = ["haproxy.router.openshift.io/", "router.openshift.io/"];

/// Annotations whose meaning is in the switch `rate-limit-connections`.
const SWITCHED: [&str; 3] = [keys::CONCURRENT, keys::CONNECTION_RATE, keys::REQUEST_RATE];

/// Most changes of fields in each direction: as many as the API takes.
const MAX_HEADER_ACTIONS: usize = 20;

/// Fields that neither the router nor signalbox lets a Route change.
const RESERVED_HEADERS: [&str; 5] = ["host", "cookie", "set-cookie", "proxy", "strict-transport-security"];

/// Whether signalbox reads an annotation. Others need not be kept: some are as large as their object.
#[must_use]
pub fn is_known_annotation(key: &str) -> bool {
    WEIGHT_ANNOTATIONS.contains(&key)
        || key.starts_with(SIGNALBOX_PREFIX)
        || ROUTER_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}

/// Wishes of an object beyond its names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Decoded {
    /// Weight of the names.
    pub(super) weight: Option<u32>,
    /// Settings for a router.
    pub(super) settings: RouteSettings,
    /// Notes on mistakes and unknown keys.
    pub(super) notes: Vec<String>,
}

/// Decodes the annotations and header actions of an object.
pub(super) fn decode(object: &Object) -> Decoded {
    let mut notes = Vec::new();
    let weight = weight(&object.annotations, &mut notes);
    let mut settings = RouteSettings {
        origin: object.origin(),
        path: object.path.clone().unwrap_or_default(),
        passes_tls: object.passes_tls(),
        ends_tls: object.ends_tls,
        ..RouteSettings::default()
    };
    let for_routers = || {
        let is_for_router = |key: &&String| ROUTER_PREFIXES.iter().any(|prefix| key.starts_with(prefix));
        object.annotations.keys().filter(is_for_router)
    };
    let unknown = unknown_keys(&object.annotations);
    if object.kind != ObjectKind::Route {
        let ignored: Vec<&str> = for_routers().map(String::as_str).collect();
        if !ignored.is_empty() {
            notes.push(format!(
                "not obeyed, because only annotations of Routes are: {}",
                ignored.join(", ")
            ));
        }
    } else if !settings.path.is_empty() && !is_route_path(&settings.path) {
        let path = truncated(&settings.path);
        settings.path.clear();
        if for_routers().next().is_some() {
            notes.push(format!(
                "path {path:?} matches no request: the annotations are not obeyed"
            ));
        }
    } else {
        AnnotationReader {
            annotations: &object.annotations,
            notes: &mut notes,
        }
        .read(&mut settings);
        settings.insecure = plain_http::policy(object, &mut notes);
        (settings.request_headers, settings.response_headers) = header_actions(&object.header_actions, &mut notes);
    }
    if !unknown.is_empty() {
        notes.push(format!("unknown: {}", unknown.join(", ")));
    }
    Decoded {
        weight,
        settings,
        notes,
    }
}

/// Unknown keys that look as if they were for signalbox or a router.
fn unknown_keys(annotations: &BTreeMap<String, String>) -> Vec<&str> {
    const KNOWN: [&str; 19] = [
        keys::BALANCE,
        keys::DISABLE_COOKIES,
        keys::HSTS,
        keys::ALLOW,
        keys::ALLOW_BEFORE,
        keys::POD_CONCURRENT,
        keys::LIMITS,
        keys::CONCURRENT,
        keys::CONNECTION_RATE,
        keys::REQUEST_RATE,
        keys::REWRITE,
        keys::FORWARDED,
        keys::TIMEOUT,
        keys::TUNNEL_TIMEOUT,
        keys::ADJUST_CASE,
        keys::COOKIE_NAME,
        keys::SAME_SITE,
        keys::HEALTH_INTERVAL,
        keys::POOL_SIZE,
    ];
    let all = annotations.keys().map(String::as_str);
    all.filter(|key| is_known_annotation(key) && !WEIGHT_ANNOTATIONS.contains(key) && !KNOWN.contains(key))
        .collect()
}

/// Reader of the annotations of a Route.
struct AnnotationReader<'a> {
    annotations: &'a BTreeMap<String, String>,
    notes: &'a mut Vec<String>,
}

impl AnnotationReader<'_> {
    fn read(mut self, settings: &mut RouteSettings) {
        settings.allow = self.allow();
        self.limits(settings);
        let milliseconds = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        settings.timeout_ms = self.value(keys::TIMEOUT, grammar::timeout).map(milliseconds);
        settings.tunnel_timeout_ms = self.value(keys::TUNNEL_TIMEOUT, grammar::timeout).map(milliseconds);
        settings.forwarded = self.value(keys::FORWARDED, grammar::forwarded);
        settings.disables_cookies = self.value(keys::DISABLE_COOKIES, grammar::flag) == Some(true);
        settings.cookie_name = self.value(keys::COOKIE_NAME, grammar::cookie_name);
        settings.same_site = self.value(keys::SAME_SITE, grammar::same_site);
        settings.hsts = self.value(keys::HSTS, grammar::hsts);
        settings.rewrite = self.value(keys::REWRITE, grammar::rewrite);
        settings.balance = self.value(keys::BALANCE, grammar::balance);
        settings.server_connections = self.value(keys::POD_CONCURRENT, grammar::limit);
        let interval = self.value(keys::HEALTH_INTERVAL, grammar::timeout);
        let interval = interval.map(|_| keys::HEALTH_INTERVAL);
        let given = |key: &'static str| self.annotations.contains_key(key).then_some(key);
        let others = [interval, given(keys::ADJUST_CASE), given(keys::POOL_SIZE)];
        settings.router_only = others.into_iter().flatten().map(str::to_owned).collect();
    }

    /// Value of an annotation. A senseless one is noted, and treated as absent.
    fn value<T>(&mut self, key: &str, parse: impl Fn(&str) -> Result<T, &'static str>) -> Option<T> {
        let text = self.annotations.get(key)?;
        match parse(text) {
            Ok(value) => Some(value),
            Err(expected) => {
                let text = truncated(text);
                self.notes.push(format!("{key}: {text:?} is ignored: {expected}"));
                None
            }
        }
    }

    /// Clients that are served. The older annotation counts where the newer one is not given.
    fn allow(&mut self) -> Option<Vec<ipnet::IpNet>> {
        let both = [keys::ALLOW, keys::ALLOW_BEFORE];
        let (key, text) = both
            .into_iter()
            .find_map(|key| Some((key, self.annotations.get(key)?)))?;
        if key == keys::ALLOW && self.annotations.contains_key(keys::ALLOW_BEFORE) {
            let note = format!("{} is ignored: {key} takes precedence", keys::ALLOW_BEFORE);
            self.notes.push(note);
        }
        if text.is_empty() {
            self.notes.push(format!(
                "{key} is empty, and so allows all clients: remove it, or name prefixes"
            ));
            return None;
        }
        let (prefixes, bad) = grammar::allow_list(text);
        if !bad.is_empty() {
            let bad = truncated(&bad.join(" "));
            self.notes.push(format!(
                "{key}: ignored, because they are neither addresses nor prefixes: {bad}"
            ));
        }
        if prefixes.is_empty() {
            self.notes.push(format!(
                "{key} allows no client: name addresses and prefixes, separated by single spaces, without spaces at \
                 the ends (the router itself allows all clients by such a list)"
            ));
        }
        Some(prefixes)
    }

    fn limits(&mut self, settings: &mut RouteSettings) {
        let is_on = self.value(keys::LIMITS, grammar::flag) == Some(true);
        let given: Vec<&str> = SWITCHED
            .into_iter()
            .filter(|key| self.annotations.contains_key(*key))
            .collect();
        if !is_on {
            if !given.is_empty() {
                let given = given.join(", ");
                self.notes.push(format!(
                    "without effect, because {} is not \"true\": {given}",
                    keys::LIMITS
                ));
            }
            return;
        }
        if given.is_empty() {
            let note = format!(
                "{} limits nothing by itself: add one of {}",
                keys::LIMITS,
                SWITCHED.join(", ")
            );
            self.notes.push(note);
        }
        settings.concurrent_connections = self.value(keys::CONCURRENT, grammar::limit);
        settings.connection_rate = self.value(keys::CONNECTION_RATE, grammar::limit);
        settings.request_rate = self.value(keys::REQUEST_RATE, grammar::limit);
    }
}

/// Changes of fields of requests and answers that can be made; the others are noted.
fn header_actions(wanted: &HeaderActions, notes: &mut Vec<String>) -> (Vec<HeaderAction>, Vec<HeaderAction>) {
    let mut take = |direction: &str, actions: &[HeaderAction]| {
        let mut taken = Vec::new();
        for action in actions {
            let name = truncated(&action.name);
            let mut refuse = |why: &str| notes.push(format!("{}.{direction}: {name}: {why}", keys::HEADERS));
            let is_reserved = RESERVED_HEADERS
                .iter()
                .any(|reserved| action.name.eq_ignore_ascii_case(reserved));
            let value = match action.value.as_deref().map(grammar::header_value).transpose() {
                Ok(value) => value,
                Err(why) => {
                    refuse(why);
                    continue;
                }
            };
            let action = HeaderAction {
                name: action.name.clone(),
                value,
            };
            if is_reserved || action.edit().is_none() {
                refuse("this field, or this value, cannot be set or removed");
            } else if taken.len() == MAX_HEADER_ACTIONS {
                refuse("more than 20 changes");
            } else {
                taken.push(action);
            }
        }
        taken
    };
    (take("request", &wanted.request), take("response", &wanted.response))
}

fn weight(annotations: &BTreeMap<String, String>, notes: &mut Vec<String>) -> Option<u32> {
    let (key, value) = WEIGHT_ANNOTATIONS
        .iter()
        .find_map(|key| annotations.get_key_value(*key))?;
    match value.trim().parse::<u32>() {
        Ok(weight) if WEIGHT_RANGE.contains(&weight) => Some(weight),
        _ => {
            let (least, most) = (WEIGHT_RANGE.start(), WEIGHT_RANGE.end());
            let value = truncated(value);
            notes.push(format!(
                "{key}: {value:?} is not a whole number from {least} to {most}: it is ignored"
            ));
            None
        }
    }
}

/// Shortens a text for a message: an annotation may hold a quarter of a megabyte.
pub(super) fn truncated(text: &str) -> String {
    const MAX_CHARS: usize = 80;
    let mut chars = text.chars();
    let mut short: String = chars.by_ref().take(MAX_CHARS).collect();
    if chars.next().is_some() {
        short.push_str("...");
    }
    short
}
