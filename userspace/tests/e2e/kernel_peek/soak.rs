//! Soak of the kernel peek: many short connections, each checked to the byte. None may be corrupt, stuck, or led to the
//! host of another name.
//!
//! After a head or hello a client sends a plan in 24 bytes: its number, the bytes that it sends, and those that it
//! wants. The host answers with its name, the number, and the bytes.

use std::io::{Error, Read, Result, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use crate::lab;
use lab::cut::{self, CutLab};
use lab::exchange::Noise;
use lab::impair::{Impaired, Odds};
use lab::{Server, Signalbox, config, eventually, hello, servers};

use super::{PEEK, SOON, exits, start_with};

/// Connections before a merge, over good links and over bad ones.
const CONNECTIONS: u64 = 10_000;
const BAD_CONNECTIONS: u64 = 1_000;
/// Connections of the rotation over good links; `SIGNALBOX_E2E_SOAK` sets another number. Over bad links it has a
/// fiftieth of them.
const MANY_CONNECTIONS: u64 = 1_000_000;
/// Threads that connect: over bad links most of them wait.
const CLIENTS: usize = 16;
const BAD_CLIENTS: usize = 96;
/// Client addresses of each address family, so that ports of connections that have just ended are not used again at
/// once.
const ADDRESSES: u16 = 16;
/// Time in which a connection that is not stuck makes progress, even if packets are lost.
const STUCK_TIMEOUT: Duration = Duration::from_secs(90);
/// Most failures that are printed.
const MAX_TOLD: usize = 20;

/// A name at a listener, and the host that serves it.
struct Target {
    at: &'static str,
    name: &'static str,
    host: &'static str,
}

const TARGETS: [Target; 6] = [
    target("10.1.0.1:80", "a.test", "east-1"),
    target("10.1.0.1:80", "c.test", "east-2"),
    target("10.1.0.1:443", "a.test", "east-1"),
    target("10.1.0.1:443", "c.test", "east-2"),
    target("[fd00:1::1]:80", "b.test", "west-1"),
    target("[fd00:1::1]:443", "b.test", "west-1"),
];

const fn target(at: &'static str, name: &'static str, host: &'static str) -> Target {
    Target { at, name, host }
}

impl Target {
    fn is_tls(&self) -> bool {
        self.at.ends_with(":443")
    }

    /// Head or hello that says the name.
    fn first(&self) -> Vec<u8> {
        if self.is_tls() {
            hello::records(&hello::short_client_hello(self.name), 1)
        } else {
            format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", self.name).into_bytes()
        }
    }
}

/// Bytes by which a host identifies itself.
fn tag(host: &str) -> [u8; 8] {
    let mut tag = [0; 8];
    tag[..host.len()].copy_from_slice(host.as_bytes());
    tag
}

/// How a connection goes, from its number.
struct Plan {
    number: u64,
    up: u64,
    down: u64,
    /// Bytes of the first data that are sent separately.
    split: Option<usize>,
    end: End,
}

/// How a client ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The host ends it first.
    Host,
    Client,
    /// The client resets it after it has the answer.
    Reset,
    /// The client goes silently, or in the middle of its data.
    Unsaid,
}

impl Plan {
    fn of(number: u64, first: usize) -> Self {
        let mut noise = Noise::new(number ^ 0x5eed);
        for _ in 0..4 {
            noise.next();
        }
        let bytes = |noise: &mut Noise| match noise.next() % 8 {
            0..4 => 0,
            4..7 => noise.up_to(1500),
            _ => noise.up_to(40_000),
        };
        let (up, down) = (bytes(&mut noise), bytes(&mut noise));
        let split = (noise.next().is_multiple_of(6)).then(|| noise.up_to(first as u64 + 23) as usize);
        let end = match noise.next() % 16 {
            0..8 => End::Host,
            8..13 => End::Client,
            13..15 => End::Reset,
            _ => End::Unsaid,
        };
        Self {
            number,
            up,
            down,
            split,
            end,
        }
    }

    /// The 24 bytes that announce it to the host; the highest bit of the last number: the host ends the connection.
    fn bytes(&self) -> [u8; 24] {
        let ends = u64::from(self.end == End::Host) << 63;
        let mut bytes = [0; 24];
        for (place, number) in bytes.chunks_mut(8).zip([self.number, self.up, self.down | ends]) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        bytes
    }
}

