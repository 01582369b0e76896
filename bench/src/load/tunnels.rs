//! WebSockets in a closed loop: each sends a message of 64 bytes as soon as the last one has come back.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use signalbox_lab::Ns;

use super::{Errors, Window, idle, on_threads};
use crate::histogram::Histogram;
use crate::interrupt;

const THREADS: usize = 2;

/// A masked frame with 64 bytes of data.
const FRAME: [u8; 70] = {
    let mut frame = [b'x'; 70];
    // The last and only frame of a binary message, 64 bytes after four of mask.
    frame[0] = 0x82;
    frame[1] = 0x80 | 64;
    frame
};

/// Head of the request that opens a WebSocket.
pub(crate) fn upgrade(name: &str, path: &str) -> Vec<u8> {
    format!(
        "GET {path} HTTP/1.1\r\nHost: {name}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    .into_bytes()
}

/// Open WebSockets.
pub(crate) struct Tunnels(Vec<TcpStream>);

/// Outcome of a load.
pub(crate) struct TunnelOutcome {
    /// Times of the echoes in the window.
    pub(crate) latency: Histogram,
    /// Failures, in the window or before.
    pub(crate) errors: Errors,
}

impl Tunnels {
    /// Opens WebSockets from the namespace this thread is in.
    pub(crate) fn open(targets: &[SocketAddrV4], count: usize, head: &[u8]) -> Result<Self> {
        let open = |number: usize| {
            interrupt::check()?;
            open(targets[number % targets.len()], head).with_context(|| format!("WebSocket {number}"))
        };
        (0..count).map(open).collect::<Result<_>>().map(Self)
    }

    /// Sends one message in each: those that do not come back are errors.
    pub(crate) fn check(&self) -> Errors {
        let mut errors = Errors::default();
        for mut stream in &self.0 {
            let mut echo = || -> std::io::Result<()> {
                stream.set_nonblocking(false)?;
                stream.write_all(&FRAME)?;
                stream.read_exact(&mut [0; FRAME.len()])
            };
            if let Err(error) = echo() {
                errors.add(format!("idle WebSocket: {}", error.kind()));
            }
        }
        errors
    }

    /// Sends messages until the window's end on threads in `ns`; `meanwhile` runs here beside them.
    pub(crate) fn run<T>(self, ns: &Ns, window: Window, meanwhile: impl FnOnce() -> T) -> Result<(TunnelOutcome, T)> {
        let share = self.0.len().div_ceil(THREADS);
        let shares: Vec<_> = self.0.chunks(share).collect();
        let worker = |thread| echo(shares[thread], window);
        let (outcomes, meanwhile) = on_threads(ns, shares.len(), worker, meanwhile)?;
        let mut all = TunnelOutcome {
            latency: Histogram::new(),
            errors: Errors::default(),
        };
        for outcome in outcomes {
            all.latency.merge(&outcome.latency);
            all.errors.merge(&outcome.errors);
        }
        Ok((all, meanwhile))
    }
}

fn open(target: SocketAddrV4, head: &[u8]) -> Result<TcpStream> {
    let stream = idle::connect(target)?;
    (&stream).write_all(head)?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut buffer = [0; 1024];
        let n = (&stream).read(&mut buffer)?;
        ensure!(n > 0, "closed");
        answer.extend_from_slice(&buffer[..n]);
    }
    ensure!(answer.starts_with(b"HTTP/1.1 101 "), "not 101");
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// Echoes in the WebSockets of one thread.
fn echo(streams: &[TcpStream], window: Window) -> Result<TunnelOutcome> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let mut outcome = TunnelOutcome {
        latency: Histogram::new(),
        errors: Errors::default(),
    };
    let mut echoes = vec![(Instant::now(), 0_usize); streams.len()];
    for (number, stream) in streams.iter().enumerate() {
        epoll.add(stream, EpollEvent::new(EpollFlags::EPOLLIN, number as u64))?;
        echoes[number] = (Instant::now(), 0);
        send(stream, &mut outcome.errors);
    }
    let mut events = vec![EpollEvent::empty(); 512];
    while Instant::now() < window.end && !interrupt::raised() {
        let count = match epoll.wait(&mut events, EpollTimeout::from(20u8)) {
            Err(nix::errno::Errno::EINTR) => 0,
            result => result?,
        };
        for event in &events[..count] {
            let number = event.data() as usize;
            let (began, received) = &mut echoes[number];
            match (&streams[number]).read(&mut [0; FRAME.len()]) {
                Ok(n) if n > 0 => *received += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                failed => {
                    outcome
                        .errors
                        .add(failed.map_or_else(|e| e.kind().to_string(), |_| "closed".into()));
                    epoll.delete(&streams[number])?;
                }
            }
            if *received == FRAME.len() {
                let now = Instant::now();
                if window.has(now) {
                    outcome.latency.record(now - *began);
                }
                (*began, *received) = (now, 0);
                send(&streams[number], &mut outcome.errors);
            }
        }
    }
    let stalled = |(began, _): &&(Instant, usize)| *began < window.start;
    let count = echoes.iter().filter(stalled).count();
    if window.end - window.start >= Duration::from_secs(1) {
        (0..count).for_each(|_| outcome.errors.add("stalled"));
    }
    Ok(outcome)
}

/// Sends a message, which any send buffer has room for.
fn send(mut stream: &TcpStream, errors: &mut Errors) {
    if stream.write(&FRAME).ok() != Some(FRAME.len()) {
        errors.add("send");
    }
}
