//! Programs and pins that someone else removes: a qdisc with its filters, links with their directory.

use std::fs;
use std::path::PathBuf;

use super::scene::{BAD, DB, GOOD, Scene, WEB, body};
use crate::lab::callers::is_greeted;
use crate::lab::services::{echo, greeting};
use crate::lab::{Lab, SOON, cut, eventually, lab_test};

const SHIELD: &str = "shield: { deny: [10.1.0.3/32, \"fd00:1::3/128\"] }";

/// Waits until all is as before: services are there, connections are cut, and no denied client is answered.
fn expect_all(scene: &Scene, after: &str) {
    let mut seen = (Vec::new(), 0);
    let is_back = || {
        seen.0 = [DB, WEB].concat();
        seen.0
            .retain(|&at| is_greeted(&scene.lab, GOOD[usize::from(at.starts_with('['))], at));
        // At once, because hosts of both families take turns, and a connection that changes the family is not cut.
        let before = cut::opened(&scene.sb);
        let streams: Vec<_> = (0..4).map(|_| scene.lab.client.connect(WEB[0])).collect();
        let is_cut = eventually(SOON / 10, || {
            seen.1 = cut::opened(&scene.sb) - before;
            seen.1 >= 1
        });
        drop(streams);
        is_cut && seen.0.len() == 4
    };
    let is_back = eventually(SOON, is_back);
    assert!(
        is_back,
        "after {after}: {} serve, {} were cut\n{}\n{}",
        seen.0.join(", "),
        seen.1,
        cut::reasons(&scene.sb),
        scene.sb.proc.log()
    );
    // The second line would reset the connection of a denied client; the program gives it no answer at all.
    scene.wait_served(BAD, &[]);
    let refused = "signalbox_refused_total{listener=\"web\",reason=\"shield_denied\"}";
    assert_eq!(scene.sb.metric(refused), 0.0, "after {after}");
}

#[lab_test]
fn filters_that_are_removed_with_their_qdisc_are_put_back() {
    let lab = Lab::new();
    lab.set_env("SIGNALBOX_CLSACT", "1");
    let scene = Scene::of(lab, &body(SHIELD, "", ""));
    expect_all(&scene, "the start");
    for device in ["client", "back"] {
        scene.lab.lb.must(&["tc", "qdisc", "del", "dev", device, "clsact"]);
    }
    let is_there = |device| {
        let shown = ["ingress", "egress"].map(|way| scene.lab.lb.must(&["tc", "filter", "show", "dev", device, way]));
        ["cut_in", "cut_out", "l4_tc"]
            .iter()
            .all(|name| shown.iter().any(|text| text.contains(name)))
    };
    assert!(
        eventually(SOON, || is_there("client") && is_there("back")),
        "{}",
        scene.sb.proc.log()
    );
    expect_all(&scene, "the end of the qdiscs");
}

/// Directories of pins of the lab's balancer, of both kinds.
fn pin_dirs(lab: &Lab) -> Vec<PathBuf> {
    [cut::pins(lab), cut::pins_of(lab, "l4-net")].concat()
}

fn names(dir: &PathBuf) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[lab_test]
fn removed_pins_are_recreated_and_a_successor_finds_the_flows() {
    let mut scene = Scene::new(SHIELD, "", "");
    expect_all(&scene, "the start");
    let held = (0..2).map(|_| scene.lab.client.connect(WEB[0])).find(|held| {
        greeting(held);
        eventually(SOON / 10, || {
            cut::shown(&scene.sb, held.local_addr().unwrap())["tier"] == "cut"
        })
    });
    let held = held.unwrap();
    let dirs = pin_dirs(&scene.lab);
    assert_eq!(dirs.len(), 2, "{dirs:?}");
    let before: Vec<_> = dirs.iter().map(names).collect();
    for dir in &dirs {
        fs::remove_dir_all(dir).unwrap();
    }
    let now = || dirs.iter().map(names).collect::<Vec<_>>();
    assert!(eventually(SOON, || now() == before), "{:?}\n{before:?}", now());
    expect_all(&scene, "the end of the pins");
    scene.sb.be_replaced("successor");
    expect_all(&scene, "a takeover");
    echo(&held, b"a flow of before").unwrap();
    cut::expect_cut(&scene.sb, &held);
}
