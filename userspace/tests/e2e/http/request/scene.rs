//! A host that speaks HTTP/1.1 by hand and keeps the requests, and a client that reads one answer at a time.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sha2::{Digest, Sha256};

use crate::lab::exchange::Noise;
use crate::lab::{Lab, Server, Signalbox, config, servers};

pub(crate) const HTTP: &str = "10.1.0.1:80";

/// Route to the one host of [`one_host`].
pub(crate) const ROUTE: &str = "{ host: a.test, clusters: { east-1: 1 } }";

/// Starts a host, and a balancer that sends it the requests for `a.test`.
pub(crate) fn one_host(lab: &Lab) -> (WebHost, Signalbox) {
    let east = WebHost::start(lab, "east-1");
    let sb = Signalbox::start(lab, &config_of("", &["east-1"], &[ROUTE]));
    sb.wait_healthy(&["east-1"]);
    (east, sb)
}

/// A listener that routes requests, further top-level lines, clusters of one host each by the host's name, and routes.
pub(crate) fn config_of(extra: &str, hosts: &[&str], routes: &[&str]) -> String {
    let clusters: Vec<_> = hosts.iter().map(|host| config::cluster(host, &[], &[host])).collect();
    body_of(extra, &clusters.concat(), routes)
}

pub(crate) fn body_of(extra: &str, clusters: &str, routes: &[&str]) -> String {
    let routes: Vec<_> = routes.iter().map(ToString::to_string).collect();
    format!(
        "{extra}\nlisteners:\n  - {{ name: http, protocol: http, routing: request, listen: [\"10.1.0.1:80\"] }}\n\
         clusters:\n{clusters}routes:\n{}",
        config::yaml_list("  ", &routes)
    )
}

/// A host.
pub(crate) struct WebHost {
    _health: Server,
    _server: Server,
    heads: Arc<Mutex<Vec<String>>>,
}

impl WebHost {
    /// Answers by the path: `/` with the host's name, `/digest` with digest and length of the request's body,
    /// `/bytes/N` and `/chunked/N` with N bytes, `/cut-off` with a chunk and no end, `/status/N` with a status,
    /// `/fields/N` with N fields, `/close` and `/close/N` with an answer that ends with the connection, `/dribble/N`
    /// with N bytes in small parts, `/slow` as `/digest` does but reading slowly, `/never` not at all and without
    /// reading the body, `/early` before it has read the body, `/ws` with 101 and an echo, `/ws-wrong` with the answer
    /// to another key, `/interim` with 103 first, `/unsafe/...` with an answer that breaks a rule.
    pub(crate) fn start(lab: &Lab, name: &str) -> Self {
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let (kept, own) = (Arc::clone(&heads), name.to_owned());
        let ns = lab.host(name);
        Self {
            _health: servers::healthy(ns),
            _server: Server::start(ns, "[::]:80", move |stream| {
                let _ = serve(&stream, &own, &kept);
            }),
            heads,
        }
    }

    /// Heads of requests so far, oldest first; forgotten here.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.heads.lock().unwrap())
    }
}

