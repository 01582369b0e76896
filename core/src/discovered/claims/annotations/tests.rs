use super::*;
use crate::discovered::claims::tests::route;
use crate::model::Balance;
use crate::model::tls::InsecurePolicy;
use crate::wire::http::cookie::SameSite;
use crate::wire::http::forwarded::ForwardedPolicy;

const HAPROXY: &str = "haproxy.router.openshift.io/";
const ROUTER: &str = "router.openshift.io/";

fn decoded(pairs: &[(&str, &str)]) -> Decoded {
    let mut object = route(1, "shop/web", "app.test");
    let pairs = pairs.iter().map(|(key, value)| ((*key).into(), (*value).into()));
    object.annotations = pairs.collect();
    decode(&object)
}

/// Settings by one annotation, for which no note is made.
#[track_caller]
fn good(key: &str, value: &str) -> RouteSettings {
    let Decoded { settings, notes, .. } = decoded(&[(key, value)]);
    assert_eq!(notes, [""; 0], "{key}: {value:?}");
    assert!(!settings.is_empty(), "{key}: {value:?}");
    settings
}

/// Asserts that a value is treated as absent, and noted with its place and a fix.
#[track_caller]
fn bad(key: &str, value: &str, remedy: &str) {
    let Decoded { settings, notes, .. } =
        decoded(&[(key, value), ("haproxy.router.openshift.io/hsts_header", "max-age=1")]);
    let hsts = settings.hsts.clone();
    assert_eq!(hsts.as_deref(), Some("max-age=1"), "nothing else is lost");
    let bare = RouteSettings { hsts: None, ..settings };
    assert!(bare.is_empty(), "{key}: {value:?}: {bare:?}");
    assert_eq!(notes.len(), 1, "{key}: {value:?}: {notes:?}");
    assert!(notes[0].starts_with(key) && notes[0].contains(remedy), "{notes:?}");
}

fn haproxy(name: &str) -> String {
    format!("{HAPROXY}{name}")
}

fn prefixes(all: &[&str]) -> Option<Vec<ipnet::IpNet>> {
    Some(all.iter().map(|prefix| prefix.parse().unwrap()).collect())
}

#[test]
fn a_weight_is_0_to_100_or_said_to_be_wrong() {
    let weight = |pairs: &[(&str, &str)]| {
        let decoded = decoded(pairs);
        (decoded.weight, decoded.notes)
    };
    assert_eq!(weight(&[]), (None, vec![]));
    for good in ["0", "1", "100", " 42 "] {
        let said = weight(&[("signalbox.io/weight", good)]);
        assert_eq!(said, (good.trim().parse().ok(), vec![]));
    }
    for bad in ["101", "-1", "1.5", "", "many"] {
        let (weight, said) = weight(&[("smartlb-weight", bad)]);
        assert_eq!((weight, said.len()), (None, 1), "{bad}");
        assert!(said[0].starts_with(&format!("smartlb-weight: {bad:?} is not a whole number from 0 to 100")));
    }
    let both = [("signalbox.io/weight", "7"), ("smartlb-weight", "9")];
    assert_eq!(weight(&both), (Some(7), vec![]), "ours comes first");
    assert!(weight(&[("smartlb-weight", &"9".repeat(9000))]).1[0].len() < 250);
}

#[test]
fn an_allow_list_has_addresses_and_prefixes() {
    let key = haproxy("ip_allowlist");
    for (text, expected) in [
        ("10.0.0.0/8", &["10.0.0.0/8"][..]),
        ("192.0.2.7", &["192.0.2.7/32"]),
        (
            "192.0.2.7  10.0.0.0/8 2001:db8::/32 ::1",
            &["192.0.2.7/32", "10.0.0.0/8", "2001:db8::/32", "::1/128"],
        ),
    ] {
        assert_eq!(good(&key, text).allow, prefixes(expected), "{text}");
        assert_eq!(good(&haproxy("ip_whitelist"), text).allow, prefixes(expected), "{text}");
    }
    let Decoded { settings, notes, .. } = decoded(&[(&key, "10.0.0.0/8 10.0.0.0/33 www.test ,")]);
    assert_eq!(settings.allow, prefixes(&["10.0.0.0/8"]), "bad entries are left out");
    assert_eq!(notes.len(), 1);
    assert!(notes[0].contains("10.0.0.0/33 www.test ,"), "{notes:?}");
    let both = decoded(&[(&key, "10.0.0.1"), (&haproxy("ip_whitelist"), "10.0.0.2")]);
    assert_eq!(both.settings.allow, prefixes(&["10.0.0.1/32"]));
    assert!(both.notes[0].contains("ip_whitelist is ignored"), "{:?}", both.notes);
}

