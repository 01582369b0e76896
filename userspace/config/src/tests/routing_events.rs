//! Broker of OpenShift's events: the meaning of its settings, and the messages for mistakes.

use std::time::Duration;

use signalbox_core::model::HealthPageTemplate;
use signalbox_core::model::{Balance, CheckProxyHeader, Probe};
use signalbox_core::wire::peek::proxy::ProxyTlvs;

use super::{documented, only_mistake, plus, right};

const LEAST: &str = "routing_events: { brokers: [\"mq1:61613\"], destination: /queue/routing }";

fn events(rest: &str) -> String {
    plus(&format!("routing_events: {{ brokers: [\"mq1:61613\"], {rest} }}"))
}

#[test]
fn omitted_routing_event_keys_default_to_those_of_openshift() {
    assert_eq!(right(&plus("")).model.routing_events, None);
    let parsed = right(&plus(LEAST));
    assert_eq!(parsed.warnings, []);
    let events = parsed.model.routing_events.unwrap();
    assert_eq!(events.brokers[0].to_string(), "mq1:61613");
    assert_eq!(
        (&events.tls, &events.login, &events.certificates),
        (&None, &None, &None)
    );
    assert_eq!((events.client_id, events.subscription), (None, None));
    assert_eq!(events.filter.types, ["load_balancer".to_owned()].into());
    assert_eq!((events.naming.prefix.as_str(), events.naming.domain), ("ha-", None));
}

#[test]
fn everything_that_can_be_said() {
    let text = plus(
        "routing_events:\n  brokers: [\"MQ1.example.com:61613\", \"10.0.0.1:61614\", \"[fd00::1]:61614\"]\n  \
         tls: { ca: /e/ca.pem, cert: /e/me.pem, key: /e/me.key }\n  user: routinginfo\n  password_file: /e/pw\n  \
         destination: /topic/routinginfo\n  client_id: signalbox-1\n  subscription: routing\n  \
         endpoint_types: [web_framework, load_balancer]\n  ha_prefix: x-\n  domain: Apps.Example.com\n  \
         certificates: /var/lib/signalbox/certificates\n  applications: []\n",
    );
    let parsed = right(&text);
    assert_eq!(parsed.warnings, []);
    let events = parsed.model.routing_events.unwrap();
    let brokers: Vec<String> = events.brokers.iter().map(ToString::to_string).collect();
    assert_eq!(brokers, ["mq1.example.com:61613", "10.0.0.1:61614", "[fd00::1]:61614"]);
    let tls = events.tls.unwrap();
    assert_eq!(tls.ca.to_str(), Some("/e/ca.pem"));
    assert_eq!(tls.identity, Some(("/e/me.pem".into(), "/e/me.key".into())));
    let login = events.login.unwrap();
    assert_eq!(
        (login.user.as_str(), login.password_file.to_str()),
        ("routinginfo", Some("/e/pw"))
    );
    assert_eq!(events.destination, "/topic/routinginfo");
    assert_eq!(events.client_id.as_deref(), Some("signalbox-1"));
    assert_eq!(events.subscription.as_deref(), Some("routing"));
    assert_eq!(events.filter.types.len(), 2);
    assert_eq!(
        (events.naming.prefix.as_str(), events.naming.domain.as_deref()),
        ("x-", Some("apps.example.com"))
    );
    assert_eq!(
        events.certificates.unwrap().to_str(),
        Some("/var/lib/signalbox/certificates")
    );
}

#[test]
fn a_topic_that_is_not_kept_is_odd() {
    let warnings = right(&events("")).warnings;
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0]
            .to_string()
            .contains("routing_events: the broker keeps no events of a topic"),
        "{warnings:?}"
    );
}

#[test]
fn brokers() {
    let brokers = |list: &str| plus(&format!("routing_events: {{ brokers: {list} }}"));
    only_mistake(&brokers("[]"), "routing_events.brokers", "at least one broker, such as");
    only_mistake(&brokers("mq1:61613"), "routing_events.brokers", "expected a list");
    for (text, part) in [
        ("mq1", "has no port: write mq1:61613"),
        ("fd00::1", "has no port: write \"[fd00::1]:61613\""),
        ("mq1:0", "needs a port from 1 to 65535"),
        ("mq1:+1", "needs a port from 1 to 65535"),
        ("a b:1", "is not a broker, such as"),
        ("tcp://mq1:1", "is not a broker, such as"),
        ("[mq1]:1", "is not a broker, such as"),
        ("", "the value is empty"),
    ] {
        only_mistake(&brokers(&format!("[\"{text}\"]")), "routing_events.brokers[0]", part);
    }
    only_mistake(
        &brokers("[\"mq1:1\", \"MQ1:1\"]"),
        "routing_events.brokers[1]",
        "`MQ1:1` is given twice, first on line",
    );
    let many: Vec<String> = (1..=17).map(|n| format!("\"mq{n}:1\"")).collect();
    only_mistake(
        &brokers(&format!("[{}]", many.join(", "))),
        "routing_events.brokers[16]",
        "there are 17 brokers; at most 16",
    );
}

