//! Flows that speak all the time while something happens to the nodes, and whose every byte is checked.
//!
//! After the bytes that a door demands, a client announces in 9 bytes how it will speak: its [`Way`], and a seed. Then
//! it asks for echoes, only receives, or only sends. One-way streams consist of frames: two bytes for the length, the
//! bytes; an empty frame is the last one.

use std::io::{Error, Read, Result, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::config::{Door, doors};
use super::pair::Pair;
use crate::lab::exchange::Noise;
use crate::lab::namespace::connect_here;
use crate::lab::{Ns, SOON, Server, eventually};

/// Most bytes of a frame.
const MAX_FRAME_BYTES: u64 = 8 << 10;
/// Pause between two frames.
const FRAME_INTERVAL: Duration = Duration::from_millis(10);
/// Answer to a stream that only the client sends, when all of it has come.
const ALL_HAS_COME: u8 = b'+';

/// Flows of a run: SIGNALBOX_E2E_FLOWS says how many.
fn flow_count() -> usize {
    let number = std::env::var("SIGNALBOX_E2E_FLOWS").ok();
    number.and_then(|text| text.parse().ok()).unwrap_or(60)
}

/// How often the pause of few flows many take between their messages: the bytes of all in a second are the same, or the
/// client would wait for its own threads.
fn pauses() -> u32 {
    (flow_count() / 250).max(1) as u32
}

/// How a flow speaks.
#[derive(Clone, Copy)]
enum Way {
    /// The client asks for echoes of this many bytes, with a pause after each.
    Echo(u64, Duration),
    /// Only the server sends.
    Down,
    /// Only the client sends.
    Up,
}

impl Way {
    /// The way of a flow with this number.
    const fn of(number: usize) -> Self {
        match number % 5 {
            // Some send little now and then, others a lot without a break.
            0 => Self::Echo(1, Duration::from_secs(1)),
            1 => Self::Echo(64, Duration::from_millis(100)),
            2 => Self::Echo(16 << 10, Duration::from_millis(20)),
            3 => Self::Down,
            _ => Self::Up,
        }
    }

    const fn letter(self) -> u8 {
        match self {
            Self::Echo(..) => b'e',
            Self::Down => b'd',
            Self::Up => b'u',
        }
    }
}

/// State that the flows of a load share.
#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    /// Flows over which bytes have come.
    begun: AtomicU64,
    /// Longest waits for bytes, and the failures.
    waits: Mutex<Vec<Duration>>,
    failures: Mutex<Vec<String>>,
}

impl Shared {
    fn note_failure(&self, text: String) {
        self.failures.lock().unwrap().push(text);
    }

    /// Speaks on a new flow until the end.
    fn speak(&self, door: &Door, number: usize) {
        let mut longest = Duration::ZERO;
        let outcome = connect_here(door.at).and_then(|stream| self.converse(&stream, door, number, &mut longest));
        match outcome {
            Ok(()) => self.waits.lock().unwrap().push(longest),
            Err(error) => self.note_failure(format!("{} flow {number}: {error}", door.at)),
        }
    }

    fn converse(&self, mut stream: &TcpStream, door: &Door, number: usize, longest: &mut Duration) -> Result<()> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(3 * SOON))?;
        stream.set_write_timeout(Some(3 * SOON))?;
        let (way, seed) = (Way::of(number), number as u64);
        stream.write_all(&[&door.first, &[way.letter()][..], &seed.to_be_bytes()].concat())?;
        match way {
            Way::Echo(bytes, pause) => self.ask_for_echoes(stream, seed, (bytes, pause), longest)?,
            Way::Down => return self.receive_frames(stream, seed, longest),
            Way::Up => {
                self.send_frames(stream, seed)?;
                let mut answer = [0];
                stream.read_exact(&mut answer)?;
                if answer != [ALL_HAS_COME] {
                    return Err(Error::other("the server has another answer"));
                }
            }
        }
        stream.shutdown(Shutdown::Write)?;
        expect_end(stream)
    }

    fn ask_for_echoes(
        &self,
        mut stream: &TcpStream,
        seed: u64,
        (bytes, pause): (u64, Duration),
        longest: &mut Duration,
    ) -> Result<()> {
        let mut noise = Noise::new(seed);
        let (mut word, mut echo) = (vec![0; bytes as usize], vec![0; bytes as usize]);
        let mut turn = 0u64;
        while !self.is_over.load(SeqCst) {
            noise.fill(&mut word);
            let began = Instant::now();
            stream.write_all(&word)?;
            stream.read_exact(&mut echo)?;
            if echo != word {
                return Err(Error::other(format!("turn {turn}: other bytes came back")));
            }
            *longest = (*longest).max(began.elapsed());
            if turn == 0 {
                self.begun.fetch_add(1, SeqCst);
            }
            turn += 1;
            std::thread::sleep(pause * pauses());
        }
        Ok(())
    }

    fn send_frames(&self, mut to: &TcpStream, seed: u64) -> Result<()> {
        let mut noise = Noise::new(seed);
        let mut frame = Vec::new();
        while !self.is_over.load(SeqCst) {
            let bytes = noise.up_to(MAX_FRAME_BYTES) as u16;
            frame.resize(2 + usize::from(bytes), 0);
            frame[..2].copy_from_slice(&bytes.to_be_bytes());
            noise.fill(&mut frame[2..]);
            to.write_all(&frame)?;
            std::thread::sleep(FRAME_INTERVAL * pauses());
        }
        to.write_all(&[0; 2])
    }

    /// Receives the frames of a seed, and nothing else, until the last one and the end of the stream.
    fn receive_frames(&self, mut from: &TcpStream, seed: u64, longest: &mut Duration) -> Result<()> {
        let mut noise = Noise::new(seed);
        let (mut expected, mut frame) = (Vec::new(), Vec::new());
        for turn in 0u64.. {
            let began = Instant::now();
            let mut header = [0; 2];
            from.read_exact(&mut header)?;
            let bytes = u16::from_be_bytes(header);
            if bytes == 0 {
                break;
            }
            frame.resize(usize::from(bytes), 0);
            from.read_exact(&mut frame)?;
            // The sender's own pause does not count.
            let stalled = began.elapsed().saturating_sub(FRAME_INTERVAL * pauses());
            *longest = (*longest).max(stalled);
            let length = noise.up_to(MAX_FRAME_BYTES);
            expected.resize(length as usize, 0);
            noise.fill(&mut expected);
            if frame != expected {
                return Err(Error::other(format!("frame {turn}: other bytes have come")));
            }
            if turn == 0 {
                self.begun.fetch_add(1, SeqCst);
            }
        }
        Ok(())
    }

    /// The server's side of a flow.
    fn serve(&self, mut stream: &TcpStream) -> Result<()> {
        let mut header = [0; 9];
        stream.read_exact(&mut header)?;
        let seed = u64::from_be_bytes(std::array::from_fn(|at| header[1 + at]));
        match header[0] {
            b'd' => {
                self.send_frames(stream, seed)?;
                stream.shutdown(Shutdown::Write)?;
                return expect_end(stream);
            }
            b'u' => {
                self.receive_frames(stream, seed, &mut Duration::default())?;
                stream.write_all(&[ALL_HAS_COME])?;
                expect_end(stream)?;
            }
            _ => {
                let mut buffer = vec![0; 64 * 1024];
                loop {
                    let count = stream.read(&mut buffer)?;
                    if count == 0 {
                        break;
                    }
                    stream.write_all(&buffer[..count])?;
                }
            }
        }
        stream.shutdown(Shutdown::Write)
    }
}

