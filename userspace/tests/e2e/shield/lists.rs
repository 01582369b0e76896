//! Denied and allowed clients: by the configuration, by files, by the API, for all and for one.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::scene::{BAD, BAD_NETS, DB, GOOD, NODE, Scene, WEB, body};
use super::verdicts::decided;
use crate::lab::callers::{is_greeted, is_served};
use crate::lab::services::greeter;
use crate::lab::signalbox::find;
use crate::lab::{Lab, SOON, StopOnDrop, eventually, lab_test};

const ALL: &[&str] = &["web", "db", "dns"];
const NOBODY: &[&str] = &[];

/// Files are replaced at once, as careful tools do.
fn write(path: &Path, text: &str) {
    let new = path.with_extension("next");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}

#[lab_test]
fn a_denied_client_gets_no_answer_and_all_else_is_untouched() {
    // The longer of two prefixes counts.
    let shield = "shield: { deny: [\"10.1.0.0/24\", \"fd00:1::/64\"], allow: [\"10.1.0.2\", \"fd00:1::2\"] }";
    let scene = Scene::new(shield, "", "");
    let (lab, sb) = (&scene.lab, &scene.sb);
    // Samples are taken from the moment on that a client asks for them, soon after the programs are there.
    let is_told = || {
        sb.json("/api/v1/drops")["drops"]
            .as_array()
            .is_some_and(|drops| !drops.is_empty())
    };
    assert!(eventually(SOON, || !is_served(lab, BAD[0], DB[0]) && is_told()));
    assert_eq!(scene.served(GOOD), ALL);
    assert_eq!(scene.served(BAD), NOBODY);
    for (from, to) in BAD.into_iter().zip(NODE) {
        assert!(is_greeted(lab, from, to), "{to} is no listener's and no service's");
    }
    for (kind, name) in [("listener", "web"), ("service", "db"), ("service", "dns")] {
        let denied = decided(sb, name, "denied");
        assert!(denied >= 2, "{name}: {denied}");
        let key = format!("signalbox_shield_decisions_total{{kind=\"{kind}\",name=\"{name}\",decision=\"denied\"}}");
        assert_eq!(sb.metric(&key) as u64, denied, "{key}");
        for other in ["malformed", "packets", "bytes", "connections", "concurrent", "cookie"] {
            assert_eq!(decided(sb, name, other), 0, "{name}: {other}");
        }
    }
    assert_drops_are_told(&scene);
}

/// Checks that the list of drops has each of a denied client's targets, by the API and by the command.
fn assert_drops_are_told(scene: &Scene) {
    let answer = scene.sb.json("/api/v1/drops");
    let drops = answer["drops"].as_array().unwrap();
    for (guard, protocol, port) in [("web", "tcp", 8080), ("db", "tcp", 3306), ("dns", "udp", 53)] {
        for (source, destination) in [
            ("10.1.0.3:", format!("10.1.0.1:{port}")),
            ("[fd00:1::3]:", format!("[fd00:1::1]:{port}")),
        ] {
            let is_told = drops.iter().any(|drop| {
                drop["source"].as_str().is_some_and(|text| text.starts_with(source))
                    && drop["destination"] == *destination
                    && drop["protocol"] == protocol
                    && drop["guard"] == guard
                    && drop["reason"] == "denied"
            });
            assert!(is_told, "{source} to {destination}: {answer}");
        }
    }
    let output = scene.sb.cli(&["drops"]);
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && table.contains("10.1.0.3") && table.contains("denied"),
        "{table}"
    );
    assert!(!table.contains("10.1.0.2:"), "an allowed client: {table}");
}

#[lab_test]
fn explain_says_what_the_shield_does_with_a_client() {
    let scene = Scene::new("shield: { deny: [\"10.1.0.3\"] }", ", shield: off", "");
    let explain = |from: &str| scene.sb.json(&format!("/api/v1/shield/explain?client={from}"));
    for (from, verdict) in [("10.1.0.3", "denied"), ("10.1.0.2", "passes")] {
        let answer = explain(from);
        for name in ["db", "dns"] {
            let said = &find(&answer["guards"], "name", name)["shield"];
            assert_eq!(said["verdict"], verdict, "{name}: {answer}");
            let names_prefix = said["reason"].as_str().is_some_and(|text| text.contains("10.1.0.3/32"));
            assert_eq!(names_prefix, verdict == "denied", "{name}: {answer}");
        }
        assert_eq!(find(&answer["guards"], "name", "web"), Value::Null, "it has no shield");
    }
}

