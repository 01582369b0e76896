//! A foreign program that runs before ours, and takes the hosts' packets.

use aya::Ebpf;
use aya::programs::links::LinkOrder;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{SchedClassifier, TcAttachType};

use super::{PEEK, exits, start_with};
use crate::lab::{Router, SOON, Signalbox, config, cut::CutLab, eventually, http};

/// Attaches a program first that accepts each packet of TCP.
fn attach_first(lab: &CutLab, device: &str) -> Ebpf {
    let object = aya::include_bytes_aligned!("../../../../ebpf/prebuilt/testing.bpf.o");
    let mut ebpf = Ebpf::load(object).unwrap();
    lab.lb.run(|| {
        let program: &mut SchedClassifier = ebpf.program_mut("impair").unwrap().try_into().unwrap();
        program.load().unwrap();
        let first = TcAttachOptions::TcxOrder(LinkOrder::first());
        program
            .attach_with_options(device, TcAttachType::Ingress, first)
            .unwrap();
    });
    ebpf
}

fn body(extra: &str) -> String {
    let health = "health: { http: { port: 1936, path: /healthz }, interval: 1s, rise: 1 }";
    format!(
        "{extra}\n{}clusters:\n{}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n",
        config::WEB_LISTENERS,
        config::cluster("east", &[health], &["east-1"]),
    )
}

#[test]
fn a_foreign_program_that_stands_before_ours_is_named() {
    let Some(lab) = super::lab("a_foreign_program_that_stands_before_ours_is_named") else {
        return;
    };
    let _router = Router::start(&lab, "east-1");
    let sb = Signalbox::start(&lab, &body(""));
    sb.wait_healthy(&["east-1"]);
    let foreign = attach_first(&lab, "back");
    let named = "back, ingress: program ";
    let missing = || sb.json("/api/v1/status")["missing_features"].to_string();
    assert!(eventually(SOON, || missing().contains(named)), "{}", missing());
    let doctor = String::from_utf8(sb.cli(&["doctor"]).stdout).unwrap();
    let line = doctor.lines().find(|line| line.contains(named)).unwrap_or_default();
    assert!(line.contains("`impair` (tcx) stands before cut_in"), "{doctor}");
    assert_eq!(sb.get("/readyz").0, 200);
    drop(foreign);
    assert!(eventually(SOON, || !missing().contains(named)), "{}", missing());
}

fn left_out(sb: &Signalbox) -> f64 {
    sb.metric("signalbox_kernel_peek_left_to_userspace{kind=\"listener\",reason=\"no_answers\"}")
}

/// Has many clients ask at once, until the kernel peek is suspected of hearing nothing.
fn ask_until_told(lab: &CutLab, sb: &Signalbox) {
    let ask = || {
        let curl = "curl -s -m 3 -H Host:a.test http://10.1.0.1/";
        lab.client.output(&curl.split(' ').collect::<Vec<_>>())
    };
    let is_told = || {
        std::thread::scope(|scope| (0..10).for_each(|_| drop(scope.spawn(ask))));
        sb.proc.log().contains("No host has answered the kernel peek")
    };
    assert!(eventually(4 * SOON, is_told), "{}", sb.get("/metrics").1);
}

#[test]
fn auto_falls_back_where_a_foreign_program_takes_the_answers() {
    let Some(lab) = super::lab("auto_falls_back_where_a_foreign_program_takes_the_answers") else {
        return;
    };
    let _router = Router::start(&lab, "east-1");
    let sb = start_with(&lab, &body(""), 2);
    sb.wait_healthy(&["east-1"]);
    assert_eq!(http::ask(&lab, "10.1.0.1:80", "a.test").status, 200);
    assert_eq!(exits(&sb, "delivered"), 1);
    let _foreign = attach_first(&lab, "back");
    ask_until_told(&lab, &sb);
    assert!(eventually(SOON, || left_out(&sb) == 2.0), "{}", sb.get("/metrics").1);
    let routed = exits(&sb, "routed");
    assert_eq!(http::ask(&lab, "10.1.0.1:80", "a.test").status, 200);
    assert_eq!(exits(&sb, "routed"), routed);
    let missing = || sb.json("/api/v1/status")["missing_features"].to_string();
    let is_told = || missing().contains("no host has answered the kernel peek");
    assert!(eventually(SOON, is_told), "{}", missing());
}

#[test]
fn a_forced_kernel_peek_reports_missing_answers_alone() {
    let Some(lab) = super::lab("a_forced_kernel_peek_reports_missing_answers_alone") else {
        return;
    };
    let _router = Router::start(&lab, "east-1");
    let sb = start_with(&lab, &body(PEEK), 2);
    sb.wait_healthy(&["east-1"]);
    let _foreign = attach_first(&lab, "back");
    ask_until_told(&lab, &sb);
    assert_eq!(left_out(&sb), 0.0);
}
