//! A balancer dies under load: the flows that the other one knew of continue, byte for byte, and nothing hangs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use super::config::{Door, doors};
use super::pair::Pair;
use crate::lab::namespace::connect_here;
use crate::lab::{SOON, Server, eventually, exchange};

/// Bytes each way of a transfer.
const TRANSFER_BYTES: u64 = 12 << 20;
/// Transfers by each door at once.
const TRANSFERS: u64 = 4;
/// Idle flows by each door while the addresses move.
const IDLE: usize = 30;

/// Servers that first take the bytes that a door demands, and then their part of an exchange.
fn exchange_servers(pair: &Pair) -> Vec<Server> {
    let serve = |door: &Door| {
        let first = door.first.len();
        Server::start(&pair.host, &format!("[::]:{}", door.port), move |stream| {
            let mut received = vec![0; first];
            // An error here is an error at the client too, and is judged there.
            if (&*stream).read_exact(&mut received).is_ok() {
                let _ = exchange::serve(&stream);
            }
        })
    };
    // The doors of both families lead to the same ports.
    doors().iter().step_by(2).map(serve).collect()
}

fn open(door: &Door) -> std::io::Result<TcpStream> {
    let stream = connect_here(door.at)?;
    (&stream).write_all(&door.first)?;
    Ok(stream)
}

/// A transfer that waits until `go` before its last part: it is known to be under way when the balancer dies.
#[test]
fn no_transfer_is_lost_or_corrupt_when_its_balancer_dies() {
    let Some(mut pair) = Pair::begin_bare("no_transfer_is_lost_or_corrupt_when_its_balancer_dies") else {
        return;
    };
    let _servers = exchange_servers(&pair);
    let (client, doors) = (pair.client.clone(), doors());
    let begun = AtomicU64::new(0);
    let failures = Mutex::new(Vec::new());
    let is_moved = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (at, door) in doors.iter().enumerate() {
            for n in 0..TRANSFERS {
                let (client, begun, failures, is_moved) = (&client, &begun, &failures, &is_moved);
                scope.spawn(move || {
                    let mut seed = at as u64 * 1000 + n;
                    // One transfer after the other, until one has begun after the move.
                    loop {
                        let is_last = is_moved.load(SeqCst);
                        let done = client.run(|| {
                            let stream = open(door)?;
                            begun.fetch_add(1, SeqCst);
                            exchange::client(&stream, seed, TRANSFER_BYTES, TRANSFER_BYTES)
                        });
                        if let Err(error) = done {
                            failures
                                .lock()
                                .unwrap()
                                .push(format!("{} seed {seed}: {error}", door.at));
                        }
                        if is_last {
                            return;
                        }
                        seed += 100_000;
                    }
                });
            }
        }
        // All have begun, and the other node knows those that are under way.
        assert!(eventually(SOON, || begun.load(SeqCst) >= TRANSFERS * doors.len() as u64));
        std::thread::sleep(Duration::from_millis(300));
        let known = pair.balancer(1).json("/api/v1/ha");
        pair.kill(0);
        pair.take(1);
        is_moved.store(true, SeqCst);
        println!("known at the other node: {}", known["sync"]["peers"][0]["shadows"]);
    });
    let failures = failures.into_inner().unwrap();
    // A transfer that began at that very moment may be lost: the client gets an error then, and tries again.
    let corrupt: Vec<_> = failures.iter().filter(|text| !is_told(text)).collect();
    assert!(corrupt.is_empty(), "{corrupt:#?}");
    assert!(
        failures.len() as u64 <= doors.len() as u64 * TRANSFERS / 4,
        "too many were young: {failures:#?}"
    );
}

/// Whether an error says that a connection was reset or refused, not that it carried other bytes or hung.
fn is_told(text: &str) -> bool {
    ["reset", "refused", "Broken pipe", "unreachable"]
        .iter()
        .any(|word| text.contains(word))
}

#[test]
fn idle_flows_of_a_dead_balancer_are_all_there() {
    let Some(mut pair) = Pair::begin("idle_flows_of_a_dead_balancer_are_all_there") else {
        return;
    };
    let flows: Vec<_> = doors()
        .iter()
        .flat_map(|door| (0..IDLE).map(|_| pair.enter(door)).collect::<Vec<_>>())
        .collect();
    pair.wait_shadows(1, flows.len() as u64);
    pair.kill(0);
    pair.take(1);
    for (client, host) in &flows {
        crate::lab::tiers::ping(host, client);
        crate::lab::tiers::ping(client, host);
    }
    assert!(eventually(SOON, || pair.balancer(1).flow_count() == flows.len() as u64));
}
