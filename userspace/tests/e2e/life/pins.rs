//! Pins: collected once their network namespace is gone and not before, removed beside foreign files, refused where a
//! pin is another map, and reported where they end with the process.

use crate::lab;

use std::path::PathBuf;
use std::process::Output;

use lab::namespace::{Ns, ip};
use lab::signalbox::{binary, under_command};
use lab::{Lab, SOON, Signalbox, cut, eventually, lab_test, servers};

/// A balancer that was killed, and its pins.
fn killed() -> (Lab, Vec<PathBuf>) {
    let lab = Lab::new();
    let _health = ["east-1", "west-1"].map(|host| servers::healthy(lab.host(host)));
    Signalbox::start(&lab, &cut::body("")).kill9();
    let pins = cut::pins(&lab);
    let links = pins.iter().flat_map(|dir| dir.read_dir().unwrap().flatten());
    let is_link = |name: std::ffi::OsString| name.to_string_lossy().starts_with("link-");
    assert!(
        !has_tcx() || links.map(|entry| entry.file_name()).any(is_link),
        "{pins:?}"
    );
    assert!(!pins.is_empty());
    (lab, pins)
}

fn has_tcx() -> bool {
    signalbox::kernel::has_tcx()
}

fn all_there(pins: &[PathBuf]) -> bool {
    pins.iter().all(|dir| dir.join("CUT_FLOWS").exists())
}

fn none_there(pins: &[PathBuf]) -> bool {
    !pins.iter().any(|dir| dir.exists())
}

/// `signalbox detach` in a namespace.
fn detach(ns: &Ns, words: &[&str]) -> (Output, String) {
    let output = ns.command(binary()).arg("detach").args(words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, said)
}

#[lab_test]
fn pins_go_with_their_namespace_and_never_before() {
    let (alive, kept) = killed();
    let (dead, debris) = killed();
    // The namespace is removed before the lab's own end, which would clean up: the name goes, the descriptors follow.
    ip(&["netns", "del", dead.lb.name()]);
    drop(dead);

    // A start collects the pins of namespaces that are gone; `alive` has no process, but a name.
    let other = cut::lab();
    let mut gone = false;
    // The kernel removes a namespace some time later.
    for _ in 0..10 {
        let sb = Signalbox::start(&other, &cut::body(""));
        gone = eventually(SOON / 10, || none_there(&debris));
        drop(sb);
        if gone {
            break;
        }
    }
    assert!(gone, "{debris:?}");
    assert!(all_there(&kept), "a namespace that lives has lost its pins");

    // Neither a process nor a name keeps this namespace, only a descriptor of this test.
    ip(&["netns", "del", alive.lb.name()]);
    let (output, said) = detach(&other.client, &["--all"]);
    assert!(output.status.success(), "{output:?}");
    assert!(!has_tcx() || all_there(&kept), "its interfaces live on: {said}");
    drop(alive);
    let gone = eventually(SOON, || {
        let (output, _) = detach(&other.client, &["--all"]);
        output.status.success() && none_there(&kept)
    });
    assert!(gone, "{kept:?}");
}

#[lab_test]
fn a_pin_of_another_kind_is_named_and_detach_spares_alien_pins() {
    let (lab, pins) = killed();
    let dir = &pins[0];
    for (from, to) in [("CUT_FLOWS", "swap"), ("CUT_CT", "CUT_FLOWS"), ("swap", "CUT_CT")] {
        std::fs::rename(dir.join(from), dir.join(to)).unwrap();
    }
    let foreign = dir.join("foreign/x");
    std::fs::create_dir_all(&foreign).unwrap();
    let mut sb = Signalbox::start(&lab, &cut::body(""));
    let (_, verbose) = sb.get("/readyz?verbose");
    let line = verbose
        .lines()
        .find(|line| line.starts_with("[~] cut: "))
        .unwrap_or_default();
    assert!(
        line.contains("is not the map that belongs there") && line.contains("signalbox detach"),
        "{verbose}"
    );
    sb.kill9();

    let (output, said) = detach(&lab.lb, &[]);
    assert!(output.status.success(), "{output:?}");
    assert!(
        said.contains(&format!("left {}: ", dir.join("foreign").display())),
        "{said}"
    );
    assert!(
        said.contains("CUT_FLOWS") && !dir.join("CUT_FLOWS").exists() && foreign.exists(),
        "{said}"
    );

    // Foreign files do no harm.
    let sb = Signalbox::start(&lab, &cut::body(""));
    let (_, verbose) = sb.get("/readyz?verbose");
    assert!(!verbose.contains("cut:"), "{verbose}");
    drop(sb);
    std::fs::remove_dir_all(dir.join("foreign")).unwrap();
}

#[lab_test]
fn a_bpf_file_system_that_ends_with_the_process_is_told_of() {
    let lab = cut::lab();
    let shell = "mount -t bpf bpf /sys/fs/bpf && exec \"$@\"";
    let private = ["unshare", "-m", "sh", "-c", shell, "sh"];
    // A separate mount table does no harm: the file system is the machine's. (Both starts write to one log.)
    for (under, is_private) in [(&private[..], true), (&["unshare", "-m"][..], false)] {
        let mut sb = Signalbox::start_under(&lab, &cut::body(""), under);
        let (status, verbose) = sb.get("/readyz?verbose");
        let is_told = verbose.contains("[~] pins: ") && verbose.contains("ends with this process");
        assert_eq!((status, is_told), (200, is_private), "{verbose}");
        assert!(sb.proc.log().contains("ends with this process"), "the start warns");
        let output = under_command(&lab, under)
            .args(["doctor", "-o", "json"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said.contains("they end with the process"), is_private, "{said}");
        // The running one reports that itself, to everyone who asks it.
        let asked = String::from_utf8(sb.cli(&["doctor"]).stdout).unwrap();
        assert!(asked.contains("running signalbox") && !asked.contains('\t'), "{asked}");
        assert_eq!(asked.contains("pins: the bpf file system"), is_private, "{asked}");
        sb.kill9();
    }
}
