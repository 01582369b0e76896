//! A process serves by sockets while the kernel checks the program.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;

use super::{exits, expect_routes};
use crate::lab::cut::{self, CutLab};
use crate::lab::signalbox::{peeks_in_userspace, write_config};
use crate::lab::tiers::ping;
use crate::lab::{Router, SOON, Signalbox, eventually, http, lab_test, servers};

/// Has the programs of processes that are started from now on wait for the file that is returned.
fn hold(lab: &CutLab) -> PathBuf {
    let accepted = lab.dir().join("accepted");
    lab.set_env("SIGNALBOX_REFUSE", format!("peek_in@{}", accepted.display()));
    accepted
}

/// Starts a process whose program is not accepted before the file that is returned exists.
fn start_held(lab: &CutLab) -> (Vec<Router>, PathBuf, Signalbox) {
    let hosts = Router::start_all(lab, &["east-1", "west-1"]);
    let accepted = hold(lab);
    let config = write_config(lab, "signalbox.yaml", &cut::body(""));
    let sb = Signalbox::spawn_file(lab, "signalbox", &config, &[]).wait_serving();
    sb.wait_healthy(&["east-1", "west-1"]);
    (hosts, accepted, sb)
}

fn ask(lab: &CutLab) {
    let answer = http::ask(lab, "10.1.0.1:80", "a.test");
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[lab_test]
fn workers_serve_until_the_program_is_there() {
    if cut::lenient() || peeks_in_userspace() {
        return;
    }
    let lab = cut::lab();
    let (_hosts, accepted, sb) = start_held(&lab);
    ask(&lab);
    let by_workers = "signalbox_connections_path_total{listener=\"http\",path=\"worker\",reason=\"loading\"}";
    assert_eq!((sb.metric(by_workers), exits(&sb, "routed")), (1.0, 0));
    let said = sb.cli(&["explain", "a.test", "--listener", "http"]);
    let said = String::from_utf8_lossy(&said.stdout);
    assert!(said.contains("the kernel is checking the program"), "{said}");
    // A change of the configuration does not wait for the program.
    sb.reload(&cut::body("timeouts: { connect: 4s }"));
    let (ended, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Relaxed) {
                ask(&lab);
                served.fetch_add(1, Relaxed);
            }
        });
        File::create(&accepted).unwrap();
        let is_routed = || exits(&sb, "routed") > 3;
        let is_routed = eventually(SOON, is_routed);
        ended.store(true, Relaxed);
        assert!(is_routed, "{}", sb.get("/metrics").1);
    });
    assert!(served.load(Relaxed) > 3);
    expect_routes(&sb, 4);
}

#[lab_test]
fn a_process_ends_while_the_kernel_checks_its_program() {
    if cut::lenient() || peeks_in_userspace() {
        return;
    }
    let lab = cut::lab();
    let (_hosts, _, mut sb) = start_held(&lab);
    sb.term();
    assert_eq!(sb.proc.exit_code(SOON), 0);
}

/// A successor that listened earlier would serve connections by sockets that its predecessor cuts.
#[lab_test]
fn a_successor_listens_when_its_program_is_there() {
    if cut::lenient() || peeks_in_userspace() {
        return;
    }
    let lab = cut::lab();
    let _echo = servers::echo(lab.host("east-1"), cut::BACKEND);
    let (_health, mut sb) = cut::start(&lab, "");
    let accepted = hold(&lab);
    let config = write_config(&lab, "signalbox.yaml", &cut::body(""));
    let next = Signalbox::spawn_file(&lab, "next", &config, &["--takeover"]);
    assert!(eventually(SOON, || next.proc.log().contains("wait for a file")));
    let held: Vec<_> = (0..20).map(|_| lab.client.connect(cut::TCP[0].0)).collect();
    held.iter().for_each(|stream| ping(stream, stream));
    File::create(&accepted).unwrap();
    let next = next.wait_ready();
    assert!(sb.proc.wait_exit(SOON).is_some());
    held.iter().for_each(|stream| ping(stream, stream));
    let by_workers = "signalbox_connections_path_total{listener=\"tcp4\",path=\"worker\",reason=\"no_names\"}";
    assert_eq!(next.metric(by_workers), 0.0);
}
