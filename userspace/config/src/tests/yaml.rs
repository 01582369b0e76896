//! Texts that are wrong, or merely unusual, as YAML.

use super::{bent, mistakes_of, only_mistake, plus, right};

#[test]
fn a_syntax_error_is_one_error_with_its_place() {
    let mistakes = mistakes_of("version: 1\nlisteners: [a\nclusters: x\n");
    assert_eq!(mistakes.len(), 1, "{mistakes:?}");
    assert!(mistakes[0].starts_with("3:"), "{mistakes:?}");
    assert!(mistakes[0].contains("this is not YAML"), "{mistakes:?}");
}

#[test]
fn a_star_needs_quotes() {
    only_mistake(
        &bent("\"*.apps.example.com\"", "*.apps.example.com"),
        "",
        "needs quotes: \"*:80\"",
    );
    only_mistake(&bent("\"10.1.0.1:3306\"", "*:3306"), "", "needs quotes: \"*:80\"");
}

#[test]
fn brackets_need_quotes() {
    only_mistake(
        &bent("\"10.1.0.1:3306\"", "[fd00::1]:80"),
        "",
        "needs quotes: \"[::1]:80\"",
    );
}

#[test]
fn a_key_given_twice_is_a_mistake() {
    let mistakes = mistakes_of(&plus("version: 1\ntimeouts: { idle: 1s, idle: 2s }"));
    assert_eq!(
        mistakes,
        [
            "20:1: version: the key `version` is given twice, first on line 1",
            "21:23: timeouts.idle: the key `idle` is given twice, first on line 21"
        ]
    );
}

#[test]
fn one_document_is_enough() {
    only_mistake(&plus("---\nversion: 1"), "", "a second document begins here");
    right(&format!("---\n{}...\n", super::EXAMPLE));
}

#[test]
fn anchors_share_settings() {
    let text = bent("health: { http: { port: 1936", "health: &check { http: { port: 1936");
    let text = text.replace("- name: west\n", "- name: west\n    health: *check\n");
    let model = right(&text).model;
    assert_eq!(model.clusters[0].health, model.clusters[1].health);
}

#[test]
fn merge_keys_are_refused_with_the_remedy() {
    let text = bent("health: { http:", "health: &check { http:");
    let text = text.replace(
        "- name: west\n",
        "- name: west\n    health: { <<: *check, interval: 9s }\n",
    );
    only_mistake(
        &text,
        "clusters[1].health[\"<<\"]",
        "merge keys (`<<`) are not supported",
    );
}

#[test]
fn tags_are_refused() {
    only_mistake(
        &bent("version: 1", "version: !!int 1"),
        "",
        "YAML tags (here `int`) have no meaning",
    );
}

#[test]
fn an_alias_to_itself_is_refused() {
    only_mistake(
        "version: &a [*a]",
        "",
        "this alias stands for something that contains it",
    );
}

#[test]
fn a_billion_laughs_are_not_laughed() {
    let mut text = "a: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (from, to) in ('a'..'n').zip('b'..) {
        text.push_str(&format!(
            "{to}: &{to} [*{from}, *{from}, *{from}, *{from}, *{from}, *{from}, *{from}, *{from}]\n"
        ));
    }
    only_mistake(&text, "", "grows beyond a million values");
}

#[test]
fn depth_has_an_end() {
    for deep in [
        "[".repeat(200),
        "- ".repeat(100_000),
        "{a: ".repeat(200),
        "? ".repeat(100_000),
    ] {
        only_mistake(&deep, "", "nested more than 32 deep");
    }
    let mut text = "a0: &a0 [[[[[[[[x]]]]]]]]\n".to_owned();
    for n in 1..20 {
        text.push_str(&format!("a{n}: &a{n} [[[[[[[[*a{}]]]]]]]]\n", n - 1));
    }
    only_mistake(&text, "", "nested more than 32 deep");
}

#[test]
fn line_ends_and_byte_order_marks_do_not_matter() {
    right(&super::EXAMPLE.replace('\n', "\r\n"));
    right(&super::EXAMPLE.replace('\n', "\r"));
    right(&format!("\u{feff}{}", super::EXAMPLE));
    only_mistake(
        &bent("version: 1", "version: 2").replace('\n', "\r\n"),
        "version",
        "must be 1",
    );
}
