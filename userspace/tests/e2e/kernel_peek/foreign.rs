//! A program of somebody else that stands before ours, and takes the hosts' packets.

use aya::Ebpf;
use aya::programs::links::LinkOrder;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{SchedClassifier, TcAttachType};

use crate::lab::{Router, SOON, Signalbox, config, cut::CutLab, eventually};

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