/// Reads `left` bytes of a seed; an error if others come.
fn expect_noise(mut from: &TcpStream, seed: u64, mut left: u64) -> Result<()> {
    let mut noise = Noise::new(seed);
    let (mut expected, mut got) = (vec![0; 4096], vec![0; 4096]);
    while left > 0 {
        let length = left.min(4096) as usize;
        noise.fill(&mut expected[..length]);
        from.read_exact(&mut got[..length])?;
        if got[..length] != expected[..length] {
            return Err(Error::other(format!("other bytes have come, {left} before the end")));
        }
        left -= length as u64;
    }
    Ok(())
}

fn noise(seed: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    // In the blocks that the other end expects it in.
    let mut noise = Noise::new(seed);
    bytes.chunks_mut(4096).for_each(|block| noise.fill(block));
    bytes
}

/// The host's side of a connection.
fn serve(host: &str, is_tls: bool, mut stream: &TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(STUCK_TIMEOUT))?;
    stream.set_nodelay(true)?;
    if is_tls {
        let mut header = [0; 5];
        stream.read_exact(&mut header)?;
        let mut message = vec![0; usize::from(u16::from_be_bytes([header[3], header[4]]))];
        stream.read_exact(&mut message)?;
    } else {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
    }
    let mut plan = [0; 24];
    stream.read_exact(&mut plan)?;
    let number_at = |at: usize| u64::from_be_bytes(std::array::from_fn(|byte| plan[at + byte]));
    let (number, up, down) = (number_at(0), number_at(8), number_at(16));
    expect_noise(stream, number, up)?;
    let answer = noise(!number, down & (u64::MAX >> 1));
    stream.write_all(&[&tag(host)[..], &number.to_be_bytes(), &answer].concat())?;
    if down >> 63 != 0 {
        stream.shutdown(Shutdown::Write)?;
    }
    let _ = stream.read(&mut [0; 1]);
    Ok(())
}

/// Connects from one of the client's addresses.
fn connect(to: SocketAddr, number: u64) -> Result<TcpStream> {
    let last = 20 + number as u16 % ADDRESSES;
    let from = if to.is_ipv4() {
        format!("10.1.0.{last}:0")
    } else {
        format!("[fd00:1::1:{last}]:0")
    };
    let from: SocketAddr = from.parse().map_err(Error::other)?;
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.bind(&from.into())?;
    socket.connect_timeout(&to.into(), STUCK_TIMEOUT)?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(STUCK_TIMEOUT))?;
    stream.set_write_timeout(Some(STUCK_TIMEOUT))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A whole connection, from the client's side.
fn converse(target: &Target, plan: &Plan) -> Result<()> {
    let to = target.at.parse().map_err(Error::other)?;
    let stream = connect(to, plan.number)?;
    let words = [&target.first()[..], &plan.bytes(), &noise(plan.number, plan.up)].concat();
    let at = plan.split.unwrap_or(0);
    if at > 0 {
        (&stream).write_all(&words[..at])?;
    }
    if plan.end == End::Unsaid {
        return Ok(());
    }
    (&stream).write_all(&words[at..])?;
    let mut answer = [0; 16];
    (&stream).read_exact(&mut answer)?;
    if answer[..8] != tag(target.host) {
        let host = String::from_utf8_lossy(&answer[..8]).into_owned();
        return Err(Error::other(format!("{host} has answered")));
    }
    if answer[8..] != plan.number.to_be_bytes() {
        return Err(Error::other("another connection's answer has come"));
    }
    expect_noise(&stream, !plan.number, plan.down)?;
    match plan.end {
        End::Reset => socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?,
        End::Host if (&stream).read(&mut [0; 1])? != 0 => {
            return Err(Error::other("bytes have come behind the last ones"));
        }
        _ => {}
    }
    Ok(())
}