#[test]
fn where_events_are_only_posted_there_is_no_broker() {
    let parsed = right(&plus("routing_events: { domain: cloud.test }"));
    assert_eq!(parsed.warnings, []);
    assert!(parsed.model.routing_events.unwrap().brokers.is_empty());
    for key in ["destination: /queue/q", "client_id: c", "tls: { ca: /a }"] {
        let path = format!("routing_events.{}", key.split(':').next().unwrap());
        only_mistake(
            &plus(&format!("routing_events: {{ {key} }}")),
            &path,
            "without `brokers` this has no effect",
        );
    }
}

#[test]
fn routing_event_keys_that_depend_on_others_are_checked() {
    for (rest, key, part) in [
        ("user: me", "user", "a user needs a password: give `password_file`"),
        (
            "password_file: /e/pw",
            "password_file",
            "a password needs a user: give `user`",
        ),
        ("tls: {}", "tls", "the key `ca` is missing"),
        ("tls: { ca: /a, cert: /b }", "tls.cert", "give `key`"),
        ("tls: { ca: /a, key: /b }", "tls.key", "give `cert`"),
        ("subscription: s", "subscription", "give `client_id`"),
        (
            "subscription: s, client_id: c, destination: /queue/q",
            "subscription",
            "only topics have subscriptions",
        ),
    ] {
        only_mistake(&events(rest), &format!("routing_events.{key}"), part);
    }
}

#[test]
fn values() {
    for (rest, key, part) in [
        (
            "destination: routinginfo",
            "destination",
            "write /topic/NAME or /queue/NAME",
        ),
        ("destination: /topic/", "destination", "`/topic/` is not a destination"),
        ("client_id: \"a\\nb\"", "client_id", "`a\\nb` is not one line"),
        ("endpoint_types: []", "endpoint_types", "or write [load_balancer]"),
        ("endpoint_types: [[]]", "endpoint_types[0]", "expected a single value"),
        ("ha_prefix: \"*\"", "ha_prefix", "`*` cannot begin a host name"),
        ("domain: \"*.example.com\"", "domain", "is not a domain"),
        ("domain: 10.0.0.1", "domain", "an address has no names below it"),
        ("certificates: ''", "certificates", "the value is empty"),
        ("brocker: x", "brocker", "unknown key `brocker`"),
    ] {
        only_mistake(&events(rest), &format!("routing_events.{key}"), part);
    }
}

#[test]
fn applications_are_set_by_the_first_pattern_that_matches() {
    let text = events(
        "applications: [ { match: \"bank/*\", balance: maglev, drain: 9s, proxy_protocol: v2, ejection: { failures: 7 }, \
         health: { http: { port: 80, path: /health, host: \"{gear}-{namespace}.cloud.test\" }, interval: 3s } }, \
         { match: \"shop/web\", health: { http: {} } }, { match: \"*\", balance: round-robin } ]",
    );
    let events = right(&text).model.routing_events.unwrap();
    let of = |name: &str| events.settings_of(name).unwrap();
    let bank = of("bank/app");
    assert_eq!(
        (bank.balance, bank.drain),
        (Balance::Maglev, Some(Duration::from_secs(9)))
    );
    assert_eq!(
        (bank.proxy_protocol, bank.ejection.failures),
        (Some(ProxyTlvs::DEFAULT), 7)
    );
    assert_eq!(
        (bank.health.interval, bank.health.proxy_header),
        (Duration::from_secs(3), CheckProxyHeader::HostPorts)
    );
    let wanted = HealthPageTemplate {
        path: Some("/health".into()),
        host_header: Some("{gear}-{namespace}.cloud.test".into()),
        include_non_http: true,
    };
    assert_eq!(bank.health_page, wanted);
    assert!(matches!(&bank.health.probe, Probe::Http(probe) if probe.port == Some(80) && probe.host_header.is_none()));
    assert_eq!(
        of("shop/web").health_page,
        HealthPageTemplate::default(),
        "path and host are each endpoint's own"
    );
    assert_eq!(
        (of("shop/other").balance, &of("shop/other").health.probe),
        (Balance::RoundRobin, &Probe::Endpoint)
    );
    assert_eq!(events.settings_of("east"), None, "no application");
}

#[test]
fn the_reference_application_settings_parse_as_documented() {
    let events = right(&plus(documented("routing_events:")))
        .model
        .routing_events
        .unwrap();
    assert_eq!(events.settings_of("bank/app").unwrap().balance, Balance::Maglev);
    assert!(events.settings_of("shop/web").unwrap().health_page.include_non_http);
}

#[test]
fn mistakes_in_settings_of_applications() {
    let with = |one: &str| events(&format!("applications: [ {{ match: \"a/*\" }}, {{ {one} }} ]"));
    for (one, key, part) in [
        (
            "match: bank",
            ".match",
            "`bank` is not a pattern of applications: write NAMESPACE/APP",
        ),
        (
            "match: \"a/*\"",
            ".match",
            "the first match wins, and line 20 matches all that",
        ),
        ("balance: maglev", "", "the key `match` is missing"),
        ("match: \"*\", tls: {}", ".tls", "unknown key `tls`"),
        ("match: \"*\", balance: best", ".balance", "is not a way to balance"),
        (
            "match: \"*\", health: { http: { host: \"{node}.test\" } }",
            ".health.http.host",
            "{app}, {namespace}, {gear} are placeholders",
        ),
        (
            "match: \"*\", health: { http: { path: health } }",
            ".health.http.path",
            "is not a path to request",
        ),
    ] {
        only_mistake(&with(one), &format!("routing_events.applications[1]{key}"), part);
    }
}
