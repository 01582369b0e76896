//! Annotations of the objects that ask for names: the weight is signalbox's own, most others are for a router.

use std::collections::BTreeMap;

use crate::discovery::WEIGHT_RANGE;

/// Annotations that set a weight: signalbox's own, then that of the thesis' prototype.
const WEIGHT_ANNOTATIONS: [&str; 2] = ["signalbox.io/weight", "smartlb-weight"];

/// Prefixes of annotations meant for signalbox or for a router: none of these is ignored without a note.
const SIGNALBOX_PREFIX: &str = "signalbox.io/";
const ROUTER_PREFIXES: [&str; 2] = ["haproxy.router.openshift.io/", "router.openshift.io/"];

/// Router annotations that work behind the balancer, whoever connects.
const ROUTER_ONLY: [&str; 11] = [
    "h1-adjust-case",
    "disable_cookies",
    "hsts_header",
    "pod-concurrent-connections",
    "rewrite-target",
    "timeout",
    "cookie_name",
    "cookie-same-site",
    "haproxy.health.check.interval",
    "pool-size",
    "balance",
];

/// Router annotations that depend on the client's address, which a router behind the balancer does not see by itself.
const BY_CLIENT_ADDRESS: [&str; 7] = [
    "ip_allowlist",
    "ip_whitelist",
    "rate-limit-connections",
    "rate-limit-connections.concurrent-tcp",
    "rate-limit-connections.rate-tcp",
    "rate-limit-connections.rate-http",
    "set-forwarded-headers",
];

/// Router annotation that the balancer would have to obey too, because its own idle timeout ends flows.
const TUNNEL_TIMEOUT_KEY: &str = "timeout-tunnel";

/// Whether signalbox reads an annotation. Others need not be kept: some are as large as their object.
#[must_use]
pub fn is_known_annotation(key: &str) -> bool {
    WEIGHT_ANNOTATIONS.contains(&key)
        || key.starts_with(SIGNALBOX_PREFIX)
        || ROUTER_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}

/// Reads the weight that the annotations ask for, if any, and notes on annotations that have no effect.
pub(super) fn parse_annotations(annotations: &BTreeMap<String, String>) -> (Option<u32>, Vec<String>) {
    let mut notes = Vec::new();
    let weight = weight(annotations, &mut notes);
    let mut left = Vec::new();
    let mut by_client = Vec::new();
    let mut unsupported = Vec::new();
    for (key, value) in annotations {
        let Some(name) = ROUTER_PREFIXES.iter().find_map(|prefix| key.strip_prefix(prefix)) else {
            if key.starts_with(SIGNALBOX_PREFIX) && !WEIGHT_ANNOTATIONS.contains(&key.as_str()) {
                unsupported.push(format!("{key} (unknown)"));
            }
            continue;
        };
        if BY_CLIENT_ADDRESS.contains(&name) || (name == "balance" && value == "source") {
            by_client.push(key.as_str());
        } else if name == TUNNEL_TIMEOUT_KEY {
            unsupported.push(format!(
                "{key} (the balancer's own `timeouts.idle` holds for all flows)"
            ));
        } else if ROUTER_ONLY.contains(&name) {
            left.push(key.as_str());
        } else {
            unsupported.push(format!("{key} (unknown)"));
        }
    }
    if !left.is_empty() {
        notes.push(format!("left to the router: {}", left.join(", ")));
    }
    if !by_client.is_empty() {
        notes.push(format!(
            "left to the router, which knows the client's address only with `proxy_protocol: v2`: {}",
            by_client.join(", ")
        ));
    }
    if !unsupported.is_empty() {
        notes.push(format!("unsupported: {}", unsupported.join(", ")));
    }
    (weight, notes)
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
                "{key}: {value:?} is not a whole number from {least} to {most}: it is as if there were none"
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

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(pairs: &[(&str, &str)]) -> (Option<u32>, Vec<String>) {
        parse_annotations(
            &pairs
                .iter()
                .map(|(key, value)| ((*key).into(), (*value).into()))
                .collect(),
        )
    }

    #[test]
    fn a_weight_is_0_to_100_or_said_to_be_wrong() {
        assert_eq!(notes(&[]), (None, vec![]));
        for good in ["0", "1", "100", " 42 "] {
            let (weight, said) = notes(&[("signalbox.io/weight", good)]);
            assert_eq!((weight, said), (good.trim().parse().ok(), vec![]));
        }
        for bad in ["101", "-1", "1.5", "", "many"] {
            let (weight, said) = notes(&[("smartlb-weight", bad)]);
            assert_eq!((weight, said.len()), (None, 1), "{bad}");
            assert!(said[0].starts_with(&format!("smartlb-weight: {bad:?} is not a whole number from 0 to 100")));
        }
        assert_eq!(
            notes(&[("signalbox.io/weight", "7"), ("smartlb-weight", "9")]),
            (Some(7), vec![]),
            "ours comes first"
        );
        assert!(notes(&[("smartlb-weight", &"9".repeat(9000))]).1[0].len() < 250);
    }

    #[test]
    fn nothing_that_is_asked_of_a_router_goes_without_a_word() {
        let (_, said) = notes(&[
            ("haproxy.router.openshift.io/timeout", "5s"),
            ("haproxy.router.openshift.io/balance", "leastconn"),
            ("haproxy.router.openshift.io/ip_allowlist", "10.0.0.0/8"),
            ("haproxy.router.openshift.io/timeout-tunnel", "24h"),
            ("router.openshift.io/cookie_name", "c"),
            ("router.openshift.io/new", "c"),
            ("signalbox.io/wieght", "5"),
            ("kubectl.kubernetes.io/last-applied-configuration", "{}"),
        ]);
        assert_eq!(
            said,
            [
                "left to the router: haproxy.router.openshift.io/balance, haproxy.router.openshift.io/timeout, \
                 router.openshift.io/cookie_name",
                "left to the router, which knows the client's address only with `proxy_protocol: v2`: \
                 haproxy.router.openshift.io/ip_allowlist",
                "unsupported: haproxy.router.openshift.io/timeout-tunnel (the balancer's own `timeouts.idle` holds for \
                 all flows), router.openshift.io/new (unknown), signalbox.io/wieght (unknown)",
            ]
        );
        let (_, said) = notes(&[("haproxy.router.openshift.io/balance", "source")]);
        assert!(said[0].contains("client's address"));
    }
}
