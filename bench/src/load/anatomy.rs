//! Anatomy of connections: the times between their packets, as the interfaces of the client and of the hosts see them.
//! The balancer is not looked into, so all contenders are measured alike.

use std::io::{IoSliceMut, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use signalbox_lab::Ns;
use socket2::{Domain, Protocol, Socket, Type};

use crate::lab::{HOSTS, Lab};

/// Connections of a turn, one after the other.
const CONNECTIONS: usize = 1000;
/// Time for which an answer is waited for.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Room for the packets of a turn.
const ROOM_BYTES: usize = 64 << 20;

const SYN: u8 = 2;
const ACK: u8 = 16;

/// Parts of a connection, in their order, and the whole.
pub(crate) const PARTS: usize = 8;
/// Medians of a turn, in µs, of the parts that the connections had.
pub(crate) type Parts = [Option<f64>; PARTS];

/// End of a connection at which a packet was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Client,
    Host,
}

/// A packet.
#[derive(Debug, Clone, Copy)]
struct Seen {
    at: Duration,
    place: Place,
    /// Whether the machine at this place has sent it.
    is_sent: bool,
    flags: u8,
    payload: usize,
}

impl Seen {
    const fn is_syn(&self) -> bool {
        self.flags & (SYN | ACK) == SYN
    }

    const fn is_syn_ack(&self) -> bool {
        self.flags & (SYN | ACK) == SYN | ACK
    }
}

/// Makes connections to a target, and returns the medians of their parts.
pub(crate) fn run(lab: &Lab, target: SocketAddrV4, request: &[u8], warm_up: Duration) -> Result<Parts> {
    let captures = [
        Capture::start(&lab.client, Place::Client)?,
        Capture::start(&lab.hosts[0], Place::Host)?,
        Capture::start(&lab.hosts[1], Place::Host)?,
    ];
    let until = Instant::now() + warm_up;
    lab.client.run(|| -> Result<()> {
        while Instant::now() < until {
            ask(target, request)?;
        }
        Ok(())
    })?;
    for capture in &captures {
        capture.drain()?;
    }
    lab.client
        .run(|| (0..CONNECTIONS).try_for_each(|_| ask(target, request)))?;
    let mut seen = Vec::new();
    for capture in &captures {
        seen.extend(capture.drain()?);
    }
    seen.sort_by_key(|packet| packet.at);
    medians(&seen)
}

/// A connection with one request.
fn ask(target: SocketAddrV4, request: &[u8]) -> Result<()> {
    let mut stream = TcpStream::connect(target).context("a connection")?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(request).context("a request")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).context("an answer")?;
    ensure!(!answer.is_empty(), "an answer without a byte");
    Ok(())
}

/// Packets of a namespace's interfaces, as the kernel taps them.
struct Capture {
    socket: Socket,
    place: Place,
}

impl Capture {
    fn start(ns: &Ns, place: Place) -> Result<Self> {
        let all = i32::from((libc::ETH_P_ALL as u16).to_be());
        let socket = ns.run(|| Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(all))))?;
        socket.set_nonblocking(true)?;
        setsockopt(&socket, sockopt::RcvBufForce, &ROOM_BYTES)?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
        Ok(Self { socket, place })
    }

    /// Packets of TCP since the last call.
    fn drain(&self) -> Result<Vec<Seen>> {
        let (mut seen, mut buffer) = (Vec::new(), [0; 128]);
        let mut control = nix::cmsg_space!(nix::sys::time::TimeSpec);
        loop {
            let (length, at) = {
                let mut parts = [IoSliceMut::new(&mut buffer)];
                let flags = MsgFlags::MSG_TRUNC;
                let message = match recvmsg::<()>(self.socket.as_raw_fd(), &mut parts, Some(&mut control), flags) {
                    Err(Errno::EAGAIN) => return Ok(seen),
                    message => message?,
                };
                let at = message.cmsgs()?.find_map(|message| match message {
                    ControlMessageOwned::ScmTimestampns(at) => Some(Duration::from(at)),
                    _ => None,
                });
                (message.bytes, at.context("a packet without a time")?)
            };
            seen.extend(self.read(&buffer[..length.min(128)], at));
        }
    }

    /// A packet of TCP over IPv4; `None`: another one.
    fn read(&self, packet: &[u8], at: Duration) -> Option<Seen> {
        let ip = usize::from(packet.first()? & 15) * 4;
        if packet[0] >> 4 != 4 || *packet.get(9)? != 6 {
            return None;
        }
        let total = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
        let tcp = packet.get(ip..)?;
        let header = usize::from(tcp.get(12)? >> 4) * 4;
        let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        // The loopback interface, and what does not belong to requests.
        if packet[12] == 127 || (port(0) != 80 && port(2) != 80) {
            return None;
        }
        let from = Ipv4Addr::new(packet[12], packet[13], packet[14], packet[15]);
        Some(Seen {
            at,
            place: self.place,
            is_sent: match self.place {
                Place::Client => port(2) == 80,
                Place::Host => HOSTS.contains(&from),
            },
            flags: tcp[13],
            payload: total.saturating_sub(ip + header),
        })
    }
}

