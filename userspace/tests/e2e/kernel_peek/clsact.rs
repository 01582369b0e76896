//! The program in filters of a clsact qdisc, and sockets that workers make, as before Linux 6.6: a filter outlives its
//! process, whatever is configured.

use crate::lab;

use std::thread::sleep;
use std::time::Duration;

use lab::cut::{self, CutLab};
use lab::{Router, SOON, Signalbox, eventually, lab_test};

use super::orphan::{DEAD_INTERVAL, SERVE, is_refused, is_served_by, while_asking};
use super::{PEEK, expect_routes, start_with};

/// Interfaces of the balancer's that packets pass.
const INTERFACES: [&str; 2] = ["client", "back"];

/// Filters that run the program.
fn filters(lab: &CutLab) -> Vec<String> {
    let shown = INTERFACES.map(|dev| lab.lb.must(&["tc", "filter", "show", "dev", dev, "ingress"]));
    let lines = shown.iter().flat_map(|text| text.lines());
    lines
        .filter(|line| line.contains("peek_in"))
        .map(str::to_owned)
        .collect()
}

/// A lab where links, and a function of the kernel's, are missing.
fn old_lab() -> Option<CutLab> {
    let lab = (!cut::lenient()).then(cut::lab)?;
    lab.set_env("SIGNALBOX_CLSACT", "1");
    lab.set_env("SIGNALBOX_REFUSE", "bpf_sk_assign_tcp_reqsk");
    Some(lab)
}

#[lab_test]
fn the_next_process_replaces_a_filter_and_loses_no_request() {
    let Some(lab) = old_lab() else { return };
    let _router = Router::start(&lab, "east-1");
    // A process may start later than a filter without a process ends, by default.
    let mut sb = start_with(&lab, &cut::body(SERVE), 2);
    sb.wait_healthy(&["east-1"]);
    assert_eq!(filters(&lab).len(), INTERFACES.len(), "{:?}", filters(&lab));
    let config = lab.dir().join("signalbox.yaml");
    while_asking(&lab, || {
        for round in 0..4 {
            sleep(Duration::from_millis(200));
            let before = filters(&lab);
            if round % 2 == 0 {
                sb.kill9();
                sb = Signalbox::start_file(&lab, "restarted", &config, &[]);
            } else {
                let next = Signalbox::spawn_file(&lab, "successor", &config, &["--takeover"]);
                assert_eq!(sb.proc.exit_code(4 * SOON), 0);
                sb = next;
            }
            expect_routes(&sb, 2);
            // The predecessor's filters are gone, and the new process has its own.
            let new = || {
                let now = filters(&lab);
                now.len() == INTERFACES.len() && now.iter().all(|filter| !before.contains(filter))
            };
            assert!(eventually(SOON, new), "{before:?}, then {:?}", filters(&lab));
        }
    });
    assert!(is_served_by(&lab, &sb), "{}", sb.get("/metrics").1);
}

#[lab_test]
fn a_filter_without_a_process_ends_and_sigterm_removes_it() {
    let Some(lab) = old_lab() else { return };
    let _router = Router::start(&lab, "east-1");
    let mut sb = start_with(&lab, &cut::body(PEEK), 2);
    sb.wait_healthy(&["east-1"]);
    sb.kill9();
    sleep(DEAD_INTERVAL);
    assert!(is_refused(&lab));
    let mut sb = start_with(&lab, &cut::body(PEEK), 2);
    sb.wait_healthy(&["east-1"]);
    assert!(is_served_by(&lab, &sb), "{}", sb.get("/metrics").1);
    // A filter that another process has removed is put back.
    lab.lb.must(&["tc", "qdisc", "del", "dev", INTERFACES[0], "clsact"]);
    assert!(
        eventually(SOON, || filters(&lab).len() == INTERFACES.len()),
        "{:?}",
        filters(&lab)
    );
    assert!(eventually(SOON, || is_served_by(&lab, &sb)), "{}", sb.get("/metrics").1);
    sb.term();
    assert_eq!(sb.proc.exit_code(4 * SOON), 0);
    assert!(filters(&lab).is_empty(), "{:?}", filters(&lab));
}

#[lab_test]
fn a_start_that_fails_leaves_no_filter() {
    let Some(lab) = old_lab() else { return };
    let _router = Router::start(&lab, "east-1");
    let mut sb = start_with(&lab, &cut::body(PEEK), 2);
    sb.kill9();
    // The program is attached before the API listens, at an address that is not this machine's.
    let config = std::fs::read_to_string(lab.dir().join("signalbox.yaml")).unwrap();
    let (file, listen) = (lab.dir().join("failing.yaml"), "admin: { listen: \"");
    let (before, after) = config.split_once(listen).unwrap();
    let (_, after) = after.split_once('"').unwrap();
    std::fs::write(&file, format!("{before}{listen}192.0.2.1:1\"{after}")).unwrap();
    let mut sb = Signalbox::spawn_file(&lab, "failing", &file, &[]);
    assert_ne!(sb.proc.exit_code(4 * SOON), 0);
    assert!(filters(&lab).is_empty(), "{:?}\n{}", filters(&lab), sb.proc.log());
}

#[lab_test]
fn a_later_load_pins_its_maps_without_a_warning() {
    let Some(lab) = old_lab() else { return };
    let _router = Router::start(&lab, "east-1");
    let sb = start_with(&lab, &cut::body("datapath: { peek: auto }"), 2);
    let pins = || cut::pins(&lab).iter().any(|dir| dir.join("PEEK_CONFIG").exists());
    assert!(eventually(SOON, pins), "{:?}", cut::pins(&lab));
    assert!(!sb.proc.log().contains("could not be pinned"), "{}", sb.proc.log());
}

#[lab_test]
fn detach_and_a_userspace_process_remove_filters() {
    let Some(lab) = old_lab() else { return };
    let _router = Router::start(&lab, "east-1");
    let mut sb = start_with(&lab, &cut::body(PEEK), 2);
    sb.kill9();
    assert!(!filters(&lab).is_empty());
    cut::detach(&lab);
    assert!(filters(&lab).is_empty(), "{:?}", filters(&lab));
    let mut sb = start_with(&lab, &cut::body(PEEK), 2);
    sb.kill9();
    let _sb = Signalbox::start(&lab, &cut::body("datapath: { peek: userspace }"));
    assert!(eventually(SOON, || filters(&lab).is_empty()), "{:?}", filters(&lab));
}
