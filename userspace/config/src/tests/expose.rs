//! Endpoints of applications as layer-4 services.

use std::time::Duration;

use signalbox_core::model::services::{Affinity, Mode};
use signalbox_core::model::{ExposeRule, Probe};

use super::{documented, only_mistake, plus, right};

fn rules(all: &str) -> String {
    plus(&format!("routing_events: {{ expose: [ {all} ] }}"))
}

fn parsed(all: &str) -> Vec<ExposeRule> {
    right(&rules(all)).model.routing_events.unwrap().expose
}

#[test]
fn the_reference_expose_rules_parse_as_documented() {
    let reference = documented("routing_events:\n  expose:");
    let parsed = right(&plus(reference));
    assert_eq!(parsed.warnings, []);
    let rules = parsed.model.routing_events.unwrap().expose;
    let [db, all] = &rules[..] else { panic!("{rules:?}") };
    assert_eq!(
        (db.ports.clone(), db.port_names.as_slice()),
        (3306..=3306, &["mysql-*".to_owned()][..])
    );
    assert_eq!((all.addresses.len(), all.ports.clone()), (2, 20_000..=20_099));
    assert_eq!(all.listen_text(), "10.1.0.9:20000-20099, [fd00:1::9]:20000-20099");
    assert_eq!(
        (&all.health.probe, all.health.interval),
        (&Probe::Tcp { port: None }, Duration::from_secs(10))
    );
}

#[test]
fn an_expose_rule_has_the_defaults_of_a_service() {
    let [rule] = &parsed("{ match: \"*\", listen: [\"10.1.0.9:7000-7009\"] }")[..] else {
        panic!()
    };
    assert_eq!(
        (rule.mode, rule.affinity, rule.idle),
        (Mode::Nat, Affinity::Flow, Duration::from_secs(3600))
    );
    assert_eq!((&rule.health, &rule.shield), (&ExposeRule::HEALTH, &None));
    assert!(rule.port_names.is_empty() && rule.protocols.is_empty());
    let text = "{ match: a/b, listen: [\"10.1.0.9:25\"], mode: dsr-l2, affinity: source, idle: 5m, protocols: [smtp], \
                health: { http: { port: 8080, path: /up } } }";
    let [rule] = &parsed(text)[..] else { panic!() };
    assert_eq!(
        (rule.mode, rule.affinity, rule.idle),
        (Mode::DsrL2, Affinity::Source, Duration::from_secs(300))
    );
    assert!(rule.protocols.contains("smtp"));
}

#[test]
fn mistakes_in_rules() {
    for (one, path, part) in [
        ("listen: [\"10.1.0.9:1\"]", "", "the key `match` is missing"),
        ("match: \"*\"", "", "the key `listen` is missing"),
        (
            "match: bank, listen: [\"10.1.0.9:1\"]",
            ".match",
            "is not a pattern of applications: write NAMESPACE/APP",
        ),
        (
            "match: \"*\", listen: []",
            ".listen",
            "services need at least one address, such as",
        ),
        (
            "match: \"*\", listen: [\"10.1.0.9:0-9\"]",
            ".listen[0]",
            "needs a port, or a range of them, from 1 to 65535",
        ),
        (
            "match: \"*\", listen: [\"10.1.0.9:9-8\"]",
            ".listen[0]",
            "needs a port, or a range of them, from 1 to 65535",
        ),
        (
            "match: \"*\", listen: [\"0.0.0.0:9\"]",
            ".listen[0]",
            "needs its own addresses",
        ),
        (
            "match: \"*\", listen: [\"10.1.0.9:1-9\", \"[fd00::1]:1-8\"]",
            ".listen[1]",
            "[fd00::1]:1-8 has other ports than 10.1.0.9:1-9",
        ),
        (
            "match: \"*\", listen: [\"10.1.0.9:1-9\", \"10.1.0.9:1-9\"]",
            ".listen[1]",
            "10.1.0.9:1-9 is already used by the rule on line 20 (10.1.0.9:1-9)",
        ),
        (
            "match: \"*\", listen: [\"10.1.0.9:1-1024\"]",
            ".listen",
            "and 1022 of at most 1023 services are left: give fewer",
        ),
        (
            "match: \"*\", listen: [\"10.1.0.9:1-9\"], mode: dsr-l2",
            ".mode",
            "direct return does not change ports: listen on the one port",
        ),
        (
            "match: \"*\", listen: [\"10.1.0.9:1\"], health: { http: {} }",
            ".health",
            "an exposed endpoint has no port for HTTP: give the check a `port`",
        ),
        (
            "match: \"*\", listen: [\"10.1.0.9:1\"], port_names: []",
            ".port_names",
            "a rule without port names selects no endpoint",
        ),
        (
            "match: \"*\", listen: [\"10.1.0.9:1\"], port_names: [\"a/b\"]",
            ".port_names[0]",
            "`a/b` is not a port name",
        ),
        (
            "match: \"*\", listen: [\"10.1.0.9:1\"], ports: 3",
            ".ports",
            "unknown key `ports`",
        ),
    ] {
        let before = "{ match: a/b, listen: [\"10.1.0.8:1\"] }";
        only_mistake(
            &rules(&format!("{before}, {{ {one} }}")),
            &format!("routing_events.expose[1]{path}"),
            part,
        );
    }
    only_mistake(
        &rules("{ match: \"*\", listen: [\"10.1.0.8:1\"] }, { match: a/b, listen: [\"10.1.0.9:1\"] }"),
        "routing_events.expose[1].match",
        "line 20 matches all applications: put this before it",
    );
    only_mistake(
        &rules("{ match: a/b, listen: [\"10.1.0.9:1-9\"] }, { match: b/b, listen: [\"10.1.0.9:9-10\"] }"),
        "routing_events.expose[1].listen[0]",
        "10.1.0.9:9-10 is already used by the rule on line 20 (10.1.0.9:1-9)",
    );
}

/// Ports of the file's own services stay theirs; a rule gets the rest of its range.
#[test]
fn ports_that_are_taken_are_warned_of_where_the_rule_says_them() {
    let warnings = |listen: &str, more: &str| {
        let text = rules(&format!("{{ match: \"*\", listen: [\"{listen}\"] }}"));
        let all = right(&format!("{text}{more}")).warnings;
        all.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(warnings("10.1.0.9:20000-20099", "").is_empty());
    let service = "services: [ { name: db, protocol: tcp, listen: [\"10.1.0.9:3306-3307\"], cluster: east } ]\n";
    assert_eq!(
        warnings("10.1.0.9:3306", service),
        [
            "20:51: routing_events.expose[0].listen: nothing is exposed at 10.1.0.9:3306: service db has port 3306, and \
          listeners and services of the file come first"
        ]
    );
    assert_eq!(
        warnings("10.1.0.9:3300-3309", service),
        [
            "20:51: routing_events.expose[0].listen: 2 ports of 10.1.0.9:3300-3309 are in use, the first of them, 3306, by service \
          db: no application gets them"
        ]
    );
    let udp = service.replace("tcp", "udp");
    assert!(
        warnings("10.1.0.9:3306", &udp).is_empty(),
        "another protocol is another service"
    );
}
