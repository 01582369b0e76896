//! The bad links of the lab are bad: the faults that the tests of tier `cut` under loss rely on, shown without a
//! balancer.

use crate::lab;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use lab::impair::{Impaired, Odds, netstat};
use lab::{Lab, exchange, lab_test};

const MIB: u64 = 1 << 20;

#[lab_test]
fn a_bad_link_drops_doubles_and_reorders_in_both_directions() {
    // Two CPUs are enough to reorder packets of a good link, by hundreds in 8 MiB. All threads of this test share one.
    let mut one = CpuSet::new();
    one.set(0).unwrap();
    sched_setaffinity(Pid::from_raw(0), &one).unwrap();
    for to in ["10.2.0.2:3306", "[fd00:2::2]:3306"] {
        bad(to);
    }
}

/// Transfers from the balancer's namespace straight to a host, so that only the kernel's own TCP sees the link.
fn bad(to: &str) {
    let lab = Lab::new();
    let ends = [&lab.lb, lab.host("east-1")];
    for ns in ends {
        // A window that fits the CPU's backlog: an overflow there would look like a bad link too.
        ns.must(&["sysctl", "-qw", "net.ipv4.tcp_rmem=4096 65536 65536"]);
    }
    let counted = |(group, name)| ends.map(|ns| netstat(ns, group, name));
    let transfer = || {
        let stream = lab.lb.connect(to);
        exchange::client(&stream, 1, 8 * MIB, 8 * MIB).unwrap_or_else(|e| panic!("{to}: {e}"));
    };
    let _server = exchange::server(lab.host("east-1"), "[::]:3306");
    let mut link = Impaired::host_link(&lab, "east-1", Odds::GOOD);
    transfer();
    let (seen, mut hits) = link.seen_and_hit();
    // 16 MiB in segments of 1448 bytes: with larger ones a drop would differ from one on a wire.
    assert!(seen > 11_000, "{to}: only {seen} packets for 16 MiB");
    assert_eq!(hits, 0, "{to}");
    assert_eq!(
        counted(("TcpExt", "TCPOFOQueue")),
        [0, 0],
        "{to}: a good link keeps the order"
    );

    // In this order: the effect of the first two is also seen as packets out of order.
    for (odds, sign) in [
        (Odds::REORDERING, ("TcpExt", "TCPOFOQueue")),
        (Odds::LOSS, ("Tcp", "RetransSegs")),
        (Odds::DUPLICATION, ("TcpExt", "TCPDSACKOldSent")),
    ] {
        let before = counted(sign);
        link.set(odds);
        transfer();
        let (after, now) = (counted(sign), link.seen_and_hit().1);
        println!("{to}, {odds:?}: {} hits, {sign:?} {before:?} -> {after:?}", now - hits);
        assert!(now > hits + 50, "{to}, {odds:?}: {} hits", now - hits);
        for (before, after) in before.iter().zip(after) {
            assert!(
                after > before + 10,
                "{to}, {odds:?}: {sign:?} only from {before} to {after}"
            );
        }
        hits = now;
    }
    drop(link);
    transfer();
}
