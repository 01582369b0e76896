//! The relay program in the real kernel, on real TCP connections over loopback: `client = leg, leg = host`, where the
//! legs are signalbox' sockets of a flow. Userspace's part is played here, by the rules of `common::credit`.

use crate::namespace;

use std::hint::spin_loop;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use aya::programs::ProgramType;
use signalbox::kernel::Kernel;
use signalbox::kernel::counters::Counters;
use signalbox::kernel::object::ObjectLoader;
use signalbox::kernel::sockmap::{JoinOutcome, SockmapPair};
use signalbox::sys;
use signalbox_common::{Reason, hash};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::cut_packets::packet::Packet;

const FIN: u8 = 1;
const ACK: u8 = 16;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// A loopback segment is 64 KiB at the most: a credit's limit may be exceeded by that.
const SEGMENT: u64 = 64 * KIB;
/// Long enough for anything that should happen soon, on a machine with two busy cores.
const SOON: Duration = Duration::from_secs(20);

#[test]
fn bytes_are_redirected_both_ways_and_userspace_sees_none() {
    with_kernel(|kernel| {
        let flow = Flow::new(0);
        flow.join(kernel, u64::MAX);
        thread::scope(|scope| {
            for (from, to, seed) in [(&flow.client, &flow.host, 1), (&flow.host, &flow.client, 2)] {
                scope.spawn(move || send(from, seed, 0..MIB));
                scope.spawn(move || receive(to, seed, 0..MIB));
            }
        });
        for (at, leg) in flow.legs.iter().enumerate() {
            let credit = kernel.joiner().credits.read(at as u32);
            assert_eq!((credit.sent, credit.passed, credit.blocked), (MIB, 0, 0));
            assert!(
                sys::recv(leg.as_raw_fd(), &mut [0; 16], 0).is_err(),
                "nothing is left to read"
            );
        }
        assert!(kernel.exits(Reason::SockmapRedirected) >= 2 * MIB / SEGMENT);
        assert_eq!(
            kernel.exits(Reason::SockmapPassed) + kernel.exits(Reason::SockmapCreditExhausted),
            0
        );
    });
}

#[test]
fn bytes_that_arrived_before_the_join_are_relayed_by_the_join() {
    with_kernel(|kernel| {
        let flow = Flow::new(0);
        for (from, leg) in [(&flow.client, &flow.legs[0]), (&flow.host, &flow.legs[1])] {
            send(from, 3, 0..1000);
            eventually("arrival", || received(leg) == 1000);
        }
        flow.join(kernel, u64::MAX);
        receive(&flow.host, 3, 0..1000);
        receive(&flow.client, 3, 0..1000);
        assert_eq!(kernel.exits(Reason::SockmapRedirected), 2);
    });
}

/// A FIN must be dropped rather than passed, but that only shows under load, in the test after this one.
#[test]
fn a_bare_fin_is_counted_and_the_other_direction_continues() {
    with_kernel(|kernel| {
        let flow = Flow::new(0);
        flow.join(kernel, u64::MAX);
        flow.client.shutdown(Shutdown::Write).unwrap();
        eventually("the count", || kernel.exits(Reason::SockmapEmpty) == 1);
        let info = sys::tcp_info(flow.legs[0].as_raw_fd()).unwrap();
        assert!(info.peer_finished(), "TCP knows of the end all the same: {info:?}");
        thread::scope(|scope| {
            scope.spawn(|| send(&flow.host, 4, 0..4 * MIB));
            receive(&flow.client, 4, 0..4 * MIB);
        });
        flow.has_no_errors();
        assert_eq!(kernel.exits(Reason::SockmapEmpty), 1);
    });
}

/// Passed to the socket, the FIN was queued after the unsent data there, was taken for a failed transmission of 0
/// bytes, and ended with EPIPE and that data lost.
#[test]
fn data_in_flight_to_a_leg_survives_a_fin_of_that_legs_peer() {
    const TOTAL: u64 = 4 * MIB;
    with_kernel(|kernel| {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let _stop = signalbox_lab::StopOnDrop(&stop);
            // CPU load: the kernel's worker, which sends redirected bytes, must fall behind.
            for _ in 0..4 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        spin_loop();
                    }
                });
            }
            for round in 0..30 {
                let flow = Flow::new(round);
                flow.join(kernel, u64::MAX);
                let flow = &flow;
                thread::scope(|scope| {
                    scope.spawn(move || send(&flow.host, round, 0..TOTAL));
                    // Finishes at another point of the transfer in every round, with the rest in flight.
                    let before = hash::mix(round) % (TOTAL / 2);
                    receive(&flow.client, round, 0..before);
                    flow.client.shutdown(Shutdown::Write).unwrap();
                    thread::sleep(Duration::from_millis(round % 5));
                    receive(&flow.client, round, before..TOTAL);
                });
                flow.has_no_errors();
            }
        });
        assert_eq!(kernel.exits(Reason::SockmapEmpty), 30);
    });
}