#[test]
fn a_void_allow_list_serves_nobody_and_an_empty_one_is_none() {
    let key = haproxy("ip_allowlist");
    for text in [
        " 10.0.0.1",
        "10.0.0.1 ",
        " ",
        "\t10.0.0.1",
        "10.0.0.1\n",
        "www.test",
        "10.0.0.1,10.0.0.2",
    ] {
        let Decoded { settings, notes, .. } = decoded(&[(&key, text)]);
        assert_eq!(settings.allow, Some(Vec::new()), "{text:?}");
        assert!(
            notes.iter().any(|note| note.contains("allows no client")),
            "{text:?}: {notes:?}"
        );
    }
    let Decoded { settings, notes, .. } = decoded(&[(&key, "")]);
    assert!(
        settings.is_empty() && notes[0].contains("allows all clients"),
        "{notes:?}"
    );
}

#[test]
fn limits_hold_if_they_are_switched_on() {
    let switch = haproxy("rate-limit-connections");
    let names = ["concurrent-tcp", "rate-tcp", "rate-http"].map(|name| format!("{switch}.{name}"));
    let limits = |on: &str| {
        let mut pairs = vec![(switch.as_str(), on)];
        pairs.extend(names.iter().map(String::as_str).zip(["5", "60", "1000000"]));
        decoded(&pairs)
    };
    for on in ["true", "1", "T"] {
        let Decoded { settings, notes, .. } = limits(on);
        let found = (
            settings.concurrent_connections,
            settings.connection_rate,
            settings.request_rate,
        );
        assert_eq!((found, notes), ((Some(5), Some(60), Some(1_000_000)), vec![]));
    }
    let off = limits("false");
    assert!(
        off.settings.is_empty() && off.notes[0].starts_with("without effect"),
        "{:?}",
        off.notes
    );
    let wrong = limits("yes");
    assert!(wrong.settings.is_empty() && wrong.notes.len() == 2, "{:?}", wrong.notes);
    assert!(decoded(&[(&switch, "true")]).notes[0].contains("limits nothing by itself"));
    for text in ["0", "-1", "1.5", "+5", "", " 5", "1000001", "99999999999", "many"] {
        let Decoded { settings, notes, .. } = decoded(&[(&switch, "true"), (&names[1], text)]);
        assert!(settings.is_empty() && notes.len() == 1, "{text:?}: {notes:?}");
        assert!(
            notes[0].contains("rate-tcp") && notes[0].contains("from 1 to 1000000"),
            "{notes:?}"
        );
    }
}

