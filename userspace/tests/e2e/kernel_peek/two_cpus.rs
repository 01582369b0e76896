//! A packet twice, at two CPUs at the same time, as where a network card spreads packets in turns: one of the programs
//! continues the connection.

use crate::lab;

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use socket2::Socket;

use lab::cut::{self, CutLab, expect_none};
use lab::flood::{all_packets, packets};
use lab::raw::{ACK, RST, SYN, checksum};
use lab::{Ns, SOON, Server, Signalbox, eventually};

use super::{PEEK, exits, expect_routes, filter};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";
/// Times that both programs have found the data waiting, after which the test has seen enough.
const ENOUGH_RACES: u64 = 20;
/// Connections after which one race is enough, and after which there has to be one: beside other work two CPUs are
/// seldom free at once.
const MANY_CONNECTIONS: u64 = 3000;
const MAX_CONNECTIONS: u64 = 10 * MANY_CONNECTIONS;

const ETHERNET: usize = 14;
const TCP: usize = ETHERNET + 20;

/// Frames of an interface, and senders of frames by it, one on each of two CPUs.
struct Frames {
    socket: Socket,
    senders: Vec<Sender<Vec<u8>>>,
}

impl Frames {
    /// Opens the sockets of a namespace's `eth0`, and starts the senders, which end when the returned value is dropped.
    fn of<'scope>(ns: &Ns, scope: &'scope Scope<'scope, '_>) -> Self {
        let socket = ns.run(|| all_packets("eth0"));
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let arrived = Arc::<AtomicUsize>::default();
        let mut senders = Vec::new();
        for cpu in 0..cpus() {
            let (sender, frames) = channel();
            let (socket, arrived) = (ns.run(|| packets("eth0")), Arc::clone(&arrived));
            scope.spawn(move || send_together(cpu, &socket, &frames, &arrived));
            senders.push(sender);
        }
        Self { socket, senders }
    }

    /// The next frame of TCP to port 80 that `is_it`.
    fn next(&self, is_it: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let until = Instant::now() + SOON;
        let mut room = [0; 4096];
        while Instant::now() < until {
            let length = match (&self.socket).read(&mut room) {
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => panic!("{error}"),
            };
            let frame = &room[..length];
            let is_tcp = length >= TCP + 20 && frame[12..14] == [8, 0] && frame[ETHERNET + 9] == 6;
            if is_tcp && frame[TCP + 2..TCP + 4] == 80u16.to_be_bytes() && is_it(frame) {
                return frame.to_vec();
            }
        }
        panic!("there was no such frame");
    }

    fn send(&self, frame: &[u8]) {
        (&self.socket).write_all(frame).unwrap();
    }

    /// Sends a frame at each CPU at once.
    fn send_twice(&self, frame: &[u8]) {
        for sender in &self.senders {
            sender.send(frame.to_owned()).unwrap();
        }
    }

    /// Takes a SYN to this host.
    fn syn(&self) -> Vec<u8> {
        self.next(|frame| flags(frame) & (SYN | ACK) == SYN)
    }

    /// Takes the first data of the connection that a SYN began, and ends the connection.
    fn take_data(&self, syn: &[u8]) {
        let is_it = |frame: &[u8]| frame[TCP..TCP + 2] == syn[TCP..TCP + 2] && !payload(frame).is_empty();
        let data = self.next(is_it);
        assert_eq!(payload(&data), REQUEST);
        let seq = u32::from_be_bytes(data[TCP + 8..TCP + 12].try_into().unwrap());
        self.send(&reply(&data, RST, seq, &[]));
    }
}

fn cpus() -> usize {
    std::thread::available_parallelism().unwrap().get().min(2)
}

fn flags(frame: &[u8]) -> u8 {
    frame[TCP + 13]
}

/// Bytes of TCP that a frame carries, without padding.
fn payload(frame: &[u8]) -> &[u8] {
    let end = ETHERNET + usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    &frame[TCP + usize::from(frame[TCP + 12] >> 4) * 4..end]
}

/// The answer of a host with the same options as the client.
fn syn_ack(syn: &[u8]) -> Vec<u8> {
    let mut options: [u8; 20] = syn[TCP + 20..TCP + 40].try_into().unwrap();
    // MSS, SACK, a timestamp whose echo is the value that the SYN has, window scaling.
    assert_eq!(options[4..8], [4, 2, 8, 10], "the SYN has other options");
    options.copy_within(8..12, 12);
    reply(syn, SYN, 0x1234_5678, &options)
}

/// A segment that acknowledges another one, and has no payload.
fn reply(to: &[u8], flags: u8, seq: u32, options: &[u8]) -> Vec<u8> {
    let consumed = payload(to).len() as u32 + u32::from(to[TCP + 13] & SYN != 0);
    let ack = u32::from_be_bytes(to[TCP + 4..TCP + 8].try_into().unwrap()).wrapping_add(consumed);
    let mut tcp = [&to[TCP + 2..TCP + 4], &to[TCP..TCP + 2]].concat();
    tcp.extend(seq.to_be_bytes());
    tcp.extend(ack.to_be_bytes());
    tcp.extend([(20 + options.len() as u8) << 2, flags | ACK, 0xfa, 0xf0, 0, 0, 0, 0]);
    tcp.extend(options);
    let (source, destination) = (&to[ETHERNET + 12..ETHERNET + 16], &to[ETHERNET + 16..TCP]);
    let addresses = [destination, source].concat();
    let sum = checksum(&[&addresses[..], &[0, 6, 0, tcp.len() as u8], &tcp].concat());
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    let mut ip = [
        &[0x45, 0, 0, 20 + tcp.len() as u8, 0, 0, 0x40, 0, 64, 6, 0, 0],
        &addresses[..],
    ]
    .concat();
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    [&to[6..12], &to[..6], &[8, 0], &ip, &tcp].concat()
}

