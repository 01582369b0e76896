//! A process that is killed again and again under a storm of new connections: some are reset, but none carries other
//! bytes than were sent, and none is left hanging.

use crate::lab;

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use lab::cut::{self, Door, doors};
use lab::exchange::Noise;
use lab::{SOON, Server, Signalbox, eventually, lab_test};

/// Longer than this is stuck.
const STUCK: Duration = Duration::from_secs(20);
const ROUNDS: u64 = 15;

/// Number of outcomes of each kind.
type Outcomes = Arc<Mutex<BTreeMap<String, u64>>>;

fn note(outcomes: &Outcomes, what: &str) {
    *outcomes.lock().unwrap().entry(what.to_owned()).or_default() += 1;
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Noise::new(seed).fill(&mut bytes);
    bytes
}

/// Reads these bytes and then an end. A killed process may leave fewer bytes, never other ones.
fn expect(mut from: &TcpStream, expected: &[u8], to_end: bool) -> Result<()> {
    let (mut at, mut buffer) = (0, [0; 4096]);
    while at < expected.len() || to_end {
        let most = if to_end {
            buffer.len()
        } else {
            buffer.len().min(expected.len() - at)
        };
        let n = from.read(&mut buffer[..most])?;
        if n == 0 {
            break;
        }
        if expected.get(at..at + n) != Some(&buffer[..n]) {
            return Err(Error::new(ErrorKind::InvalidData, format!("other bytes after {at}")));
        }
        at += n;
    }
    if at < expected.len() {
        Err(ErrorKind::UnexpectedEof.into())
    } else {
        Ok(())
    }
}

fn judge(outcomes: &Outcomes, side: &str, start: Instant, outcome: Result<()>) {
    let what = match outcome {
        _ if start.elapsed() > STUCK => "STUCK".to_owned(),
        Ok(()) => "whole".to_owned(),
        Err(e) if e.kind() == ErrorKind::WouldBlock => "STUCK".to_owned(),
        Err(e) if e.kind() == ErrorKind::InvalidData => format!("CORRUPTED {e}"),
        Err(e) => format!("{:?}", e.kind()),
    };
    note(outcomes, &format!("{side}: {what}"));
}

/// A host's part: reads a seed and a length, then that many bytes; sends as many back, then the end.
fn serve(stream: &TcpStream, first: &[u8]) -> Result<()> {
    stream.set_read_timeout(Some(STUCK))?;
    expect(stream, first, false)?;
    let mut header = [0; 16];
    (&*stream).read_exact(&mut header)?;
    let seed = u64::from_le_bytes(std::array::from_fn(|i| header[i]));
    let len = u64::from_le_bytes(std::array::from_fn(|i| header[8 + i])) as usize;
    expect(stream, &noise(seed, len), false)?;
    (&*stream).write_all(&noise(!seed, len))?;
    stream.shutdown(Shutdown::Write)?;
    expect(stream, &[], true)
}

fn ask(door: &Door, seed: u64, len: usize) -> Result<()> {
    let to = door.at.parse::<std::net::SocketAddr>().unwrap();
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.connect_timeout(&to.into(), STUCK)?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(STUCK))?;
    stream.set_write_timeout(Some(STUCK))?;
    let header = [seed.to_le_bytes(), (len as u64).to_le_bytes()].concat();
    (&stream).write_all(&[&door.first[..], &header].concat())?;
    (&stream).write_all(&noise(seed, len))?;
    expect(&stream, &noise(!seed, len), true)
}

mod share_4 {
    use super::*;

    #[lab_test]
    fn killed_at_random_times_under_a_storm_of_new_connections() {
        let lab = cut::lab();
        let outcomes = Outcomes::default();
        let _servers: Vec<_> = doors()
            .into_iter()
            .map(|door| {
                let (first, outcomes) = (door.first, outcomes.clone());
                Server::start(lab.host(door.host), &format!("[::]:{}", door.port), move |stream| {
                    let start = Instant::now();
                    let outcome = serve(&stream, &first);
                    judge(&outcomes, "host", start, outcome);
                })
            })
            .collect();
        let (_health, mut sb) = cut::start(&lab, "");
        let (storm, next) = (AtomicBool::new(true), AtomicU64::new(1));
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    lab.client.run(|| {
                        let doors = doors();
                        while storm.load(Ordering::Relaxed) {
                            let seed = next.fetch_add(1, Ordering::Relaxed);
                            let len = (seed * 7919 % 30_000) as usize;
                            let start = Instant::now();
                            let outcome = ask(&doors[seed as usize % doors.len()], seed, len);
                            if outcome
                                .as_ref()
                                .is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
                            {
                                std::thread::sleep(Duration::from_millis(1));
                            }
                            judge(&outcomes, "client", start, outcome);
                        }
                    });
                });
            }
            let work = std::panic::AssertUnwindSafe(|| {
                let mut dice = Noise::new(std::process::id().into());
                for _ in 0..ROUNDS {
                    std::thread::sleep(Duration::from_millis(300) + Duration::from_micros(dice.up_to(200_000)));
                    sb.kill9();
                    sb = Signalbox::start(&lab, &cut::body(""));
                }
            });
            let result = std::panic::catch_unwind(work);
            storm.store(false, Ordering::Relaxed);
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
        let none = eventually(STUCK + SOON, || sb.flow_count() == 0);
        let outcomes = outcomes.lock().unwrap().clone();
        println!("{outcomes:#?}");
        assert!(none, "flows are left: {:?}", sb.flows("limit=5"));
        let count = |key: &str| {
            outcomes
                .iter()
                .filter(|(k, _)| k.contains(key))
                .map(|(_, n)| n)
                .sum::<u64>()
        };
        assert_eq!(count("CORRUPTED") + count("STUCK"), 0);
        assert!(count("client: whole") > 500 * ROUNDS / 15, "there was a storm");
        for host in ["east-1", "west-1"] {
            assert_eq!(sb.host(host)["active_connections"], 0);
        }
    }
}
