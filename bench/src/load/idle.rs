//! Connections that have been used once and stay open.

use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rustls::{ClientConnection, StreamOwned};

use super::http2::Http2Client;
use super::response::Response;
use super::slots::Route;
use super::{Errors, source};
use crate::hosts::NAME;
use crate::interrupt;

/// Open connections, each of which has had an answer: so it is known to reach a host.
pub(crate) struct Idle {
    connections: Vec<IdleConnection>,
}

/// A connection of some protocol.
enum IdleConnection {
    Plain(TcpStream),
    Tls(Box<TlsStream>),
    Http2(Box<TlsStream>, Http2Client),
}

type TlsStream = StreamOwned<ClientConnection, TcpStream>;

impl Idle {
    /// Opens the route's connections from the namespace this thread is in.
    pub(crate) fn open(route: &Route, is_http2: bool, request: &[u8]) -> Result<Self> {
        let open = |number: usize| {
            interrupt::check()?;
            let target = route.targets[number % route.targets.len()];
            let mut connection = IdleConnection::open(target, route, is_http2)?;
            connection.ask(request)?;
            anyhow::Ok(connection)
        };
        let open = |number| open(number).with_context(|| format!("connection {number}"));
        let connections = (0..route.connections).map(open).collect::<Result<_>>()?;
        Ok(Self { connections })
    }

    /// Uses each connection once more: those that the balancer lost in the meantime are errors.
    pub(crate) fn check(&mut self, request: &[u8]) -> Errors {
        let mut errors = Errors::default();
        for connection in &mut self.connections {
            if let Err(e) = connection.ask(request) {
                errors.add(format!("idle connection: {e:#}"));
            }
        }
        errors
    }
}

impl IdleConnection {
    fn open(target: SocketAddrV4, route: &Route, is_http2: bool) -> Result<Self> {
        let stream = connect(target)?;
        let Some(tls) = &route.tls else {
            return Ok(Self::Plain(stream));
        };
        let tls = if is_http2 { tls.clone().http2() } else { tls.clone() };
        let mut stream = Box::new(StreamOwned::new(tls.connection()?, stream));
        if !is_http2 {
            return Ok(Self::Tls(stream));
        }
        let client = Http2Client::begin(&mut *stream)?;
        anyhow::ensure!(stream.conn.alpn_protocol() == Some(b"h2"), "no HTTP/2");
        Ok(Self::Http2(stream, client))
    }

    fn ask(&mut self, request: &[u8]) -> Result<()> {
        match self {
            Self::Plain(stream) => ask(stream, request),
            Self::Tls(stream) => ask(&mut **stream, request),
            Self::Http2(stream, client) => client.ask(&mut **stream, NAME),
        }
    }
}

pub(super) fn connect(to: SocketAddrV4) -> Result<TcpStream> {
    let socket = source::socket()?;
    socket
        .connect_timeout(&to.into(), Duration::from_secs(5))
        .context("connect")?;
    socket.set_nonblocking(false)?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    Ok(stream)
}

fn ask(mut stream: impl Read + Write, request: &[u8]) -> Result<()> {
    stream.write_all(request)?;
    let (mut response, mut buffer) = (Response::default(), [0; 4096]);
    loop {
        let n = stream.read(&mut buffer)?;
        anyhow::ensure!(n > 0, "closed");
        if response.take(&buffer[..n]).map_err(|what| anyhow!(what))? {
            return Ok(());
        }
    }
}

/// Sends one request on a separate connection; the body's last byte but one tells which host answered.
pub(crate) fn probe(to: SocketAddrV4, request: &[u8]) -> Result<u8> {
    let stream = connect(to)?;
    stream.set_read_timeout(Some(Duration::from_millis(500)))?;
    (&stream).write_all(request)?;
    let mut answer = Vec::new();
    (&stream).read_to_end(&mut answer)?;
    anyhow::ensure!(answer.starts_with(b"HTTP/1.1 200"), "not 200");
    answer.len().checked_sub(2).map(|at| answer[at]).context("nothing")
}
