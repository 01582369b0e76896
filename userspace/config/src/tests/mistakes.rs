//! Messages for a file with several mistakes.

use super::{EXAMPLE, bent, mistakes_of, only_mistake, plus};

#[test]
fn five_mistakes_give_five_errors_at_their_places() {
    let text = EXAMPLE
        .replace("  - { name: http,  protocol", "  - { name: http,  protocl")
        .replace("10.1.0.1:3306\"", "10.1.0.1\"")
        .replace("weight: 2", "weight: 0")
        .replace("{ east: 10, west: 80 }", "{ eats: 10, west: 80 }")
        .replace("unmatched: reject", "unmatched: rejcet");
    let allowed = "name, protocol, listen, cluster, backup, proxy_protocol, routing, datapath, shield, termination, strict_sni, client_certificates, forwarded, request_id, ambiguous_paths or redirect_port";
    assert_eq!(
        mistakes_of(&text),
        [
            format!(
                "4:20: listeners[0].protocl: unknown key `protocl`; did you mean `protocol`? (known here: {allowed})"
            ),
            "6:45: listeners[2].listen[0]: `10.1.0.1` has no port: write 10.1.0.1:80".to_owned(),
            "13:85: clusters[0].hosts[1].weight: `0` is not a whole number from 1 to 100".to_owned(),
            "17:43: routes[0].clusters.eats: there is no cluster `eats`; did you mean `east`? (known: east, west)"
                .to_owned(),
            "19:12: unmatched: `rejcet` is neither reject, any nor { cluster: NAME }; did you mean `reject`?"
                .to_owned(),
        ]
    );
}

#[test]
fn the_whole_file() {
    only_mistake("", "", "the file is empty");
    only_mistake("# nothing\n", "", "the file is empty");
    only_mistake("- version: 1", "", "expected a mapping (`key: value`), found a list");
    only_mistake("hello", "", "expected a mapping (`key: value`), found a single value");
    only_mistake(&bent("version: 1\n", ""), "", "the key `version` is missing");
    only_mistake(
        &bent("version: 1", "version: 2"),
        "version",
        "`2` is not a version this signalbox knows: it must be 1",
    );
    only_mistake(&bent("version: 1", "version:"), "version", "the value is missing");
    only_mistake(
        &plus("backends: []"),
        "backends",
        "unknown key `backends` (known here: version, admin,",
    );
    assert_eq!(
        mistakes_of("{}").len(),
        3,
        "version, listeners and clusters are missing"
    );
    only_mistake(
        &bent("listeners:\n", "listners:\n"),
        "listners",
        "did you mean `listeners`?",
    );
}

#[test]
fn a_message_stays_on_its_line() {
    let text = bent("name: mysql", "name: \"a\\nb\\e[31m\", \"x\\ny\": 1");
    let errors = mistakes_of(&text);
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(
        errors.iter().all(|error| !error.contains(char::is_control)),
        "{errors:?}"
    );
}