/// The kernel hands programs a packet whole, also where the stream has had its first bytes already (`tcp_read_skb`).
#[test]
fn bytes_that_come_again_are_carried_once() {
    with_kernel(|kernel| {
        for (again, new) in [
            (1, 1),
            (100, 1000),
            (4095, 1),
            (4096, 1),
            (30_000, 30_000),
            (60_000, 10),
            (1000, 0),
        ] {
            let flow = Flow::new(0);
            flow.join(kernel, u64::MAX);
            send(&flow.client, 11, 0..60_000);
            receive(&flow.host, 11, 0..60_000);
            let (next, ack) = sys::sequence_numbers(flow.client.as_raw_fd()).unwrap();
            let packet = Packet {
                macs: [0; 12],
                from: flow.client.local_addr().unwrap(),
                to: flow.client.peer_addr().unwrap(),
                hops: 64,
                seq: next.wrapping_sub(again),
                ack,
                flags: if new == 0 { ACK | FIN } else { ACK },
                window: u16::MAX,
                options: Vec::new(),
                payload: stream(11, 60_000 - u64::from(again)..60_000 + new),
            };
            let raw = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::TCP)).unwrap();
            let to = SocketAddr::new(packet.to.ip(), 0);
            raw.send_to(&packet.tcp(), &to.into()).unwrap();
            receive(&flow.host, 11, 60_000..60_000 + new);
            eventually("the packet", || {
                received(&flow.legs[0]) == 60_000 + new + u64::from(new == 0)
            });
            let credit = kernel.joiner().credits.read(0);
            assert_eq!((credit.sent, credit.passed), (60_000 + new, 0), "{again} + {new}");
            flow.has_no_errors();
        }
        assert_eq!(
            (kernel.exits(Reason::SockmapFailed), kernel.exits(Reason::SockmapEmpty)),
            (0, 1)
        );
    });
}

#[test]
fn a_gate_closes_at_its_limit_and_opens_once_all_passed_is_read() {
    const LIMIT: u64 = 256 * KIB;
    with_kernel(|kernel| {
        let flow = Flow::new(0);
        flow.join(kernel, LIMIT);
        let (joiner, leg) = (kernel.joiner(), &flow.legs[0]);
        send(&flow.client, 5, 0..2 * LIMIT);
        eventually("arrival", || received(leg) == 2 * LIMIT);
        let credit = joiner.credits.read(0);
        assert!((LIMIT..LIMIT + SEGMENT).contains(&credit.sent), "{credit:?}");
        assert_eq!((credit.sent + credit.passed, credit.blocked), (2 * LIMIT, 1));
        assert_eq!(kernel.exits(Reason::SockmapCreditExhausted), 1, "closes once");
        assert_eq!(kernel.event(), Some(0), "and tells which");
        assert_eq!(
            joiner.credits.read(1).blocked,
            0,
            "the other direction has another credit"
        );

        // More credit alone does not open it: bytes that were passed would be overtaken.
        joiner.credits.set_limit(0, u64::MAX);
        send(&flow.client, 5, 2 * LIMIT..2 * LIMIT + 100);
        eventually("arrival", || received(leg) == 2 * LIMIT + 100);
        let (sent, passed) = (credit.sent, credit.passed + 100);
        assert_eq!(joiner.credits.read(0).passed, passed);

        // Nor does consuming only a part of the passed bytes.
        receive(&flow.host, 5, 0..sent);
        relay_by_hand(&flow, passed - 50);
        joiner.credits.set_consumed(0, passed - 50);
        send(&flow.client, 5, 2 * LIMIT + 100..2 * LIMIT + 200);
        eventually("arrival", || received(leg) == 2 * LIMIT + 200);
        assert_eq!((joiner.credits.read(0).sent, joiner.credits.read(0).blocked), (sent, 1));

        relay_by_hand(&flow, 150);
        joiner.credits.set_consumed(0, passed + 100);
        send(&flow.client, 5, 2 * LIMIT + 200..3 * LIMIT);
        receive(&flow.host, 5, sent..3 * LIMIT);
        let credit = joiner.credits.read(0);
        assert_eq!(
            (credit.blocked, credit.passed),
            (0, passed + 100),
            "open: the rest was redirected"
        );
        assert_eq!(
            (kernel.exits(Reason::SockmapCreditExhausted), kernel.event()),
            (1, None)
        );
    });
}

