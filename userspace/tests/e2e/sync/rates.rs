//! Speed of the replication of flows. The figures are printed, never judged.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use signalbox_core::availability::sync::{Decoder, FlowRecord, Message, PROTOCOL};

use super::config::Settings;
use super::fake_peers::{connect, hello};
use super::pair::Pair;
use crate::lab::namespace::connect_here;
use crate::lab::servers;

const FLOWS: u32 = 100_000;

mod share_6 {
    use super::*;

    /// A peer sends a hundred thousand flows at once: all of them are entered, and acknowledged.
    #[test]
    fn a_hundred_thousand_flows_in_one_pass() {
        let Some(mut pair) = Pair::begin_with(
            "a_hundred_thousand_flows_in_one_pass",
            Settings {
                room: 131_072,
                ..Settings::default()
            },
        ) else {
            return;
        };
        pair.give(1);
        // The true peer would come back at once, and take the place of this one.
        pair.stop(1);
        let mut words = hello("node-b", PROTOCOL, 1, 2);
        Message::FullBegin.encode(&mut words);
        for at in 0..FLOWS {
            let mapped = |address: u32| [0, 0, 0xffff, address];
            Message::Flow(Box::new(FlowRecord {
                index: at,
                ports: [((at & 0xffff) << 16) | 443, (443 << 16) | (at & 0xffff)],
                addresses: [
                    mapped(0x0a01_0100 + (at >> 16)),
                    mapped(0x0a01_000a),
                    mapped(0x0a02_000a),
                    mapped(0x0a02_0100 + (at >> 16)),
                ],
                ..FlowRecord::default()
            }))
            .encode(&mut words);
        }
        Message::FullEnd(Vec::new()).encode(&mut words);
        Message::Batch(7).encode(&mut words);
        let mut stream = connect(&pair, Some("node-b")).unwrap();
        let began = Instant::now();
        stream.write_all(&words).unwrap();
        stream.flush().unwrap();
        let (mut decoder, mut is_acknowledged, mut buffer) = (Decoder::default(), false, [0; 4096]);
        while !is_acknowledged {
            let count = stream.read(&mut buffer).unwrap();
            assert_ne!(count, 0, "the connection has ended");
            decoder.push(&buffer[..count]);
            while let Some(message) = decoder.next_message().unwrap() {
                is_acknowledged |= message == Message::Ack(7);
            }
        }
        println!("{FLOWS} flows in {} ms", began.elapsed().as_millis());
        let sync = &pair.balancer(0).json("/api/v1/ha")["sync"]["peers"][0];
        assert_eq!(sync["shadows"], FLOWS, "{sync:#}");
    }

    /// Connections that last a moment, as fast as this machine opens them.
    #[test]
    fn many_new_flows_a_second() {
        let Some(pair) = Pair::begin_bare("many_new_flows_a_second") else {
            return;
        };
        let _server = servers::echo(&pair.host, "[::]:3306");
        let (client, is_over, count) = (pair.client.clone(), AtomicBool::new(false), AtomicU64::new(0));
        let began = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let (client, is_over, count) = (&client, &is_over, &count);
                scope.spawn(move || {
                    client.run(|| {
                        let mut held = std::collections::VecDeque::new();
                        while !is_over.load(SeqCst) {
                            let Ok(stream) = connect_here("10.1.0.10:3306") else {
                                continue;
                            };
                            if (&stream)
                                .write_all(b"x")
                                .and_then(|()| (&stream).read_exact(&mut [0; 1]))
                                .is_ok()
                            {
                                count.fetch_add(1, SeqCst);
                                held.push_back(stream);
                            }
                            if held.len() > 50 {
                                held.pop_front();
                            }
                        }
                    });
                });
            }
            std::thread::sleep(Duration::from_secs(5));
            is_over.store(true, SeqCst);
        });
        let rate = count.load(SeqCst) as f64 / began.elapsed().as_secs_f64();
        let (_, metrics) = pair.balancer(0).get("/metrics");
        println!("{rate:.0} flows/s");
        for line in metrics
            .lines()
            .filter(|line| line.starts_with("signalbox_ha_sync_") && !line.contains("errors"))
        {
            println!("{line}");
        }
        assert!(pair.balancer(0).metric("signalbox_ha_sync_flows_total") > 0.0);
    }
}