#[lab_test]
fn a_changed_list_file_is_reloaded_and_a_broken_one_ignored() {
    let lab = Lab::new();
    let at = |name: &str| -> PathBuf { lab.dir().join(name) };
    let (deny, allow) = (at("deny.txt"), at("allow.txt"));
    write(&deny, "# nobody yet\n");
    write(&allow, "");
    let shield = format!(
        "shield: {{ deny_files: [{}], allow_files: [{}] }}",
        deny.display(),
        allow.display()
    );
    let scene = Scene::of(lab, &body(&shield, "", ""));
    let troubles = || scene.sb.json("/api/v1/shield")["troubles"].clone();
    let is_quiet = || troubles().as_array().is_some_and(Vec::is_empty);
    assert_eq!(scene.served(BAD), ALL);
    write(&deny, "10.1.0.3  # the one\n\nfd00:1::3/128\n");
    scene.wait_served(BAD, NOBODY);
    assert_eq!(scene.served(GOOD), ALL);
    assert!(is_quiet(), "{}", troubles());
    // The last good content stays, and the bad line is reported.
    write(&deny, "10.1.0.2\nfd00:1::2\n10.1.0.300\n");
    assert!(eventually(SOON, || !is_quiet()));
    let told = troubles();
    let text = told.to_string();
    assert!(text.contains("deny.txt") && text.contains("10.1.0.300"), "{told}");
    assert_eq!(scene.served(BAD), NOBODY);
    assert_eq!(scene.served(GOOD), ALL);
    // A file that is no longer there is reported, and its last content stays.
    std::fs::remove_file(&deny).unwrap();
    assert!(eventually(SOON, || troubles() != told), "{told}");
    assert!(!is_quiet());
    assert_eq!(scene.served(BAD), NOBODY);
    // Good again, with every client denied except one.
    write(&allow, "10.1.0.3\nfd00:1::3\n");
    write(&deny, "10.1.0.0/24\nfd00:1::/64\n");
    scene.wait_served(GOOD, NOBODY);
    scene.wait_served(BAD, ALL);
    assert!(eventually(SOON, is_quiet), "{}", troubles());
}

#[lab_test]
fn the_api_denies_for_all_or_one_in_addition_to_the_config() {
    let scene = Scene::new("shield: {}", "", "");
    let put = |whose: &str, deny: &[&str]| {
        let lists = json!({ "deny": deny, "allow": [] }).to_string();
        let path = format!("/api/v1/shield/prefixes/{whose}");
        let response = scene.sb.unix("PUT", &path, &lists);
        assert!((200..300).contains(&response.status), "{}", response.body);
    };
    assert_eq!(scene.served(BAD), ALL);
    put("*", &BAD_NETS);
    scene.wait_served(BAD, NOBODY);
    assert_eq!(scene.served(GOOD), ALL);
    // A reload does not change the API's prefixes.
    scene.sb.reload(&body("shield: { deny: [\"192.0.2.0/24\"] }", "", ""));
    assert_eq!(scene.served(BAD), NOBODY);
    // Replaced, and not added to.
    put("*", &[]);
    scene.wait_served(BAD, ALL);
    put("web", &BAD_NETS);
    scene.wait_served(BAD, &["db", "dns"]);
    put("db", &BAD_NETS);
    scene.wait_served(BAD, &["dns"]);
    assert_eq!(scene.served(GOOD), ALL);
    put("web", &[]);
    scene.wait_served(BAD, &["web", "dns"]);
    // A wrong prefix changes nothing, and neither does a change over the read-only address.
    let wrong = json!({ "deny": ["10.1.0.2/33"], "allow": [] }).to_string();
    let response = scene.sb.unix("PUT", "/api/v1/shield/prefixes/*", &wrong);
    assert!(
        (400..500).contains(&response.status),
        "{} {}",
        response.status,
        response.body
    );
    let all = json!({ "deny": ["0.0.0.0/0"], "allow": [] }).to_string();
    let response = scene.sb.unix("PUT", "/api/v1/shield/prefixes/nobody", &all);
    assert_eq!(response.status, 404, "{}", response.body);
    let response = scene.sb.admin("PUT", "/api/v1/shield/prefixes/*", &all);
    assert!(
        (400..500).contains(&response.status),
        "{} {}",
        response.status,
        response.body
    );
    assert_eq!(scene.served(GOOD), ALL);
    assert_eq!(scene.served(BAD), ["web", "dns"]);
}

