//! The kernel peek where the kernel has the functions that it needs, and the same configuration where it has not.

use std::time::Duration;

use crate::kernel_peek::{PEEK, doors, exits};
use crate::lab::cut::{self, Hosts, finish};
use crate::lab::tiers::ping;
use crate::lab::transfers::{self, Load};
use crate::lab::{SOON, eventually, lab_test};

/// Kernel that brought `bpf_loop`.
pub(super) const SINCE: (u32, u32) = (5, 17);

/// Major and minor number of the running kernel.
pub(super) fn running() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|text| text.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[lab_test]
fn connections_are_kernel_routed_or_say_why_and_all_are_served() {
    if cut::lenient() {
        return;
    }
    let lab = cut::lab();
    let servers = transfers::servers_of(&lab, doors());
    let (_health, mut sb) = cut::start(&lab, PEEK);
    let is_routed = running() >= SINCE;
    let features = sb.json("/api/v1/status")["degraded"].to_string();
    assert_eq!(features.contains("kernel_peek"), !is_routed, "{features}");
    if is_routed {
        let routes = || sb.metric("signalbox_kernel_peek_routes") == 4.0;
        assert!(eventually(SOON, routes), "{}", sb.get("/metrics").1);
    }
    let load = Load {
        at_once: 4,
        count: 25,
        most: 100_000,
        patience: Duration::from_secs(60),
    };
    for (seed, door) in (1..).zip(doors()) {
        load.must(&lab, &door, seed);
    }
    // All were served. On an emulated machine a host may take half a second to answer: such a connection is passed up.
    let expected = if is_routed { 75..=100 } else { 0..=0 };
    let delivered = exits(&sb, "delivered");
    assert!(expected.contains(&delivered), "{delivered}: {}", sb.get("/metrics").1);
    drop(servers);
    let hosts = Hosts::start(&lab);
    let flows: Vec<_> = doors().iter().map(|door| door.enter_cut(&lab, &sb, &hosts)).collect();
    sb.kill9();
    for (client, host) in &flows {
        ping(client, host);
        ping(host, client);
        finish(client, host);
    }
}
