//! Bulk streams, as fast as they go, from the client to sinks at the router hosts.
//!
//! At the end of each stream the sink says how much it got: a stream that arrives shorter than it was sent is an error,
//! not a fast stream.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signalbox_lab::{Ns, Server};

use super::{Errors, Window, source};
use crate::interrupt;

/// Port of the sinks, and of the balancers' `tcp` listeners.
pub(crate) const PORT: u16 = 5201;
const CHUNK: usize = 256 * 1024;

/// Sink: reads streams and counts their bytes, until dropped.
pub(crate) struct Sink {
    received: Arc<AtomicU64>,
    _server: Server,
}

impl Sink {
    /// Starts a sink that listens in `ns`.
    pub(crate) fn start(ns: &Ns, at: Ipv4Addr) -> Self {
        let received = Arc::<AtomicU64>::default();
        let counter = Arc::clone(&received);
        let server = Server::start(ns, &format!("{at}:{PORT}"), move |stream| {
            let _ = swallow(&stream, &counter);
        });
        Self {
            received,
            _server: server,
        }
    }

    /// Bytes received so far.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

fn swallow(stream: &TcpStream, counter: &AtomicU64) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let (mut buffer, mut mine) = (vec![0; CHUNK], 0_u64);
    let mut from = stream;
    loop {
        let n = from.read(&mut buffer)? as u64;
        if n == 0 {
            return from.write_all(&mine.to_le_bytes());
        }
        mine += n;
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

/// Sends `streams` streams until the window's end from threads in `ns`; `meanwhile` runs here beside them.
pub(crate) fn run<T>(
    ns: &Ns,
    targets: &[SocketAddrV4],
    streams: usize,
    window: Window,
    meanwhile: impl FnOnce() -> T,
) -> Result<(Errors, T)> {
    std::thread::scope(|scope| {
        let start = |number| {
            let target = targets[number % targets.len()];
            scope.spawn(move || ns.enter().and_then(|()| stream(target, window)))
        };
        let threads: Vec<_> = (0..streams).map(start).collect();
        let meanwhile = meanwhile();
        let mut errors = Errors::default();
        for thread in threads {
            let result = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            if let Err(e) = result {
                errors.add(format!("stream: {e:#}"));
            }
        }
        Ok((errors, meanwhile))
    })
}

fn stream(target: SocketAddrV4, window: Window) -> Result<()> {
    let socket = source::socket()?;
    socket
        .connect_timeout(&target.into(), Duration::from_secs(5))
        .context("connect")?;
    socket.set_nonblocking(false)?;
    let mut stream = TcpStream::from(socket);
    // Timeouts, so that the thread sees whether the run is over.
    stream.set_write_timeout(Some(Duration::from_millis(100)))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let (chunk, mut sent) = (vec![b'b'; CHUNK], 0_u64);
    while Instant::now() < window.end && !interrupt::raised() {
        match stream.write(&chunk) {
            Ok(n) => sent += n as u64,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(e) => return Err(e).context("send"),
        }
    }
    stream.shutdown(Shutdown::Write)?;
    let mut count = [0; 8];
    stream.read_exact(&mut count).context("no count at the end")?;
    let missing = sent.wrapping_sub(u64::from_le_bytes(count)).cast_signed();
    anyhow::ensure!(missing == 0, "arrived with bytes missing or too many");
    Ok(())
}