/// Medians of the parts of connections. One follows the other, so each begins with its client's SYN.
fn medians(seen: &[Seen]) -> Result<Parts> {
    let begins = |packet: &Seen| packet.place == Place::Client && packet.is_sent && packet.is_syn();
    let first = seen.iter().position(begins).context("no connection was seen")?;
    let mut all: [Vec<f64>; PARTS] = Default::default();
    let mut count = 0;
    for connection in seen[first..].chunk_by(|_, next| !begins(next)) {
        // A connection without an answer has been made anew, or is the last one, cut off.
        let Some(parts) = parts(connection) else {
            continue;
        };
        count += 1;
        for (all, part) in all.iter_mut().zip(parts) {
            all.extend(part.map(|part| part.as_secs_f64() * 1e6));
        }
    }
    ensure!(
        count >= CONNECTIONS * 9 / 10,
        "only {count} of {CONNECTIONS} connections were seen whole"
    );
    Ok(all.map(|mut all| {
        all.sort_by(f64::total_cmp);
        // A part that most connections lack is none: hosts' connections may be used again.
        (all.len() > CONNECTIONS / 2).then(|| all[all.len() / 2])
    }))
}

/// Parts of a connection.
fn parts(seen: &[Seen]) -> Option<[Option<Duration>; PARTS]> {
    let find = |place: Place, is_sent: bool, is_meant: fn(&Seen) -> bool| {
        let mut packets = seen
            .iter()
            .filter(|packet| packet.place == place && packet.is_sent == is_sent);
        packets.find(|packet| is_meant(packet)).map(|packet| packet.at)
    };
    let has_data = |packet: &Seen| packet.payload > 0;
    let (client, host) = (Place::Client, Place::Host);
    let syn = seen.first()?.at;
    let accepted = find(client, false, Seen::is_syn_ack)?;
    let asked = find(client, true, has_data)?;
    let answered = find(client, false, has_data)?;
    let host_syn = find(host, false, Seen::is_syn);
    let host_accepted = find(host, true, Seen::is_syn_ack);
    let host_asked = find(host, false, has_data)?;
    let host_answered = find(host, true, has_data)?;
    let between = |from: Option<Duration>, to: Option<Duration>| to?.checked_sub(from?);
    Some([
        Some(accepted.checked_sub(syn)?),
        Some(asked.checked_sub(accepted)?),
        // Routing passes the SYN on before there is a request.
        between(Some(asked), host_syn),
        between(host_syn, host_accepted),
        Some(host_asked.checked_sub(host_accepted.map_or(asked, |accepted| accepted.max(asked)))?),
        Some(host_answered.checked_sub(host_asked)?),
        Some(answered.checked_sub(host_answered)?),
        Some(answered.checked_sub(syn)?),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection of packets some µs after each other: place, whether sent there, flags, payload.
    fn connection(begin: u64, packets: &[(u64, Place, bool, u8, usize)]) -> Vec<Seen> {
        let one = |&(at, place, is_sent, flags, payload): &(u64, Place, bool, u8, usize)| Seen {
            at: Duration::from_micros(begin + at),
            place,
            is_sent,
            flags,
            payload,
        };
        packets.iter().map(one).collect()
    }

    use Place::{Client, Host};

    const BALANCED: [(u64, Place, bool, u8, usize); 10] = [
        (0, Client, true, SYN, 0),
        (5, Client, false, SYN | ACK, 0),
        (8, Client, true, ACK, 0),
        (12, Client, true, ACK, 90),
        (25, Host, false, SYN, 0),
        (27, Host, true, SYN | ACK, 0),
        (40, Host, false, ACK, 90),
        (60, Host, true, ACK, 200),
        (75, Client, false, ACK, 200),
        (80, Client, false, ACK | 1, 0),
    ];

    fn micros(parts: Parts) -> [Option<u32>; PARTS] {
        parts.map(|part| part.map(|part| part.round() as u32))
    }

    #[test]
    fn parts_are_the_times_between_packets() {
        let seen: Vec<_> = (0..1000).flat_map(|n| connection(n * 100, &BALANCED)).collect();
        let whole = [5, 7, 13, 2, 13, 20, 15, 75].map(Some);
        assert_eq!(micros(medians(&seen).unwrap()), whole);
        // What comes before the first SYN belongs to another turn.
        assert_eq!(micros(medians(&[&seen[3..10], &seen[..]].concat()).unwrap()), whole);
        assert!(medians(&seen[..5000]).is_err() && medians(&seen[1..9]).is_err());
    }

    #[test]
    fn parts_that_a_connection_does_not_have_are_left_out() {
        let mut routed = BALANCED;
        (routed[4].0, routed[5].0) = (2, 3);
        routed.sort_by_key(|packet| packet.0);
        let seen: Vec<_> = (0..1000).flat_map(|n| connection(n * 100, &routed)).collect();
        let some = |parts: [u32; PARTS]| parts.map(Some);
        let mut expected = some([5, 7, 0, 1, 28, 20, 15, 75]);
        expected[2] = None;
        assert_eq!(micros(medians(&seen).unwrap()), expected);

        let kept = [&BALANCED[..4], &BALANCED[6..]].concat();
        let seen: Vec<_> = (0..1000).flat_map(|n| connection(n * 100, &kept)).collect();
        (expected[2], expected[3], expected[4]) = (None, None, Some(28));
        assert_eq!(micros(medians(&seen).unwrap()), expected);
    }
}
