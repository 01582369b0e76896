//! Nodes whose addresses keepalived moves: flows that speak all the time, while a node dies and comes back.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use super::pair::{Door, Pair, doors};
use crate::lab::namespace::connect_here;
use crate::lab::{SOON, Server, eventually};

/// Adverts of VRRPv3, as is the default.
const FAST: &str = "  vrrp: { advert: 100ms }\n";
/// Adverts of a second.
const SLOW: &str = "  vrrp: { advert: 1s }\n";

/// Flows of a run: SIGNALBOX_E2E_FLOWS says how many.
fn flow_count() -> usize {
    let number = std::env::var("SIGNALBOX_E2E_FLOWS").ok();
    number.and_then(|text| text.parse().ok()).unwrap_or(60)
}

/// Flows that a client holds, each of which asks for an echo again and again.
struct Speakers<'a> {
    is_over: &'a AtomicBool,
    /// Flows that have had their first echo.
    begun: &'a AtomicU64,
    /// Longest waits for an echo, and what went wrong.
    waits: &'a Mutex<Vec<Duration>>,
    failures: &'a Mutex<Vec<String>>,
}

impl Speakers<'_> {
    /// Speaks on one flow until the end.
    fn speak(&self, door: &Door, number: usize) {
        let mut longest = Duration::ZERO;
        let outcome = connect_here(door.at).and_then(|stream| self.converse(&stream, door, number, &mut longest));
        match outcome {
            Ok(()) => self.waits.lock().unwrap().push(longest),
            Err(error) => self
                .failures
                .lock()
                .unwrap()
                .push(format!("{} flow {number}: {error}", door.at)),
        }
    }

    fn converse(
        &self,
        mut stream: &TcpStream,
        door: &Door,
        number: usize,
        longest: &mut Duration,
    ) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(3 * SOON))?;
        stream.write_all(&door.first)?;
        // Some say a word now and then, others a lot without a break.
        let (bytes, pause) = [(1, 1000), (64, 100), (16 << 10, 20)][number % 3];
        let mut turn = 0u64;
        let mut is_first = true;
        while !self.is_over.load(SeqCst) {
            turn += 1;
            let word: Vec<u8> = (0..bytes)
                .map(|at| (number as u64 + turn * 31 + at * 7) as u8)
                .collect();
            let began = Instant::now();
            stream.write_all(&word)?;
            let mut echo = vec![0; word.len()];
            stream.read_exact(&mut echo)?;
            if echo != word {
                return Err(std::io::Error::other(format!("turn {turn}: other bytes came back")));
            }
            *longest = (*longest).max(began.elapsed());
            if std::mem::take(&mut is_first) {
                self.begun.fetch_add(1, SeqCst);
            }
            std::thread::sleep(Duration::from_millis(pause));
        }
        stream.shutdown(Shutdown::Write)?;
        match stream.read(&mut [0; 1])? {
            0 => Ok(()),
            _ => Err(std::io::Error::other("bytes came behind the last echo")),
        }
    }
}

/// Servers that take what a door demands first, and then give everything back.
fn echo_servers(pair: &Pair) -> Vec<Server> {
    let serve = |door: &Door| {
        let first = door.first.len();
        Server::start(&pair.host, &format!("[::]:{}", door.port), move |stream| {
            let mut received = vec![0; first];
            if (&*stream).read_exact(&mut received).is_err() {
                return;
            }
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(n) = (&*stream).read(&mut buffer) {
                if n == 0 || (&*stream).write_all(&buffer[..n]).is_err() {
                    break;
                }
            }
            let _ = stream.shutdown(Shutdown::Write);
        })
    };
    doors().iter().step_by(2).map(serve).collect()
}

/// Has flows speak while `work` is done with the nodes; none may be lost. Prints how long they stood still.
fn while_they_speak(pair: &mut Pair, work: impl FnOnce(&mut Pair)) {
    let _servers = echo_servers(pair);
    let (is_over, begun, waits, failures) = Default::default();
    let speakers = Speakers {
        is_over: &is_over,
        begun: &begun,
        waits: &waits,
        failures: &failures,
    };
    let (client, doors, count) = (pair.client.clone(), doors(), flow_count());
    std::thread::scope(|scope| {
        for number in 0..count {
            let (speakers, client, door) = (&speakers, &client, &doors[number % doors.len()]);
            scope.spawn(move || client.run(|| speakers.speak(door, number)));
        }
        assert!(eventually(2 * SOON, || begun.load(SeqCst) >= count as u64));
        pair.wait_shadows(1, count as u64);
        work(pair);
        std::thread::sleep(Duration::from_secs(2));
        is_over.store(true, SeqCst);
    });
    let failures = failures.into_inner().unwrap();
    assert!(
        failures.is_empty(),
        "{} of {count} flows: {:#?}",
        failures.len(),
        failures.first()
    );
    let mut waits = waits.into_inner().unwrap();
    waits.sort_unstable();
    let at = |share: usize| waits[(waits.len() - 1) * share / 100].as_millis();
    println!(
        "{count} flows: longest wait p50 {} ms, p99 {} ms, most {} ms",
        at(50),
        at(99),
        at(100)
    );
}

#[test]
fn no_flow_is_lost_when_a_node_dies() {
    let Some(mut pair) = Pair::begin_keepalived("no_flow_is_lost_when_a_node_dies", FAST) else {
        return;
    };
    while_they_speak(&mut pair, |pair| {
        pair.kill(0);
        pair.wait_owner(1);
    });
}

#[test]
fn no_flow_is_lost_when_a_node_dies_with_slow_adverts() {
    let Some(mut pair) = Pair::begin_keepalived("no_flow_is_lost_when_a_node_dies_with_slow_adverts", SLOW) else {
        return;
    };
    while_they_speak(&mut pair, |pair| {
        pair.kill(0);
        pair.wait_owner(1);
    });
}

/// The preferred node comes back empty, hears of all flows, and takes its addresses back.
#[test]
fn no_flow_is_lost_when_a_node_comes_back() {
    let Some(mut pair) = Pair::begin_keepalived("no_flow_is_lost_when_a_node_comes_back", FAST) else {
        return;
    };
    while_they_speak(&mut pair, |pair| {
        pair.kill(0);
        pair.wait_owner(1);
        pair.revive(0);
        pair.supervise(0);
        pair.wait_owner(0);
    });
}

/// Both processes are replaced, one node after the other, as for an upgrade.
#[test]
fn no_flow_is_lost_when_both_nodes_are_upgraded() {
    let Some(mut pair) = Pair::begin_keepalived("no_flow_is_lost_when_both_nodes_are_upgraded", FAST) else {
        return;
    };
    while_they_speak(&mut pair, |pair| {
        for node in [1, 0] {
            pair.restart(node);
            pair.wait_synced();
        }
        // The first node has, or gets, its addresses again, and the other one knows all of its flows.
        pair.wait_owner(0);
        pair.kill(0);
        pair.wait_owner(1);
    });
}