/// The lab's client with all of its addresses, and hosts that serve.
fn begin(lab: &CutLab) -> (Vec<Server>, Signalbox) {
    for last in 20..20 + ADDRESSES {
        lab.client.ip(&format!("addr add 10.1.0.{last}/24 dev eth0")).unwrap();
        lab.client
            .ip(&format!("addr add fd00:1::1:{last}/64 dev eth0 nodad"))
            .unwrap();
    }
    lab.client.must(&["sysctl", "-qw", "net.ipv4.tcp_tw_reuse=1"]);
    let mut all = Vec::new();
    for host in ["east-1", "east-2", "west-1"] {
        all.push(servers::healthy(lab.host(host)));
        for port in [80, 443] {
            all.push(Server::start(lab.host(host), &format!("[::]:{port}"), move |stream| {
                // The client reports the failure.
                let _ = serve(host, port == 443, &stream);
            }));
        }
    }
    let [health, ejection] = cut::PATIENT;
    let cluster = |name: &str, host: &str| config::cluster(name, &[health, ejection], &[host]);
    let clusters = [
        cluster("east", "east-1"),
        cluster("other", "east-2"),
        cluster("west", "west-1"),
    ]
    .concat();
    let routes = [("a.test", "east"), ("b.test", "west"), ("c.test", "other")]
        .map(|(name, cluster)| format!("  - {{ host: {name}, clusters: {{ {cluster}: 1 }} }}\n"))
        .concat();
    let body = format!(
        "{PEEK}\n{}clusters:\n{clusters}routes:\n{routes}",
        config::WEB_LISTENERS
    );
    let sb = start_with(lab, &body, 6);
    sb.wait_healthy(&["east-1", "east-2", "west-1"]);
    (all, sb)
}

/// Has clients make `connections` connections; none may go wrong.
fn soak(lab: &CutLab, sb: &Signalbox, clients: usize, connections: u64) {
    let (next, failures) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                lab.client.enter().unwrap();
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= connections {
                        break;
                    }
                    let target = &TARGETS[(number % TARGETS.len() as u64) as usize];
                    let plan = Plan::of(number, target.first().len());
                    if let Err(error) = converse(target, &plan) {
                        let Plan {
                            up, down, split, end, ..
                        } = plan;
                        let mut failures = failures.lock().unwrap();
                        failures.push(format!(
                            "{number} to {} for {}, {up} bytes up, {down} down, split {split:?}, {end:?}: {error}",
                            target.at, target.name
                        ));
                        if failures.len() >= MAX_TOLD {
                            next.store(connections, Relaxed);
                        }
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    let reasons = [
        "syn_answered",
        "routed",
        "delivered",
        "passed_up",
        "syn_passed",
        "pass_up_failed",
    ];
    let counts = reasons
        .map(|reason| format!("{reason} {}", exits(sb, reason)))
        .join(", ");
    println!(
        "{connections} connections in {:.0} s: {counts}",
        began.elapsed().as_secs_f64()
    );
    assert!(failures.is_empty(), "{counts}\n{failures:#?}");
    // Most connections are routed in the kernel, or this would test something else.
    assert!(exits(sb, "delivered") > connections / 2, "{counts}");
}

fn soak_over_good_links(test: &str, connections: u64) {
    let Some(lab) = super::lab(test) else { return };
    let (_servers, sb) = begin(&lab);
    soak(&lab, &sb, CLIENTS, connections);
    let hosts = ["east-1", "east-2", "west-1"];
    let is_over = || sb.flow_count() == 0 && hosts.iter().all(|host| sb.host(host)["active_connections"] == 0);
    assert!(eventually(3 * SOON, is_over), "{:?}", sb.flows("limit=10"));
}

/// A hundredth of all packets is lost, on each side of the balancer, and others come twice or late. A client's reset
/// may be lost, which is never repeated: its flow stays until it is idle.
fn soak_over_bad_links(test: &str, connections: u64) {
    let Some(lab) = super::lab(test) else { return };
    let (_servers, sb) = begin(&lab);
    let _links = (
        Impaired::client_link(&lab, Odds::ALL),
        Impaired::host_link(&lab, "east-1", Odds::ALL),
        Impaired::host_link(&lab, "west-1", Odds::ALL),
    );
    soak(&lab, &sb, BAD_CLIENTS, connections);
}

#[test]
fn no_connection_is_corrupt_stuck_or_misled() {
    soak_over_good_links("no_connection_is_corrupt_stuck_or_misled", CONNECTIONS);
}

#[test]
fn no_connection_over_bad_links_is_corrupt_stuck_or_misled() {
    let test = "no_connection_over_bad_links_is_corrupt_stuck_or_misled";
    soak_over_bad_links(test, BAD_CONNECTIONS);
}

mod share_4 {
    use super::*;

    #[test]
    fn none_of_a_million_connections_is_corrupt_stuck_or_misled() {
        let test = "none_of_a_million_connections_is_corrupt_stuck_or_misled";
        let number = std::env::var("SIGNALBOX_E2E_SOAK").ok();
        let connections = number.map_or(MANY_CONNECTIONS, |text| text.parse().unwrap());
        soak_over_good_links(test, connections);
        soak_over_bad_links(test, connections / 50);
    }
}