fn serve(stream: &TcpStream, name: &str, heads: &Mutex<Vec<String>>) -> Result<()> {
    let mut reader = BufReader::with_capacity(128 * 1024, stream);
    while let Some(head) = read_head(&mut reader)? {
        heads.lock().unwrap().push(head.clone());
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        if path == "/early" {
            return stream_write(
                stream,
                b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 5\r\nConnection: close\r\n\r\nearly",
            )
            .and_then(|()| linger(stream));
        }
        if path.starts_with("/ws") {
            let key = if path == "/ws" {
                field(&head, "sec-websocket-key")
            } else {
                Some("another")
            };
            let accept = key.map_or_else(String::new, |key| {
                format!("Sec-WebSocket-Accept: {}\r\n", websocket_accept(key))
            });
            let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n";
            stream_write(stream, format!("{answer}{accept}\r\nhello").as_bytes())?;
            return echo(&mut reader, stream);
        }
        if path == "/never" {
            return until_closed(stream);
        }
        if field(&head, "expect").is_some() {
            stream_write(stream, b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        let mut body = Digested::default();
        if path == "/slow" {
            read_body(&mut BufReader::new(Dribble(&mut reader)), &head, &mut body)?;
        } else {
            read_body(&mut reader, &head, &mut body)?;
        }
        if path == "/close" {
            return stream_write(stream, b"HTTP/1.0 200 OK\r\n\r\nup to the end");
        }
        if let Some(length) = path.strip_prefix("/close/").and_then(|n| n.parse().ok()) {
            stream_write(stream, b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
            return send_noise(stream, length, false);
        }
        answer(stream, &head, &path, name, &body)?;
    }
    Ok(())
}

fn answer(mut stream: &TcpStream, head: &str, path: &str, name: &str, body: &Digested) -> Result<()> {
    let number = |prefix: &str| path.strip_prefix(prefix).and_then(|n| n.parse::<u64>().ok());
    if let Some(length) = number("/bytes/") {
        stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").as_bytes())?;
        return send_noise(stream, length, false);
    }
    if let Some(length) = number("/dribble/") {
        stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").as_bytes())?;
        return send_noise(Dribble(stream), length, false);
    }
    if let Some(length) = number("/chunked/") {
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n")?;
        return send_noise(stream, length, true);
    }
    if let Some(text) = super::repaired::unsafe_answer(path) {
        return stream.write_all(text.as_bytes());
    }
    if path == "/cut-off" {
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")?;
        return Err(ErrorKind::UnexpectedEof.into());
    }
    if let Some(status) = number("/status/") {
        let length = if status == 204 { "" } else { "Content-Length: 7\r\n" };
        return stream.write_all(format!("HTTP/1.1 {status} Said\r\n{length}\r\n").as_bytes());
    }
    if let Some(count) = number("/fields/") {
        let more: String = (1..count).map(|n| format!("X-{n}: {n}\r\n")).collect();
        return stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n{more}\r\n").as_bytes());
    }
    if path == "/interim" {
        stream.write_all(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n")?;
    }
    let text = match path {
        "/digest" | "/slow" => format!("{} {}", body.length, body.hex()),
        _ => format!("host={name} "),
    };
    let shown = if head.starts_with("HEAD ") { "" } else { &text };
    stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{shown}", text.len()).as_bytes())
}

/// Answer to the key of a handshake (RFC 6455, section 4.2.2).
pub(crate) fn websocket_accept(key: &str) -> String {
    let digest = signalbox_tls::provider::sha1(format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11").as_bytes());
    base64::prelude::BASE64_STANDARD.encode(digest)
}

fn stream_write(mut stream: &TcpStream, bytes: &[u8]) -> Result<()> {
    stream.write_all(bytes)
}

fn linger(mut stream: &TcpStream) -> Result<()> {
    stream.shutdown(std::net::Shutdown::Write)?;
    std::io::copy(&mut stream, &mut std::io::sink()).map(drop)
}

/// Waits for the end of a connection without reading from it.
fn until_closed(stream: &TcpStream) -> Result<()> {
    let mut end = [PollFd::new(
        stream.as_fd(),
        PollFlags::from_bits_retain(libc::POLLRDHUP),
    )];
    poll(&mut end, PollTimeout::NONE)?;
    Ok(())
}

/// An end that is slow: small parts with a pause after each.
pub(crate) struct Dribble<S>(pub(crate) S);

const DRIBBLE_BYTES: usize = 8 * 1024;
const DRIBBLE_INTERVAL: Duration = Duration::from_millis(1);

impl<S: Read> Read for Dribble<S> {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize> {
        std::thread::sleep(DRIBBLE_INTERVAL);
        let most = bytes.len().min(DRIBBLE_BYTES);
        self.0.read(&mut bytes[..most])
    }
}

impl<S: Write> Write for Dribble<S> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        std::thread::sleep(DRIBBLE_INTERVAL);
        let written = self.0.write(&bytes[..bytes.len().min(DRIBBLE_BYTES)])?;
        self.0.flush()?;
        Ok(written)
    }

    fn flush(&mut self) -> Result<()> {
        self.0.flush()
    }
}

fn echo(reader: &mut impl Read, mut stream: &TcpStream) -> Result<()> {
    let mut buffer = [0; 4096];
    loop {
        match reader.read(&mut buffer)? {
            0 => return stream.shutdown(std::net::Shutdown::Write),
            n => stream.write_all(&buffer[..n])?,
        }
    }
}

/// Bytes of a test, the same for the same length.
fn noise(length: u64, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let (mut noise, mut left, mut buffer) = (Noise::new(length), length, vec![0; 16 * 1024]);
    while left > 0 {
        let part = left.min(buffer.len() as u64) as usize;
        noise.fill(&mut buffer[..part]);
        each(&buffer[..part])?;
        left -= part as u64;
    }
    Ok(())
}

/// Sends `length` bytes, as a body of that length or in chunks with a trailer section.
pub(crate) fn send_noise(mut to: impl Write, length: u64, is_chunked: bool) -> Result<()> {
    noise(length, |part| {
        if is_chunked {
            to.write_all(format!("{:x}\r\n", part.len()).as_bytes())?;
        }
        to.write_all(part)?;
        if is_chunked { to.write_all(b"\r\n") } else { Ok(()) }
    })?;
    if is_chunked {
        to.write_all(b"0\r\nX-Sum: 1\r\n\r\n")
    } else {
        Ok(())
    }
}

/// Digest of the bytes of [`send_noise`].
pub(crate) fn noise_digest(length: u64) -> String {
    let mut body = Digested::default();
    noise(length, |part| {
        body.add(part);
        Ok(())
    })
    .unwrap();
    body.hex()
}

/// Digest of the bytes of a file.
pub(crate) fn file_digest(path: &std::path::Path) -> String {
    let mut body = Digested::default();
    body.add(&std::fs::read(path).unwrap());
    body.hex()
}

/// Digest and length of a body.
#[derive(Default)]
pub(crate) struct Digested {
    pub(crate) length: u64,
    hash: Sha256,
}

impl Digested {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.length += bytes.len() as u64;
        self.hash.update(bytes);
    }

    pub(crate) fn hex(&self) -> String {
        self.hash
            .clone()
            .finalize()
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect()
    }
}

/// Head with its empty line; `None` at the end of the connection.
fn read_head(reader: &mut impl BufRead) -> Result<Option<String>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if reader.read_until(b'\n', &mut head)? == 0 {
            return if head.is_empty() {
                Ok(None)
            } else {
                Err(ErrorKind::UnexpectedEof.into())
            };
        }
    }
    Ok(Some(String::from_utf8_lossy(&head).into_owned()))
}

