//! Connections that have been used once and stay open.

use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use super::response::Response;
use super::{Errors, source};
use crate::interrupt;

/// Open connections, each of which has had an answer: so it is known to reach a host.
pub(crate) struct Idle {
    streams: Vec<TcpStream>,
}

impl Idle {
    /// Opens `count` connections from the namespace this thread is in.
    pub(crate) fn open(targets: &[SocketAddrV4], count: usize, request: &[u8]) -> Result<Self> {
        let mut streams = Vec::with_capacity(count);
        for number in 0..count {
            interrupt::check()?;
            let stream = connect(targets[number % targets.len()]).with_context(|| format!("connection {number}"))?;
            ask(&stream, request).with_context(|| format!("connection {number}"))?;
            streams.push(stream);
        }
        Ok(Self { streams })
    }

    /// Uses each connection once more: those that the balancer lost in the meantime are errors.
    pub(crate) fn check(&self, request: &[u8]) -> Errors {
        let mut errors = Errors::default();
        for stream in &self.streams {
            if let Err(e) = ask(stream, request) {
                errors.add(format!("idle connection: {e:#}"));
            }
        }
        errors
    }
}

fn connect(to: SocketAddrV4) -> Result<TcpStream> {
    let socket = source::socket()?;
    socket
        .connect_timeout(&to.into(), Duration::from_secs(5))
        .context("connect")?;
    socket.set_nonblocking(false)?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    Ok(stream)
}

fn ask(mut stream: &TcpStream, request: &[u8]) -> Result<()> {
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

/// Sends one request on a connection of its own; the body's last byte but one tells which host answered.
pub(crate) fn probe(to: SocketAddrV4, request: &[u8]) -> Result<u8> {
    let stream = connect(to)?;
    stream.set_read_timeout(Some(Duration::from_millis(500)))?;
    (&stream).write_all(request)?;
    let mut answer = Vec::new();
    (&stream).read_to_end(&mut answer)?;
    anyhow::ensure!(answer.starts_with(b"HTTP/1.1 200"), "not 200");
    answer.len().checked_sub(2).map(|at| answer[at]).context("nothing")
}
