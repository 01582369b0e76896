//! Hosts that take smaller segments than the balancer's interfaces carry: the SYN-ACK announces that to clients before
//! their host is known, and flows are cut.

use crate::lab;

use std::net::TcpStream;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use lab::cut::{self, CutLab, Door, expect_none};
use lab::transfers::{self, Load};
use lab::{SOON, Signalbox, eventually, lab_test};
use signalbox::sys::tcp_info;

use crate::kernel_peek;

/// Segments of links with an MTU of 1400 and of 1500, with timestamps.
const NARROW: u32 = 1400 - 40 - 12;
const ORDINARY: u32 = 1500 - 40 - 12;

fn set_mtu(lab: &CutLab, mtu: &str) {
    for host in ["east-1", "west-1"] {
        lab.host(host).must(&["ip", "link", "set", "eth0", "mtu", mtu]);
    }
}

/// Waits until the SYN-ACK tells clients that segments have at most `bytes` bytes.
fn expect_segments(lab: &CutLab, bytes: u32) {
    let told = || {
        let client: TcpStream = lab.client.connect("10.1.0.1:80");
        tcp_info(client.as_raw_fd()).unwrap().send_mss
    };
    assert!(eventually(5 * SOON, || told() == bytes), "{} for {bytes}", told());
}

/// Has hosts with a narrow link, and then again with an ordinary one.
fn narrow_and_widen(lab: &CutLab, extra: &str, doors: fn() -> Vec<Door>) -> Signalbox {
    let _servers = transfers::servers_of(lab, doors());
    set_mtu(lab, "1400");
    let (_health, sb) = cut::start(lab, extra);
    let load = Load {
        at_once: 8,
        count: 50,
        most: 300_000,
        patience: Duration::from_secs(45),
    };
    for (mtu, segments) in [("1400", NARROW), ("1500", ORDINARY)] {
        set_mtu(lab, mtu);
        expect_segments(lab, segments);
        let before = cut::opened(&sb);
        for (seed, door) in (1..).zip(doors()) {
            load.must(lab, &door, seed);
        }
        let (all, cut) = (load.count * doors().len() as u64, cut::opened(&sb) - before);
        assert!(cut >= all * 9 / 10, "{cut} of {all} are cut\n{}", cut::reasons(&sb));
    }
    expect_none(&sb);
    sb
}

#[lab_test]
fn flows_to_hosts_with_narrow_links_are_cut() {
    if cut::lenient() {
        return;
    }
    narrow_and_widen(&cut::lab(), "", cut::doors);
}

#[lab_test]
fn connections_to_small_mtu_hosts_are_routed_in_the_kernel() {
    if cut::lenient() {
        return;
    }
    let lab = cut::lab();
    let sb = narrow_and_widen(&lab, kernel_peek::PEEK, kernel_peek::doors);
    assert_eq!(kernel_peek::exits(&sb, "refused"), 0, "{}", sb.get("/metrics").1);
}