/// Value of a field, the first of its name.
pub(crate) fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let line = |line: &'a str| line.split_once(':').filter(|(n, _)| n.eq_ignore_ascii_case(name));
    head.lines().find_map(line).map(|(_, value)| value.trim())
}

/// Reads a body and its trailers; returns the trailer section.
fn read_body(reader: &mut impl BufRead, head: &str, body: &mut Digested) -> Result<String> {
    if field(head, "transfer-encoding").is_none() {
        let length = field(head, "content-length")
            .map_or(Ok(0), str::parse)
            .map_err(Error::other)?;
        read_bytes(reader, length, body)?;
        return Ok(String::new());
    }
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let size = u64::from_str_radix(line.trim().split(';').next().unwrap_or_default(), 16)
            .map_err(|e| Error::other(format!("{line:?}: {e}")))?;
        read_bytes(reader, size, body)?;
        if size == 0 {
            break;
        }
        read_bytes(reader, 2, &mut Digested::default())?;
    }
    let mut trailers = String::new();
    while !trailers.ends_with("\r\n\r\n") && trailers != "\r\n" {
        if reader.read_line(&mut trailers)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(trailers)
}

fn read_to_end(reader: &mut impl BufRead, body: &mut Digested) -> Result<()> {
    loop {
        let bytes = reader.fill_buf()?;
        if bytes.is_empty() {
            return Ok(());
        }
        let taken = bytes.len();
        body.add(bytes);
        reader.consume(taken);
    }
}

