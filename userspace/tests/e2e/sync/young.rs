//! A balancer dies while clients connect: a connection that the other node knows continues, each other one is told, and
//! none hangs.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use super::pair::Pair;
use crate::lab::cut::settled;
use crate::lab::namespace::connect_here;
use crate::lab::{Ns, SOON, StopOnDrop, eventually, servers};

/// Connections younger than [`MAX_YOUNG_AGE`] that a balancer's death must hit, before a merge (`SIGNALBOX_E2E_YOUNG`
/// sets another number) and in the rotation.
const YOUNG: usize = 60;
const NIGHTLY_YOUNG: usize = 2000;
/// Age from the client's handshake below which a connection is young.
const MAX_YOUNG_AGE: Duration = Duration::from_millis(50);
/// Age up to which a connection may be unknown to the other node, where machines have nothing else to do.
const MAX_UNKNOWN_AGE: Duration = Duration::from_millis(10);
/// Connections that there are at least when the balancer dies, and threads that open them.
const OPENED: usize = 150;
const CLIENTS: usize = 8;
/// Pause of such a thread between two connections: a machine that opens as many as it can is late with everything, and ages
/// would be those of its accept queue.
const OPENING_INTERVAL: Duration = Duration::from_millis(6);

/// A client's connection, and when its handshake was over.
struct Opened {
    stream: TcpStream,
    at: Instant,
}

/// End of a connection whose balancer has died.
enum Outcome {
    GoesOn,
    /// The client has learned of the end, this long after the addresses had moved.
    Told(Duration),
    Hangs,
}

#[derive(Default)]
struct Tally {
    alive: usize,
    young: usize,
    /// Connections that only the kernel had accepted, because the process was dead.
    late: usize,
    /// Ages of connections that were lost, and times until their clients learned of it.
    lost: Vec<Duration>,
    told: Vec<Duration>,
}

fn open(client: &Ns, is_over: &AtomicBool, all: &Mutex<Vec<Opened>>) {
    client.run(|| {
        while !is_over.load(SeqCst) {
            let Ok(stream) = connect_here("10.1.0.10:3306") else {
                continue;
            };
            let at = Instant::now();
            stream.set_read_timeout(Some(SOON)).unwrap();
            if (&stream).write_all(b"x").is_ok() {
                all.lock().unwrap().push(Opened { stream, at });
            }
            std::thread::sleep(OPENING_INTERVAL);
        }
    });
}

fn judge(mut stream: &TcpStream, moved: Instant) -> Outcome {
    // Bytes that the balancer has acknowledged and not passed on are lost: a client that does not speak would wait
    // forever.
    let outcome = stream.write_all(b"y").and_then(|()| stream.read_exact(&mut [0; 2]));
    match outcome {
        Ok(()) => Outcome::GoesOn,
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Outcome::Hangs,
        Err(_) => Outcome::Told(moved.elapsed()),
    }
}

/// Waits until the other node learns of new flows: after a move it must reconnect first.
fn wait_told(pair: &Pair) {
    let first = pair.client.connect("10.1.0.10:3306");
    pair.wait_shadows(1, 1);
    drop(first);
    let is = eventually(SOON, || pair.shadows(1)[0] == 0);
    assert!(is, "{:#?}", pair.balancer(0).flows("limit=20"));
}

/// Has the first node die among new connections, and adds their fates to the tally.
fn die_once(pair: &mut Pair, tally: &mut Tally) {
    let client = pair.client.clone();
    let (is_over, all) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let (mut known, mut died) = (0, Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| open(&client, &is_over, &all));
        }
        let stop = StopOnDrop(&is_over);
        assert!(eventually(SOON, || all.lock().unwrap().len() > OPENED));
        died = Instant::now();
        // First the process, at once: a connection's age by then must not depend on how long links take to go down.
        pair.stop(0);
        pair.kill(0);
        // The other node enters the flows that have arrived: a client that speaks before that learns of an end, and its
        // host does not.
        known = settled(|| pair.shadows(1)[0] as usize);
        drop(stop);
        // Clients that are connecting get through at the other node.
        pair.take(1);
    });
    let (moved, all) = (Instant::now(), all.into_inner().unwrap());
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let judges: Vec<_> = all
            .iter()
            .map(|opened| scope.spawn(move || judge(&opened.stream, moved)))
            .collect();
        judges.into_iter().map(|judge| judge.join().unwrap()).collect()
    });
    let (mut alive, mut hung) = (0, Vec::new());
    for (opened, outcome) in all.iter().zip(outcomes) {
        // Connections that were opened at the other node are not counted.
        let age = died.checked_duration_since(opened.at);
        tally.young += usize::from(age.is_some_and(|age| age < MAX_YOUNG_AGE));
        match outcome {
            Outcome::GoesOn => alive += usize::from(age.is_some()),
            Outcome::Told(after) => {
                match age {
                    Some(age) => tally.lost.push(age),
                    None => tally.late += 1,
                }
                tally.told.push(after);
            }
            Outcome::Hangs => {
                let client = opened.stream.local_addr().unwrap();
                hung.push((client, crate::lab::cut::shown(pair.balancer(1), client)));
            }
        }
    }
    assert!(hung.is_empty(), "{hung:#?}");
    assert!(alive >= known, "{alive} of {known} known ones go on");
    tally.alive += alive;
}

fn die_until(test: &str, young: usize) {
    let Some(mut pair) = Pair::begin_bare(test) else {
        return;
    };
    let _server = servers::echo(&pair.host, "[::]:3306");
    let (mut tally, mut deaths) = (Tally::default(), 0);
    loop {
        wait_told(&pair);
        die_once(&mut pair, &mut tally);
        deaths += 1;
        if tally.young >= young {
            break;
        }
        pair.wait_flows(1, 0);
        pair.revive(0);
        pair.wait_synced();
        pair.give(0);
    }
    tally.lost.sort_unstable();
    tally.told.sort_unstable();
    let at = |all: &[Duration], share: usize| {
        let place = all.len().saturating_sub(1) * share / 100;
        all.get(place).map_or(0.0, |time| time.as_secs_f64() * 1000.0)
    };
    let older = tally.lost.iter().filter(|age| **age > MAX_UNKNOWN_AGE).count();
    println!(
        "{deaths} deaths: {} connections, {} of them younger than {} ms; {} lost, {older} of them older than {} ms, {:.1} ms old in the middle and {:.1} ms at \
         most, and {} that came later; told {:.0} ms after the move in the middle and {:.0} ms at most",
        tally.alive + tally.lost.len(),
        tally.young,
        MAX_YOUNG_AGE.as_millis(),
        tally.lost.len(),
        MAX_UNKNOWN_AGE.as_millis(),
        at(&tally.lost, 50),
        at(&tally.lost, 100),
        tally.late,
        at(&tally.told, 50),
        at(&tally.told, 100)
    );
}

#[test]
fn a_connection_that_is_too_young_to_be_known_is_told() {
    let number = std::env::var("SIGNALBOX_E2E_YOUNG").ok();
    let young = number.and_then(|text| text.parse().ok()).unwrap_or(YOUNG);
    die_until("a_connection_that_is_too_young_to_be_known_is_told", young);
}

mod share_6 {
    use super::*;

    #[test]
    fn each_of_thousands_of_young_connections_goes_on_or_is_told() {
        die_until(
            "each_of_thousands_of_young_connections_goes_on_or_is_told",
            NIGHTLY_YOUNG,
        );
    }
}