#[test]
fn many_hand_backs_to_an_erratic_reader_keep_all_bytes_in_order() {
    const ROUNDS: u64 = 16;
    const BURST: u64 = MIB;
    const WINDOW: u64 = 128 * KIB;
    with_kernel(|kernel| {
        let flow = Flow::new(0);
        // Bytes that the reader does not read must soon count against the credit, not stay in the reader's own buffer.
        SockRef::from(&flow.host)
            .set_recv_buffer_size(64 * KIB as usize)
            .unwrap();
        flow.join(kernel, WINDOW);
        let joiner = kernel.joiner();
        thread::scope(|scope| {
            scope.spawn(|| carry(joiner, &flow, WINDOW, ROUNDS * BURST));
            for round in 0..ROUNDS {
                let (mut at, next) = (round * BURST, (round + 1) * BURST);
                let sender = scope.spawn({
                    let client = &flow.client;
                    move || send(client, 6, at..next)
                });
                eventually("the credit's exhaustion", || {
                    kernel.exits(Reason::SockmapCreditExhausted) > round
                });
                while at < next {
                    let mood = hash::mix(at);
                    let until = (at + mood % (256 * KIB) + 1).min(next);
                    receive(&flow.host, 6, at..until);
                    at = until;
                    thread::sleep(Duration::from_millis(mood >> 8 & 7));
                }
                sender.join().unwrap();
                // A pause, in which userspace has consumed everything: the next byte is redirected again.
                eventually("the token", || {
                    let credit = joiner.credits.read(0);
                    credit.consumed == credit.passed
                });
            }
        });
        let credit = joiner.credits.read(0);
        assert_eq!(credit.sent + credit.passed, ROUNDS * BURST);
        let ways = [Reason::SockmapRedirected, Reason::SockmapPassed].map(|way| kernel.exits(way));
        assert!(ways.iter().all(|&n| n > 0), "both ways were taken: {ways:?}");
        // At least once a burst: a credit is exhausted once until it is extended.
        assert!(kernel.exits(Reason::SockmapCreditExhausted) >= ROUNDS);
    });
}

#[test]
fn without_a_gate_bytes_are_left_to_the_socket() {
    with_kernel(|kernel| {
        let flow = Flow::new(0);
        flow.join(kernel, u64::MAX);
        let [a, b] = flow.cookies();
        // Takes away the legs' credits and the peers, as at a flow's end. The legs stay under the program.
        kernel.joiner().remove(a, b);
        send(&flow.client, 7, 0..1000);
        eventually("the count", || kernel.exits(Reason::SockmapNoCredit) == 1);
        relay_by_hand(&flow, 1000);
        receive(&flow.host, 7, 0..1000);
    });
}

#[test]
fn bytes_for_a_closed_leg_go_to_userspace_and_close_the_gate() {
    with_kernel(|kernel| {
        let flow = Flow::new(0);
        flow.join(kernel, u64::MAX);
        let Flow {
            client,
            legs: [leg, closed],
            host,
        } = flow;
        drop((closed, host));
        send(&client, 10, 0..1000);
        eventually("the count", || kernel.exits(Reason::SockmapNoPeer) == 1);
        assert_eq!(kernel.event(), Some(0));
        leg.set_nonblocking(false).unwrap();
        receive(&leg, 10, 0..1000);
        let credit = kernel.joiner().credits.read(0);
        assert_eq!(
            (credit.sent, credit.packets, credit.passed, credit.blocked),
            (0, 0, 1000, 1)
        );
    });
}