fn read_bytes(reader: &mut impl BufRead, mut left: u64, body: &mut Digested) -> Result<()> {
    while left > 0 {
        let bytes = reader.fill_buf()?;
        if bytes.is_empty() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let taken = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
        body.add(&bytes[..taken]);
        reader.consume(taken);
        left -= taken as u64;
    }
    Ok(())
}

/// A client's connection, in plain or in TLS.
pub(crate) struct Client<S = TcpStream> {
    reader: BufReader<S>,
}

/// An answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) text: String,
    pub(crate) trailers: String,
    pub(crate) body: Digested,
}

impl Client {
    pub(crate) fn connect(lab: &Lab) -> Self {
        Self::on(lab.client.connect(HTTP))
    }

    /// Connects from one of the client's addresses.
    pub(crate) fn connect_from(lab: &Lab, address: &str) -> Self {
        Self::on(lab.client.connect_from(address, HTTP))
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        self.reader.get_ref()
    }
}

impl<S: Read + Write> Client<S> {
    pub(crate) fn on(stream: S) -> Self {
        Self {
            reader: BufReader::with_capacity(64 * 1024, stream),
        }
    }

    pub(crate) fn into_inner(self) -> S {
        self.reader.into_inner()
    }

    pub(crate) fn inner(&mut self) -> &mut S {
        self.reader.get_mut()
    }

    pub(crate) fn send(&mut self, text: &str) {
        self.inner().write_all(text.as_bytes()).unwrap();
        self.inner().flush().unwrap();
    }

    /// Sends a GET and reads its answer.
    pub(crate) fn get(&mut self, host: &str, path: &str) -> Answer {
        self.try_get(host, path).unwrap()
    }

    pub(crate) fn try_get(&mut self, host: &str, path: &str) -> Result<Answer> {
        let text = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        self.inner().write_all(text.as_bytes())?;
        self.inner().flush()?;
        self.try_answer("GET")
    }

    /// Host that answers a GET of `/`.
    pub(crate) fn host_of(&mut self, name: &str) -> String {
        let answer = self.get(name, "/");
        assert_eq!(answer.status, 200, "{}", answer.head);
        crate::lab::http::field(&answer.text, "host")
    }

    /// Reads one answer, which may be an interim one, to a request of a method.
    pub(crate) fn answer(&mut self, method: &str) -> Answer {
        self.try_answer(method).unwrap()
    }

    pub(crate) fn try_answer(&mut self, method: &str) -> Result<Answer> {
        let head = read_head(&mut self.reader)?.ok_or(ErrorKind::UnexpectedEof)?;
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|s| s.parse().ok())
            .ok_or(ErrorKind::InvalidData)?;
        let mut answer = Answer {
            status,
            text: String::new(),
            trailers: String::new(),
            body: Digested::default(),
            head,
        };
        if method == "HEAD" || status < 200 || matches!(status, 204 | 304) {
            return Ok(answer);
        }
        let length = field(&answer.head, "content-length").and_then(|n| n.parse::<usize>().ok());
        match length {
            Some(length) if length < 10_000 => {
                let mut bytes = vec![0; length];
                self.reader.read_exact(&mut bytes)?;
                answer.body.add(&bytes);
                answer.text = String::from_utf8_lossy(&bytes).into_owned();
            }
            None if field(&answer.head, "transfer-encoding").is_none() => {
                let mut first = Vec::new();
                (&mut self.reader).take(10_000).read_to_end(&mut first)?;
                answer.body.add(&first);
                answer.text = String::from_utf8_lossy(&first).into_owned();
                read_to_end(&mut self.reader, &mut answer.body)?;
            }
            _ => answer.trailers = read_body(&mut self.reader, &answer.head, &mut answer.body)?,
        }
        Ok(answer)
    }

    /// Whether the connection ends here, without another byte.
    pub(crate) fn is_at_end(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.reader.read_to_end(&mut rest) {
            Ok(_) => rest.is_empty(),
            Err(error) => error.kind() == ErrorKind::ConnectionReset && rest.is_empty(),
        }
    }

    /// Reads `length` raw bytes.
    pub(crate) fn read(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.reader.read_exact(&mut bytes).unwrap();
        bytes
    }
}