#[test]
fn times_have_the_routers_units() {
    for (text, expected) in [
        ("5", 5),
        ("1500us", 2),
        ("1us", 1),
        ("250ms", 250),
        ("30s", 30_000),
        ("5m", 300_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("25d", 2_147_483_647),
        ("99999999999999999999d", 2_147_483_647),
    ] {
        assert_eq!(good(&haproxy("timeout"), text).timeout_ms, Some(expected), "{text}");
        let tunnel = good(&haproxy("timeout-tunnel"), text);
        assert_eq!(tunnel.tunnel_timeout_ms, Some(expected), "{text}");
    }
    for text in [
        "", "0", "0s", "05s", "-5s", "5 s", "5sec", "5S", "s", "1.5s", "5s5s", "\u{b2}s",
    ] {
        bad(&haproxy("timeout"), text, "such as 30s");
        bad(&haproxy("timeout-tunnel"), text, "such as 30s");
    }
    assert_eq!(
        good("router.openshift.io/haproxy.health.check.interval", "5s")
            .router_only
            .len(),
        1
    );
    bad(
        "router.openshift.io/haproxy.health.check.interval",
        "soon",
        "such as 30s",
    );
}

#[test]
fn cookies_have_a_name_and_a_site() {
    let key = format!("{ROUTER}cookie_name");
    let cookie = good(&key, "JSESSION-1_a").cookie().unwrap();
    assert_eq!(cookie.name(), "JSESSION-1_a");
    for text in ["", "a b", "a=b", "a.b", "\u{fc}"] {
        bad(&key, text, "letters, digits");
    }
    let site = format!("{ROUTER}cookie-same-site");
    for (text, expected) in [
        ("Lax", SameSite::Lax),
        ("Strict", SameSite::Strict),
        ("None", SameSite::None),
    ] {
        assert_eq!(good(&site, text).same_site, Some(expected));
    }
    for text in ["lax", "", "Any"] {
        bad(&site, text, "Lax, Strict or None");
    }
    let disabled = [(&*key, "c"), ("haproxy.router.openshift.io/disable_cookies", "true")];
    assert_eq!(decoded(&disabled).settings.cookie(), None);
    let enabled = [(&*key, "c"), ("haproxy.router.openshift.io/disable_cookies", "false")];
    assert!(decoded(&enabled).settings.cookie().is_some());
    bad(&haproxy("disable_cookies"), "on", "\"true\" or \"false\"");
}

#[test]
fn transport_security_has_an_age_once() {
    let key = haproxy("hsts_header");
    for text in [
        "max-age=31536000",
        "max-age=0;includeSubDomains",
        "includeSubDomains; preload ; Max-Age = 1",
        "preload;max-age=1",
    ] {
        assert_eq!(good(&key, text).hsts.as_deref(), Some(text));
    }
    for text in [
        "",
        "includeSubDomains",
        "max-age",
        "max-age=",
        "max-age=1;max-age=2",
        "max-age=x",
        "max-age=1;",
        "a=1;max-age=1",
    ] {
        let Decoded { settings, notes, .. } = decoded(&[(&key, text)]);
        assert!(
            settings.is_empty() && notes[0].contains("max-age=SECONDS"),
            "{text:?}: {notes:?}"
        );
    }
}

#[test]
fn a_rewrite_is_a_plain_path() {
    let key = haproxy("rewrite-target");
    for text in ["/", "/v1", "/v1/"] {
        assert_eq!(good(&key, text).rewrite.as_deref(), Some(text));
    }
    for text in ["", "v1", "/a b", "/a?b", "/a#b", "/a%20b", "/a\\b", "/\"a\"", "/'a'"] {
        bad(&key, text, "begins with `/`");
    }
}

#[test]
fn words_are_the_routers() {
    for (text, expected) in [
        ("append", ForwardedPolicy::Append),
        ("replace", ForwardedPolicy::Replace),
        ("if-none", ForwardedPolicy::IfNone),
        ("never", ForwardedPolicy::Never),
    ] {
        assert_eq!(good(&haproxy("set-forwarded-headers"), text).forwarded, Some(expected));
    }
    bad(
        &haproxy("set-forwarded-headers"),
        "Append",
        "append, replace, if-none or never",
    );
    for (text, expected) in [
        ("roundrobin", Balance::RoundRobin),
        ("leastconn", Balance::LeastConnections),
        ("source", Balance::Maglev),
        ("random", Balance::RandomTwo),
    ] {
        assert_eq!(good(&haproxy("balance"), text).balance, Some(expected));
    }
    bad(&haproxy("balance"), "least-connections", "roundrobin, leastconn");
    let settings = good(&haproxy("pod-concurrent-connections"), "5");
    assert_eq!((settings.server_connections, settings.router_only.len()), (Some(5), 0));
    bad(&haproxy("pod-concurrent-connections"), "five", "whole number");
    assert_eq!(good(&haproxy("h1-adjust-case"), "true").router_only.len(), 1);
    assert_eq!(good("router.openshift.io/pool-size", "5").router_only.len(), 1);
}

#[test]
fn headers_are_set_to_literal_texts_and_removed() {
    let action = |name: &str, value: Option<&str>| HeaderAction {
        name: name.into(),
        value: value.map(str::to_owned),
    };
    let mut object = route(1, "shop/web", "app.test");
    object.header_actions = HeaderActions {
        request: vec![
            action("X-Env", Some("50 %% off")),
            action("X-Debug", None),
            action("X-Host", Some("%[req.hdr(host)]")),
            action("Host", Some("other.test")),
            action("Transfer-Encoding", None),
            action("no token", None),
        ],
        response: vec![
            action("X-Frame-Options", Some("DENY")),
            action("Set-Cookie", None),
            action("X", Some("a\r\nb")),
        ],
    };
    let Decoded { settings, notes, .. } = decode(&object);
    assert_eq!(
        settings.request_headers,
        [action("X-Env", Some("50 % off")), action("X-Debug", None)]
    );
    assert_eq!(settings.response_headers, [action("X-Frame-Options", Some("DENY"))]);
    assert_eq!(notes.len(), 6, "{notes:?}");
    assert!(
        notes[0].starts_with("spec.httpHeaders.actions.request: X-Host: only literal"),
        "{notes:?}"
    );
    object.header_actions.request = vec![action("X", None); 21];
    let Decoded { settings, notes, .. } = decode(&object);
    assert_eq!(settings.request_headers.len(), 20);
    assert!(notes[0].contains("more than 20"), "{notes:?}");
}

#[test]
fn nothing_that_is_asked_of_a_router_goes_without_a_word() {
    let unknown = decoded(&[
        ("router.openshift.io/new", "c"),
        ("signalbox.io/wieght", "5"),
        ("haproxy.router.openshift.io/timeouts", "5s"),
        ("kubectl.kubernetes.io/last-applied-configuration", "{}"),
    ]);
    assert_eq!(
        unknown.notes,
        ["unknown: haproxy.router.openshift.io/timeouts, router.openshift.io/new, signalbox.io/wieght"]
    );
    let mut object = route(1, "shop/web", "app.test");
    object.annotations = [(haproxy("timeout"), "5s".to_owned())].into();
    object.path = Some("/a b".into());
    let odd = decode(&object);
    assert!(
        odd.settings.is_empty() && odd.notes[0].contains("matches no request"),
        "{:?}",
        odd.notes
    );
    object.kind = ObjectKind::Ingress;
    object.path = None;
    let ingress = decode(&object);
    assert!(ingress.settings.is_empty(), "{:?}", ingress.settings);
    assert_eq!(
        ingress.notes,
        ["not obeyed, because only annotations of Routes are: haproxy.router.openshift.io/timeout"]
    );
}

#[test]
fn settings_travel_as_json_and_are_checked_again() {
    let settings = decoded(&[
        (&haproxy("ip_allowlist"), "10.0.0.0/8"),
        (&haproxy("timeout"), "5s"),
        (&haproxy("set-forwarded-headers"), "if-none"),
        ("router.openshift.io/cookie-same-site", "Strict"),
        (&haproxy("rewrite-target"), "/v1"),
    ])
    .settings;
    let text = serde_json::to_string(&settings).unwrap();
    assert!(
        text.contains(r#""forwarded":"if-none""#) && !text.contains("null"),
        "{text}"
    );
    assert_eq!(serde_json::from_str::<RouteSettings>(&text).unwrap(), settings);
    let mut object = route(1, "shop/web", "app.test");
    object.annotations = [(haproxy("timeout"), "5s".to_owned())].into();
    let objects = [object];
    let seen = crate::discovered::claims::ClusterObjects {
        objects: objects.iter().collect(),
        ..crate::discovered::claims::ClusterObjects::default()
    };
    let learned = crate::discovered::claims::discover(seen, &crate::discovered::claims::ClaimRules::default());
    assert_eq!(learned.clone().validated().as_ref(), Ok(&learned));
    for (broken, expected) in [
        (
            RouteSettings {
                request_rate: Some(0),
                ..settings.clone()
            },
            "limits are",
        ),
        (
            RouteSettings {
                timeout_ms: Some(0),
                ..settings.clone()
            },
            "timeout_ms",
        ),
        (
            RouteSettings {
                cookie_name: Some("a b".into()),
                ..settings.clone()
            },
            "cookie_name",
        ),
        (
            RouteSettings {
                rewrite: Some("v1".into()),
                ..settings.clone()
            },
            "rewrite",
        ),
        (
            RouteSettings {
                hsts: Some("a\r\nb".into()),
                ..settings.clone()
            },
            "hsts",
        ),
        (
            RouteSettings {
                path: "x".into(),
                ..settings.clone()
            },
            "path is",
        ),
    ] {
        let mut learned = learned.clone();
        learned.routes[0].settings = vec![broken];
        let error = learned.validated().unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

/// Policy and notes of a Route whose TLS ends at the router or at the host.
fn plain_http(ends_tls: bool, passthrough: bool, said: Option<&str>) -> (InsecurePolicy, Vec<String>) {
    let mut object = route(1, "shop/web", "app.test");
    (object.ends_tls, object.passthrough) = (ends_tls, passthrough);
    object.insecure = said.map(str::to_owned);
    let decoded = decode(&object);
    (decoded.settings.insecure, decoded.notes)
}

#[test]
fn a_tls_routes_plain_http_is_served_only_if_it_says_so() {
    use InsecurePolicy::{Allow, None as Nothing, Redirect};
    for (said, edge, passed) in [
        (None, Nothing, Nothing),
        (Some(""), Nothing, Nothing),
        (Some("None"), Nothing, Nothing),
        (Some("Redirect"), Redirect, Redirect),
    ] {
        assert_eq!(plain_http(true, false, said), (edge, vec![]), "{said:?}");
        assert_eq!(plain_http(false, true, said), (passed, vec![]), "{said:?}");
        assert_eq!(plain_http(false, false, said), (Allow, vec![]), "without TLS");
    }
    assert_eq!(plain_http(true, false, Some("Allow")), (Allow, vec![]));
    for (passthrough, said, expected) in [
        (true, "Allow", "expected Redirect or None"),
        (false, "redirect", "expected Allow, Redirect or None"),
    ] {
        let (policy, notes) = plain_http(!passthrough, passthrough, Some(said));
        assert_eq!((policy, notes.len()), (Nothing, 1), "{said}");
        assert!(notes[0].starts_with(keys::INSECURE), "{notes:?}");
        assert!(notes[0].contains(said) && notes[0].contains(expected), "{notes:?}");
    }
}