#[test]
fn a_leg_whose_sender_has_finished_is_refused_and_loses_nothing() {
    with_kernel(|kernel| {
        for finished in [0, 1] {
            let flow = Flow::new(finished);
            let (ends, finished) = ([&flow.client, &flow.host], finished as usize);
            for end in ends {
                send(end, 8, 0..1000);
            }
            ends[finished].shutdown(Shutdown::Write).unwrap();
            // The FIN counts as one.
            eventually("arrival", || {
                received(&flow.legs[finished]) == 1001 && received(&flow.legs[1 - finished]) == 1000
            });
            let refused = flow.try_join(kernel, u64::MAX).unwrap_err();
            assert_eq!(
                refused.raw_os_error(),
                Some(libc::EOPNOTSUPP),
                "leg {finished}: {refused}"
            );
            for leg in &flow.legs {
                leg.set_nonblocking(false).unwrap();
                receive(leg, 8, 0..1000);
            }
            assert_eq!((&flow.legs[finished]).read(&mut [0]).unwrap(), 0, "then its end");
            send(&flow.legs[finished], 9, 0..1000);
            receive(ends[finished], 9, 0..1000);
        }
        assert!(
            Reason::ALL.iter().all(|&reason| kernel.exits(reason) == 0),
            "no program saw any of it"
        );
    });
}

/// Two connections, whose middle ends are the legs.
struct Flow {
    client: TcpStream,
    legs: [TcpStream; 2],
    host: TcpStream,
}

impl Flow {
    fn new(round: u64) -> Self {
        let pair = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let leg = listener.accept().unwrap().0;
            for socket in [&far, &leg] {
                socket.set_nodelay(true).unwrap();
                socket.set_read_timeout(Some(SOON)).unwrap();
                socket.set_write_timeout(Some(SOON)).unwrap();
            }
            leg.set_nonblocking(true).unwrap();
            (far, leg)
        };
        let ((client, a), (host, b)) = (pair(), pair());
        // Either leg may be the older socket.
        if round.is_multiple_of(2) {
            return Self {
                client,
                legs: [a, b],
                host,
            };
        }
        Self {
            client: host,
            legs: [b, a],
            host: client,
        }
    }

    fn cookies(&self) -> [u64; 2] {
        self.legs.each_ref().map(|leg| sys::cookie(leg.as_raw_fd()).unwrap())
    }

    /// Joins the legs with credits 0 and 1.
    fn try_join(&self, kernel: &TestKernel, limit: u64) -> std::io::Result<JoinOutcome> {
        let [a, b] = self.cookies();
        kernel
            .joiner()
            .join([(&self.legs[0], a, 0), (&self.legs[1], b, 1)], limit)
    }

    fn join(&self, kernel: &TestKernel, limit: u64) {
        assert!(matches!(self.try_join(kernel, limit).unwrap(), JoinOutcome::Both));
    }

    fn has_no_errors(&self) {
        for socket in [&self.client, &self.legs[0], &self.legs[1], &self.host] {
            if let Some(error) = sys::take_error(socket.as_raw_fd()) {
                panic!("a socket of the flow has failed: {error}");
            }
        }
    }
}

/// Carries the client's bytes by the rules of credits until `total` bytes have gone to the host's leg.
fn carry(joiner: &SockmapPair, flow: &Flow, window: u64, total: u64) {
    let (from, to) = (flow.legs[0].as_raw_fd(), flow.legs[1].as_raw_fd());
    let acked = || sys::tcp_info(to).unwrap().bytes_acked;
    // An acknowledgement counts the SYN too. Acknowledged bytes are read before unacknowledged ones: so the sum is
    // never too high.
    let queued_now = || acked() + sys::unacknowledged(to).unwrap();
    let (mut relayed, mut buffer) = (0, vec![0; 16 * KIB as usize]);
    let end = Instant::now() + 3 * SOON;
    loop {
        assert!(Instant::now() < end, "stuck at {relayed}, {:?}", joiner.credits.read(0));
        let credit = joiner.credits.read(0);
        if credit.sent + relayed == total && credit.consumed == credit.passed {
            return;
        }
        // Between the write of the consumed count and the next segment `blocked` is 1 still, but redirects can start
        // again at any moment.
        let stays_blocked = credit.consumed != credit.passed;
        if stays_blocked && queued_now() >= joiner.credits.read(0).sent + relayed {
            // Redirected bytes have gone first; passed bytes come after them, and before redirects start again.
            match sys::recv(from, &mut buffer, 0) {
                Ok(n) => {
                    send_all(to, &buffer[..n]);
                    relayed += n as u64;
                }
                Err(_) => {
                    joiner.credits.set_consumed(0, relayed);
                    joiner.credits.set_limit(0, acked().saturating_sub(relayed) + window);
                    thread::sleep(Duration::from_micros(200));
                }
            }
        } else {
            if !stays_blocked {
                joiner.credits.set_limit(0, acked().saturating_sub(relayed) + window);
            }
            thread::sleep(Duration::from_micros(200));
        }
    }
}

