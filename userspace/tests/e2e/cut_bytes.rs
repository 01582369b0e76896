//! Every byte of a cut flow arrives, whatever its size and however many there are.

use crate::lab;

use std::time::Duration;

use lab::cut::{self, doors, expect_none};
use lab::transfers::{self, Load};
use lab::{exchange, privileged};

const MIB: u64 = 1 << 20;

#[test]
fn hundreds_of_flows_of_every_size_through_every_door() {
    if !privileged("hundreds_of_flows_of_every_size_through_every_door") {
        return;
    }
    let lab = cut::lab();
    let _servers = transfers::servers(&lab);
    let (_health, sb) = cut::start(&lab, "");
    let mut count = 0;
    for (seed, door) in (1..).zip(doors()) {
        for (most, flows) in [(2, 200), (20_000, 200), (4 * MIB, 100)] {
            let load = Load {
                at_once: 16,
                count: flows,
                most,
                patience: Duration::from_secs(10),
            };
            load.must(&lab, &door, seed * 10 + most.ilog2() as u64);
            count += flows;
        }
    }
    let cut = cut::opened(&sb);
    println!("{cut} of {count} flows were cut");
    assert!(cut::lenient() || cut == count, "{cut} of {count} flows were cut");
    expect_none(&sb);
    for (cluster, host) in [("east", "east-1"), ("west", "west-1")] {
        let finished = sb.metric(&format!(
            "signalbox_connections_closed_total{{cluster=\"{cluster}\",reason=\"finished\"}}"
        ));
        assert_eq!(finished as u64, count / 2, "{cluster}: each end is counted once");
        assert_eq!(sb.host(host)["active_connections"], 0);
    }
}

#[test]
fn a_large_transfer_both_ways_at_once_passes_whole_and_is_counted() {
    if !privileged("a_large_transfer_both_ways_at_once_passes_whole_and_is_counted") {
        return;
    }
    let lab = cut::lab();
    let _servers = transfers::servers(&lab);
    let (_health, sb) = cut::start(&lab, "");
    for (at, host) in cut::TCP {
        std::thread::scope(|scope| {
            for seed in 0..3 {
                let stream = lab.client.connect(at);
                scope.spawn(move || {
                    exchange::client(&stream, seed, 64 * MIB, 64 * MIB).unwrap_or_else(|e| panic!("{at}: {e}"));
                });
            }
        });
        expect_none(&sb);
        let shown = sb.host(host);
        for key in ["bytes_in", "bytes_out"] {
            let bytes = shown[key].as_u64().unwrap();
            // What was sent again may be counted again.
            assert!((192 * MIB..210 * MIB).contains(&bytes), "{key}: {shown}");
        }
    }
}
