//! The shield while signalbox is dead, and afterwards.

use serde_json::json;

use super::scene::{BAD, BAD_NETS, DB, DNS, GOOD, NODE, Scene, body};
use super::verdicts::decided;
use crate::lab::callers::{call, is_answered, is_greeted};
use crate::lab::services::{echo, greeting};
use crate::lab::{SOON, Signalbox, lab_test};

#[lab_test]
fn services_stay_shielded_while_dead_and_api_lists_come_back() {
    let mut scene = Scene::new("shield: {}", "", "");
    let lists = json!({ "deny": BAD_NETS, "allow": [] }).to_string();
    let response = scene.sb.unix("PUT", "/api/v1/shield/prefixes/*", &lists);
    assert!((200..300).contains(&response.status), "{}", response.body);
    scene.wait_served(BAD, &[]);
    let own = json!({ "deny": ["192.0.2.0/24"], "allow": [] }).to_string();
    let response = scene.sb.unix("PUT", "/api/v1/shield/prefixes/db", &own);
    assert!((200..300).contains(&response.status), "{}", response.body);
    let held = call(&scene.lab, GOOD[0], DB[0]).unwrap();
    assert_eq!(greeting(&held), "east-1");

    scene.sb.kill9();
    for family in 0..2 {
        assert!(!is_greeted(&scene.lab, BAD[family], DB[family]));
        assert!(!is_answered(&scene.lab, BAD[family], DNS[family]));
        assert!(is_greeted(&scene.lab, GOOD[family], DB[family]));
        assert!(is_answered(&scene.lab, GOOD[family], DNS[family]));
        assert!(is_greeted(&scene.lab, BAD[family], NODE[family]));
    }
    echo(&held, b"without a balancer").unwrap();

    scene.sb = Signalbox::start(&scene.lab, &body("shield: {}", "", ""));
    scene.wait_ready();
    scene.wait_served(BAD, &[]);
    scene.wait_served(GOOD, &["web", "db", "dns"]);
    echo(&held, b"with another").unwrap();
    assert!(decided(&scene.sb, "web", "denied") > 0);

    // A successor takes over what the kernel holds.
    let config = crate::lab::signalbox::write_config(&scene.lab, "next.yaml", &body("shield: {}", "", ""));
    let next = Signalbox::start_file(&scene.lab, "next", &config, &["--takeover"]);
    assert!(scene.sb.proc.wait_exit(SOON).is_some(), "the predecessor has not ended");
    scene.sb = next;
    scene.wait_ready();
    scene.wait_served(BAD, &[]);
    assert_eq!(scene.served(GOOD), ["web", "db", "dns"]);
    echo(&held, b"with a third").unwrap();
}

#[lab_test]
fn shield_rules_removed_while_signalbox_is_down_end_at_restart() {
    const LISTS: &str = "shield: { deny: [\"10.1.0.3\", \"fd00:1::3\"] }";
    let mut scene = Scene::new(LISTS, "", "");
    scene.wait_served(BAD, &[]);
    // Numbers of guards, and their targets, are from another process.
    scene.sb.kill9();
    scene.sb = Signalbox::start(&scene.lab, &body(LISTS, ", shield: off", ""));
    scene.wait_ready();
    scene.wait_served(BAD, &["web"]);
    scene.sb.kill9();
    scene.sb = Signalbox::start(
        &scene.lab,
        &body("", "", ", shield: { deny: [\"10.1.0.2\", \"fd00:1::2\"] }"),
    );
    scene.wait_ready();
    scene.wait_served(BAD, &["web", "db", "dns"]);
    scene.wait_served(GOOD, &["web", "dns"]);
    scene.sb.kill9();
    scene.sb = Signalbox::start(&scene.lab, &body("", "", ""));
    scene.wait_ready();
    scene.wait_served(GOOD, &["web", "db", "dns"]);
}