fn send_all(to: i32, mut bytes: &[u8]) {
    let end = Instant::now() + SOON;
    while !bytes.is_empty() {
        assert!(Instant::now() < end, "no room for {} bytes", bytes.len());
        match sys::send(to, bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(_) => thread::sleep(Duration::from_micros(200)),
        }
    }
}

/// Moves `count` bytes that were left with the first leg to the other one.
fn relay_by_hand(flow: &Flow, count: u64) {
    let mut bytes = vec![0; count as usize];
    let mut at = 0;
    eventually("what was passed", || {
        at += sys::recv(flow.legs[0].as_raw_fd(), &mut bytes[at..], 0).unwrap_or(0);
        at == bytes.len()
    });
    send_all(flow.legs[1].as_raw_fd(), &bytes);
}

/// Sends a stretch of the byte stream of a seed.
fn send(mut to: &TcpStream, seed: u64, stretch: Range<u64>) {
    to.write_all(&stream(seed, stretch)).unwrap();
}

/// Receives a stretch of it.
fn receive(mut from: &TcpStream, seed: u64, stretch: Range<u64>) {
    let wanted = stream(seed, stretch.clone());
    let mut bytes = vec![0; wanted.len()];
    let mut at = 0;
    while at < bytes.len() {
        match from.read(&mut bytes[at..]) {
            Ok(0) => panic!("the stream of seed {seed} ends at {}", stretch.start + at as u64),
            Ok(n) => at += n,
            Err(error) => panic!(
                "the stream of seed {seed} fails at {}: {error}",
                stretch.start + at as u64
            ),
        }
    }
    let wrong = bytes.iter().zip(&wanted).position(|(a, b)| a != b);
    assert_eq!(
        wrong, None,
        "first wrong byte of the stretch {stretch:?} of seed {seed}"
    );
}

/// No two stretches of eight bytes are alike.
fn stream(seed: u64, stretch: Range<u64>) -> Vec<u8> {
    let byte = |at: u64| hash::mix((seed << 40) + at / 8).to_le_bytes()[at as usize % 8];
    stretch.map(byte).collect()
}

fn received(leg: &TcpStream) -> u64 {
    sys::tcp_info(leg.as_raw_fd()).unwrap().bytes_received
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !condition() {
        assert!(Instant::now() < end, "{what} did not come");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A loaded object of the test's own: its counters start at 0.
struct TestKernel {
    joiner: Arc<SockmapPair>,
    counters: Arc<Counters>,
    kernel: Mutex<Kernel>,
}

impl TestKernel {
    fn joiner(&self) -> &SockmapPair {
        &self.joiner
    }

    fn exits(&self, reason: Reason) -> u64 {
        self.counters.exit_counts()[reason as usize].1
    }

    /// The credit that the next event is about.
    fn event(&self) -> Option<u32> {
        let mut kernel = self.kernel.lock().unwrap();
        let item = kernel.credit_events.as_mut().unwrap().next()?;
        Some(u32::from_ne_bytes(item[..4].try_into().unwrap()))
    }
}

/// Runs a test with the object loaded, in a separate network namespace.
fn with_kernel<F: FnOnce(&TestKernel) + Send>(work: F) {
    namespace::in_own_namespace(namespace::test_of::<F>(), ProgramType::SkSkb, &[], || {
        // No refusal is excused here: these tests must find an object that the kernel refuses.
        let kernel = Kernel::load(&mut ObjectLoader::default()).unwrap();
        assert_eq!(kernel.degraded, []);
        work(&TestKernel {
            joiner: kernel.sockmap.clone().unwrap(),
            counters: Arc::clone(&kernel.counters),
            kernel: Mutex::new(kernel),
        });
    });
}