fn expect_end(mut stream: &TcpStream) -> Result<()> {
    match stream.read(&mut [0; 1])? {
        0 => Ok(()),
        _ => Err(Error::other("bytes came behind the last ones")),
    }
}

/// Servers that first take the bytes that a door demands, and then speak as the client announced.
fn servers(host: &Ns, shared: &Arc<Shared>) -> Vec<Server> {
    let serve = |door: &Door| {
        let (first, shared, at) = (door.first.len(), Arc::clone(shared), door.port);
        Server::start(host, &format!("[::]:{at}"), move |stream| {
            let mut received = vec![0; first];
            if (&*stream).read_exact(&mut received).is_err() {
                return;
            }
            if let Err(error) = shared.serve(&stream) {
                shared.note_failure(format!("server at {at}: {error}"));
            }
        })
    };
    // The doors of both families lead to the same ports.
    doors().iter().step_by(2).map(serve).collect()
}

/// Flows that a client holds.
pub(super) struct Speakers {
    client: Ns,
    shared: Arc<Shared>,
    flows: Vec<JoinHandle<()>>,
    _servers: Vec<Server>,
}

impl Speakers {
    fn new(pair: &Pair) -> Self {
        let shared = Arc::default();
        Self {
            client: pair.client.clone(),
            _servers: servers(&pair.host, &shared),
            shared,
            flows: Vec::new(),
        }
    }

    /// Number of flows.
    pub(super) fn count(&self) -> u64 {
        self.flows.len() as u64
    }

    /// Begins as many flows more, and waits until bytes have come over each.
    pub(super) fn add(&mut self, count: usize) {
        for number in self.flows.len()..self.flows.len() + count {
            let (client, shared) = (self.client.clone(), Arc::clone(&self.shared));
            self.flows.push(std::thread::spawn(move || {
                client.enter().unwrap();
                let doors = doors();
                shared.speak(&doors[number % doors.len()], number);
            }));
        }
        let has_begun = eventually(2 * SOON, || self.shared.begun.load(SeqCst) >= self.count());
        let failures = self.shared.failures.lock().unwrap().clone();
        let begun = self.shared.begun.load(SeqCst);
        assert!(has_begun, "{begun} of {} have begun: {failures:?}", self.count());
    }

    /// Ends all flows; none may have been lost. Prints how long they stalled.
    fn finish(mut self) {
        self.shared.is_over.store(true, SeqCst);
        let count = self.flows.len();
        for flow in self.flows.drain(..) {
            flow.join().unwrap();
        }
        let failures = std::mem::take(&mut *self.shared.failures.lock().unwrap());
        assert!(
            failures.is_empty(),
            "{} of {count} flows: {failures:#?}",
            failures.len()
        );
        let mut waits = std::mem::take(&mut *self.shared.waits.lock().unwrap());
        assert_eq!(waits.len(), count);
        waits.sort_unstable();
        let at = |share: usize| waits[(waits.len() - 1) * share / 100].as_millis();
        println!(
            "{count} flows: longest wait p50 {} ms, p99 {} ms, most {} ms",
            at(50),
            at(99),
            at(100)
        );
    }
}

impl Drop for Speakers {
    fn drop(&mut self) {
        self.shared.is_over.store(true, SeqCst);
    }
}

/// Has flows speak while `work` is done with the nodes; none may be lost.
pub(super) fn while_they_speak(pair: &mut Pair, work: impl FnOnce(&mut Pair, &mut Speakers)) {
    let mut speakers = Speakers::new(pair);
    speakers.add(flow_count());
    for other in pair.running().into_iter().filter(|&node| node != 0) {
        pair.wait_shadows(other, speakers.count());
    }
    work(pair, &mut speakers);
    // An error of a move may show a little later.
    std::thread::sleep(Duration::from_secs(2));
    speakers.finish();
}
