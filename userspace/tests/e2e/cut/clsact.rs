//! Tier cut by filters of a clsact qdisc, as on kernels before 6.6: they carry flows too, outlive the process, are
//! replaced in use and can be removed.

use crate::lab;

use std::thread;

use lab::cut::{self, CutLab, Hosts, doors, expect_none, finish};
use lab::tiers::ping;
use lab::{SOON, Signalbox, eventually, exchange, lab_test};

const MIB: u64 = 1 << 20;

/// Our filters at the balancer's interfaces.
fn filters(lab: &CutLab) -> Vec<String> {
    let sides = ["client", "back"]
        .into_iter()
        .flat_map(|dev| [(dev, "ingress"), (dev, "egress")]);
    let shown = sides.flat_map(|(dev, side)| {
        let text = lab.lb.must(&["tc", "filter", "show", "dev", dev, side]);
        let lines: Vec<_> = text.lines().map(|line| format!("{dev} {side}: {line}")).collect();
        lines
    });
    shown.filter(|line| line.contains("cut_")).collect()
}

#[lab_test]
fn clsact_filters_survive_kill_and_takeover_and_go_on_detach() {
    if cut::lenient() {
        return;
    }
    let lab = cut::lab();
    // The variable makes it as on a kernel before 6.6.
    lab.set_env("SIGNALBOX_CLSACT", "1");
    let hosts = Hosts::start(&lab);
    let (_health, mut sb) = cut::start(&lab, "");
    assert_eq!(filters(&lab).len(), 4, "{:?}", filters(&lab));
    let idle: Vec<_> = doors().iter().map(|door| door.enter_cut(&lab, &sb, &hosts)).collect();
    // Killed and started again, then taken over from twice: each while bytes are under way.
    let config = lab.dir().join("signalbox.yaml");
    for step in 0..3 {
        let busy: Vec<_> = doors().iter().map(|door| door.enter_cut(&lab, &sb, &hosts)).collect();
        thread::scope(|scope| {
            for (n, (client, host)) in (0..).zip(&busy) {
                scope.spawn(move || exchange::serve(host).unwrap());
                scope.spawn(move || exchange::client(client, n, 48 * MIB, 48 * MIB).unwrap());
            }
            if step == 0 {
                sb.kill9();
                sb = Signalbox::start_file(&lab, "second", &config, &[]);
            } else {
                let new = Signalbox::spawn_file(&lab, "successor", &config, &["--takeover"]);
                assert_eq!(sb.proc.exit_code(SOON), 0);
                sb = new;
            }
        });
        let shown = || sb.flows("tier=cut&limit=100").len();
        assert!(eventually(SOON, || shown() == idle.len()), "{} are shown", shown());
        assert_eq!(filters(&lab).len(), 4, "{:?}", filters(&lab));
    }
    for (client, host) in &idle {
        ping(client, host);
        ping(host, client);
        finish(client, host);
    }
    expect_none(&sb);
    drop(sb);
    cut::detach(&lab);
    assert!(filters(&lab).is_empty(), "{:?}", filters(&lab));
}
