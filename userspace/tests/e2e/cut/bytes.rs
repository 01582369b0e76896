//! Every byte of a cut flow arrives, for chunks of any size and number.

use crate::lab;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use lab::cut::{self, doors, expect_none};
use lab::transfers::{self, Load};
use lab::{SOON, eventually, exchange, lab_test};

const MIB: u64 = 1 << 20;

#[lab_test]
fn hundreds_of_flows_of_every_size_through_every_door() {
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
        let series = format!("signalbox_connections_closed_total{{cluster=\"{cluster}\",reason=\"finished\"}}");
        let finished = || sb.metric(&series) as u64;
        // An end that is seen before its worker has counted the flow is counted a second later.
        assert!(
            eventually(SOON, || finished() == count / 2),
            "{cluster}: {} of {} ends are counted\n{}",
            finished(),
            count / 2,
            sb.get("/metrics").1
        );
        assert_eq!(sb.host(host)["active_connections"], 0);
    }
}

mod share_4 {
    use super::*;

    /// Sequence numbers wrap: the positions of both ends stay known, beyond 2 GiB and beyond 4.
    #[lab_test]
    fn five_gibibytes_each_way_are_counted_and_the_end_is_seen() {
        if cut::lenient() {
            return;
        }
        const BYTES: u64 = 5 * 1024 * MIB;
        let lab = cut::lab();
        let hosts = cut::Hosts::start(&lab);
        let (_health, sb) = cut::start(&lab, "");
        let (at, name) = cut::TCP[0];
        let client = lab.client.connect(at);
        let host = hosts.accept(name, 3306);
        lab::tiers::ping(&client, &host);
        cut::expect_cut(&sb, &client);
        let before = [
            sb.host(name)["bytes_in"].as_u64().unwrap(),
            sb.host(name)["bytes_out"].as_u64().unwrap(),
        ];
        let sends = |mut stream: &TcpStream| {
            let chunk = vec![1; MIB as usize];
            (0..BYTES / MIB).for_each(|_| stream.write_all(&chunk).unwrap());
            stream.shutdown(Shutdown::Write).unwrap();
        };
        let receives = |mut stream: &TcpStream| {
            let (mut chunk, mut count) = (vec![0; MIB as usize], 0);
            loop {
                match stream.read(&mut chunk).unwrap() {
                    0 => break count,
                    n => count += n as u64,
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| sends(&client));
            scope.spawn(|| sends(&host));
            let at_client = scope.spawn(|| receives(&client));
            assert_eq!(receives(&host), BYTES);
            assert_eq!(at_client.join().unwrap(), BYTES);
        });
        expect_none(&sb);
        let shown = sb.host(name);
        assert_eq!(shown["active_connections"], 0, "{shown}");
        let counted = |key: &str, before: u64| shown[key].as_u64().unwrap() - before;
        // The bytes of the servers' first messages are counted when the flow is shown, or at its end.
        for (key, before) in ["bytes_in", "bytes_out"].into_iter().zip(before) {
            let more = counted(key, before) - BYTES;
            assert!(more < 100, "{key}: {more} too many");
        }
    }
}

#[lab_test]
fn a_large_transfer_both_ways_arrives_whole_and_is_counted() {
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
            // Retransmitted bytes may be counted again.
            assert!((192 * MIB..210 * MIB).contains(&bytes), "{key}: {shown}");
        }
    }
}
