//! A legitimate client, which opens one connection after the other during other work, and its results.

use std::fmt;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use super::SOON;
use super::http;
use super::namespace::{Ns, connect_here};
use super::servers::Server;
use super::topology::Lab;

/// Bits of `tcpi_options` in linux/tcp.h: the options that both ends have agreed on.
const TIMESTAMPS: u8 = 1;
const SACK: u8 = 2;
const WINDOW_SCALE: u8 = 4;

/// A server that answers each request with the body that came with it.
pub(crate) fn mirror(ns: &Ns, at: &str) -> Server {
    Server::start(ns, at, |stream| {
        if let Ok(body) = read_body(&stream) {
            let header = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            let _ = (&*stream).write_all(&[header.as_bytes(), &body].concat());
        }
    })
}

fn read_body(mut stream: &TcpStream) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 65_536];
    loop {
        let n = stream.read(&mut buffer)?;
        if n == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(&buffer[..n]);
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
            continue;
        };
        let header = String::from_utf8_lossy(&bytes[..end]);
        let length = header.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let length = length.map_or(0, |length| length.parse().unwrap());
        let mut body = bytes.split_off(end + 4);
        let had = body.len();
        body.resize(length, 0);
        stream.read_exact(&mut body[had..])?;
        return Ok(body);
    }
}

/// Posts a body on a separate connection and expects it back. True where the connection came of a cookie that knows the
/// MSS alone: the kernel's own hide the other options in the timestamp.
fn post(at: &str, host: &str, body: &str, took: &mut Vec<[Duration; 2]>) -> Result<bool, String> {
    let begin = Instant::now();
    let stream = connect_here(at).map_err(|e| format!("connect: {e}"))?;
    stream.set_read_timeout(Some(SOON)).unwrap();
    let connected = begin.elapsed();
    let by_cookie = exchange(&stream, host, body)?;
    took.push([connected, begin.elapsed()]);
    Ok(by_cookie)
}

/// Exchanges a request and its answer on an existing connection.
pub(crate) fn exchange(stream: &TcpStream, host: &str, body: &str) -> Result<bool, String> {
    let length = body.len();
    let request = format!("POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n{body}");
    let response = http::request(stream, &request).map_err(|e| format!("request: {e}"))?;
    if response.status != 200 || response.body != body {
        return Err(format!("status {}, {} bytes", response.status, response.body.len()));
    }
    Ok(options(stream) & (TIMESTAMPS | SACK | WINDOW_SCALE) == 0)
}

fn options(stream: &TcpStream) -> u8 {
    // SAFETY: all zero is a valid tcp_info.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    // SAFETY: the kernel writes at most `length` bytes, which are the size of `info`.
    let result = unsafe { libc::getsockopt(stream.as_raw_fd(), level, name, (&raw mut info).cast(), &raw mut length) };
    assert_eq!(result, 0);
    info.tcpi_options
}

/// Results of a client's visits.
#[derive(Default)]
pub(crate) struct Visits {
    /// Errors of the visits.
    pub(crate) failed: Vec<String>,
    /// Connections accepted by a cookie of the program's.
    pub(crate) by_cookie: usize,
    /// Times until there was a connection, and until the answer was there.
    took: Vec<[Duration; 2]>,
    whole: Duration,
}

impl Visits {
    /// Opens connections one after the other while `more` is true of their number; each carries `body` there and back.
    pub(crate) fn pay(lab: &Lab, at: &str, host: &str, body: &str, mut more: impl FnMut(usize) -> bool + Send) -> Self {
        let mut visits = Self::default();
        let begin = Instant::now();
        lab.client.run(|| {
            while more(visits.took.len() + visits.failed.len()) {
                match post(at, host, body, &mut visits.took) {
                    Ok(by_cookie) => visits.by_cookie += usize::from(by_cookie),
                    Err(why) => visits.failed.push(why),
                }
            }
        });
        visits.whole = begin.elapsed();
        visits
    }

    /// Returns the number of visits.
    pub(crate) fn count(&self) -> usize {
        self.took.len()
    }

    fn at(&self, which: usize, share: f64) -> Duration {
        let mut all: Vec<Duration> = self.took.iter().map(|took| took[which]).collect();
        all.sort_unstable();
        let at = (all.len() as f64 * share) as usize;
        all.get(at.min(all.len().saturating_sub(1)))
            .copied()
            .unwrap_or_default()
    }
}

impl fmt::Display for Visits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.0} connections/s, connected in {:.0?} (p99 {:.0?}), answered in {:.0?} (p99 {:.0?}), {} failed, \
             {} by cookie",
            self.took.len() as f64 / self.whole.as_secs_f64(),
            self.at(0, 0.5),
            self.at(0, 0.99),
            self.at(1, 0.5),
            self.at(1, 0.99),
            self.failed.len(),
            self.by_cookie
        )
    }
}