/// A client's acknowledgement, followed by its request.
fn with_data(bare: &[u8]) -> Vec<u8> {
    let header = usize::from(bare[TCP + 12] >> 4) * 4;
    let mut frame = [&bare[..TCP + header], REQUEST].concat();
    let length = ((frame.len() - ETHERNET) as u16).to_be_bytes();
    frame[ETHERNET + 2..ETHERNET + 4].copy_from_slice(&length);
    frame[ETHERNET + 10..ETHERNET + 12].fill(0);
    let sum = checksum(&frame[ETHERNET..TCP]).to_be_bytes();
    frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum);
    frame[TCP + 16..TCP + 18].fill(0);
    let pseudo = [&frame[ETHERNET + 12..TCP], &[0, 6, 0, (frame.len() - TCP) as u8]].concat();
    let sum = checksum(&[&pseudo, &frame[TCP..]].concat()).to_be_bytes();
    frame[TCP + 16..TCP + 18].copy_from_slice(&sum);
    frame
}

/// Sends each frame at the moment when the other CPU does.
fn send_together(cpu: usize, socket: &Socket, frames: &Receiver<Vec<u8>>, arrived: &AtomicUsize) {
    let mut one = CpuSet::new();
    one.set(cpu).unwrap();
    sched_setaffinity(Pid::from_raw(0), &one).unwrap();
    // This thread preempts all others: otherwise the other CPU's copy would be alone.
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameter outlives the call.
    let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    for (round, frame) in (1..).zip(frames) {
        arrived.fetch_add(1, Ordering::SeqCst);
        let mut looked = 0u32;
        while arrived.load(Ordering::SeqCst) < round * cpus() {
            looked += 1;
            if looked.is_multiple_of(10_000) {
                std::thread::yield_now();
            }
        }
        // SAFETY: the frame outlives the call.
        let sent = unsafe { libc::send(socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize);
    }
}

/// Starts signalbox in front of a host whose port only the test answers.
fn start(lab: &CutLab) -> (Vec<Server>, Signalbox) {
    let (health, sb) = cut::start(lab, PEEK);
    expect_routes(&sb, 4);
    filter(lab.host("east-1"), "inet", "hook input", "tcp dport 80 drop");
    (health, sb)
}

/// Makes connections until both programs have had a packet often enough; returns their number.
fn repeat(sb: &Signalbox, mut one: impl FnMut()) -> u64 {
    let mut connections = 0;
    let enough = |connections| match connections {
        0..MANY_CONNECTIONS => ENOUGH_RACES,
        MANY_CONNECTIONS..MAX_CONNECTIONS => 1,
        _ => 0,
    };
    while connections % 100 != 0 || exits(sb, "early") < enough(connections) {
        connections += 1;
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut one));
        if let Err(error) = done {
            println!("connection {connections}: {}", sb.get("/metrics").1);
            println!("{:#?}", sb.flows("limit=1000"));
            std::panic::resume_unwind(error);
        }
    }
    let races = exits(sb, "early");
    println!("of {connections} connections {races} had a packet at two CPUs at once");
    assert!(races > 0 || cpus() == 1, "{}", sb.get("/metrics").1);
    connections
}

fn expect_whole(sb: &Signalbox, connections: u64) {
    for reason in ["routed", "delivered"] {
        assert_eq!(exits(sb, reason), connections, "{reason}\n{}", sb.get("/metrics").1);
    }
    for reason in ["overwritten", "failed", "refused", "passed_up"] {
        assert_eq!(exits(sb, reason), 0, "{reason}\n{}", sb.get("/metrics").1);
    }
    expect_none(sb);
    assert!(eventually(SOON, || sb.host("east-1")["active_connections"] == 0));
}

#[test]
fn first_data_is_sent_once_though_two_cpus_get_the_hosts_answer() {
    let Some(lab) = super::lab("first_data_is_sent_once_though_two_cpus_get_the_hosts_answer") else {
        return;
    };
    let (_health, sb) = start(&lab);
    let connections = std::thread::scope(|scope| {
        let host = Frames::of(lab.host("east-1"), scope);
        repeat(&sb, || {
            let mut client = lab.client.connect("10.1.0.1:80");
            client.write_all(REQUEST).unwrap();
            let syn = host.syn();
            host.send_twice(&syn_ack(&syn));
            host.take_data(&syn);
        })
    });
    expect_whole(&sb, connections);
}

/// The data is sent by hand after the client's acknowledgement, and the client's kernel does not know of it.
#[test]
fn first_data_that_two_cpus_have_at_once_is_routed_once() {
    let Some(lab) = super::lab("first_data_that_two_cpus_have_at_once_is_routed_once") else {
        return;
    };
    let (_health, sb) = start(&lab);
    let connections = std::thread::scope(|scope| {
        let (client, host) = (Frames::of(&lab.client, scope), Frames::of(lab.host("east-1"), scope));
        repeat(&sb, || {
            let socket = lab.client.connect("10.1.0.1:80");
            let port = socket.local_addr().unwrap().port().to_be_bytes();
            let bare = client.next(|frame| flags(frame) == ACK && frame[TCP..TCP + 2] == port);
            client.send_twice(&with_data(&bare));
            let syn = host.syn();
            host.send(&syn_ack(&syn));
            host.take_data(&syn);
        })
    });
    expect_whole(&sb, connections);
}