#[lab_test]
fn a_listener_may_be_unshielded_and_a_service_have_own_lists() {
    let off = ", shield: off";
    let own = ", shield: { deny: [\"10.1.0.2\", \"fd00:1::2\"] }";
    let scene = Scene::new("shield: { deny: [\"10.1.0.3\", \"fd00:1::3\"] }", off, own);
    assert_eq!(scene.served(BAD), ["web"]);
    assert_eq!(scene.served(GOOD), ["web", "dns"]);
    // Without any, no client is denied anything.
    scene.sb.reload(&body("", "", ""));
    scene.wait_served(BAD, ALL);
    scene.wait_served(GOOD, ALL);
}

#[lab_test]
fn the_api_takes_an_address_for_the_prefix_that_holds_it_alone() {
    let scene = Scene::new("shield: {}", "", "");
    let lists = json!({ "deny": BAD, "allow": [] }).to_string();
    let response = scene.sb.unix("PUT", "/api/v1/shield/prefixes/*", &lists);
    assert_eq!(response.status, 200, "{}", response.body);
    scene.wait_served(BAD, NOBODY);
}

#[lab_test]
fn forwarded_traffic_is_not_guarded_by_a_wildcard_listener() {
    let lab = Lab::new();
    lab.lb.must(&["sysctl", "-qw", "net.ipv4.ip_forward=1"]);
    let host = lab.host("east-1");
    host.must(&["ip", "route", "replace", "10.1.0.0/24", "via", "10.2.0.1"]);
    let _server = greeter(host, "[::]:8080", "forwarded");
    let all = body("shield: { deny: [\"10.1.0.3\", \"fd00:1::3\"] }", "", "").replace(
        "listen: [\"10.1.0.1:8080\", \"[fd00:1::1]:8080\"]",
        "listen: [\"0.0.0.0:8080\", \"[::]:8080\"]",
    );
    let scene = Scene::of(lab, &all);
    scene.wait_served(BAD, NOBODY);
    // Forwarded packets for the same port of another machine are not guarded.
    assert!(is_greeted(&scene.lab, GOOD[0], "10.2.0.2:8080"));
    assert!(is_greeted(&scene.lab, BAD[0], "10.2.0.2:8080"));
}

/// A table of hundreds of thousands of prefixes takes the place of another while packets are looked up in it: at no
/// moment is a client denied that neither denies, or let in that both deny.
#[lab_test]
fn large_lists_take_each_others_place_while_everybody_calls() {
    let scene = Scene::new("shield: {}", "", "");
    let list = |salt: u32| {
        // From 11.0.0.0 on, and from 2001:db8:: on: none is used here.
        let random = |at: u32| {
            at.wrapping_mul(0x9e37_79b1)
                .wrapping_add(salt.wrapping_mul(0x85eb_ca6b))
        };
        let v4 = (0..200_000).map(|at| {
            let word = random(at);
            let bits = 24 + (word & 7);
            let address = (11 + (word >> 24) % 100) << 24 | (word & 0x00ff_ffff);
            let address = address & (u32::MAX << (32 - bits));
            format!("{}/{bits}", std::net::Ipv4Addr::from(address))
        });
        let v6 = (0..20_000).map(|at| format!("2001:db8:{:x}::/48", random(at) >> 16));
        let all = v4.chain(v6).chain(BAD_NETS.map(str::to_owned));
        json!({ "deny": all.collect::<Vec<_>>(), "allow": [] }).to_string()
    };
    let lists = [list(1), list(2)];
    let put = |body: &str| scene.sb.unix("PUT", "/api/v1/shield/prefixes/*", body).status;
    assert_eq!(put(&lists[0]), 200);
    scene.wait_served(BAD, NOBODY);
    let (began, ended) = (Instant::now(), AtomicBool::new(false));
    let (good, bad) = std::thread::scope(|scope| {
        let (scene, ended) = (&scene, &ended);
        let caller = |who: [&'static str; 2], is_served: bool| {
            scope.spawn(move || {
                let mut calls = 0;
                while !ended.load(Relaxed) {
                    for (family, to) in [(0, WEB[0]), (1, DB[1])] {
                        // A server's first bytes may be late on a busy machine; forbidden ones never come.
                        let tries = if is_served { 3 } else { 1 };
                        let is_greeted = (0..tries).any(|_| is_greeted(&scene.lab, who[family], to));
                        assert_eq!(is_greeted, is_served, "{to}");
                        calls += 1;
                    }
                }
                calls
            })
        };
        let stop = StopOnDrop(ended);
        let callers = [caller(GOOD, true), caller(BAD, false)];
        let mut statuses = Vec::new();
        while began.elapsed() < Duration::from_secs(8) || statuses.len() < 3 {
            statuses.push(put(&lists[(statuses.len() + 1) % 2]));
        }
        drop(stop);
        assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
        let [good, bad] = callers.map(|caller| caller.join().unwrap());
        (good, bad)
    });
    assert!(good > 20 && bad > 3, "{good} calls were served, {bad} were not");
    let shield = scene.sb.json("/api/v1/shield");
    assert!(shield["troubles"].as_array().is_some_and(Vec::is_empty), "{shield}");
    assert_eq!(put(&json!({ "deny": [], "allow": [] }).to_string()), 200);
    scene.wait_served(BAD, ALL);
}

/// A prefix with bits after its length, one of all addresses, and one of most clients: none is denied by mistake.
#[lab_test]
fn a_slip_of_the_prefix_denies_nobody() {
    let scene = Scene::new("shield: {}", "", "");
    let all: Vec<_> = [2, 3, 12, 13, 14, 15]
        .iter()
        .map(|last| format!("10.1.0.{last}"))
        .collect();
    for address in &all[2..] {
        scene
            .lab
            .client
            .must(&["ip", "addr", "add", &format!("{address}/24"), "dev", "eth0"]);
    }
    let held: Vec<_> = all
        .iter()
        .map(|from| scene.lab.client.connect_from(from, WEB[0]))
        .collect();
    assert!(eventually(SOON, || scene.sb.flow_count() == all.len() as u64));
    let deny = |words: &[&str]| {
        let output = scene.sb.cli(&[&["shield", "deny"], words].concat());
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    for (prefix, remedy) in [
        ("10.1.0.3/24", "write 10.1.0.0/24 for the network, or 10.1.0.3"),
        ("0.0.0.0/0", "--force"),
        ("::/8", "--force"),
        ("10.1.0.0/24", "6 of 6 clients that are connected"),
        ("10.1.0.12/30", "4 of 6 clients that are connected"),
    ] {
        let (is_denied, said) = deny(&[prefix]);
        assert!(!is_denied && said.contains(remedy), "{prefix}: {said}");
    }
    let body = r#"{ "deny": ["10.1.0.3/24"] }"#;
    let answer = scene.sb.unix("POST", "/api/v1/shield/prefixes/*", body);
    assert!(
        answer.status == 400 && answer.body.contains("10.1.0.0/24"),
        "{}",
        answer.body
    );
    assert_eq!(scene.served(GOOD), ["web", "db", "dns"]);
    assert_eq!(deny(&BAD), (true, String::new()));
    scene.wait_served(BAD, NOBODY);
    assert_eq!(deny(&["--force", "10.1.0.12/30"]), (true, String::new()));
    drop(held);
}
