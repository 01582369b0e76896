//! Echo servers of WebSockets at the hosts: each takes the head of an upgrade, and sends back the bytes that follow it.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use signalbox_lab::{Ns, Worker};

/// Port of the servers.
pub(crate) const PORT: u16 = 8081;

/// Answer to the key of [`super::tunnels::upgrade`].
const ANSWER: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// An echo server of one thread, until dropped.
pub(crate) struct EchoServer {
    _worker: Worker,
}

impl EchoServer {
    /// Starts a server that listens in `ns`.
    pub(crate) fn start(ns: &Ns, at: Ipv4Addr) -> Self {
        let listener = ns.listen(&format!("{at}:{PORT}"));
        let worker = Worker::start(move |stop| {
            if let Err(e) = serve(&listener, stop) {
                eprintln!("an echo server ended: {e:#}");
            }
        });
        Self { _worker: worker }
    }
}

/// A connection, and whether its head has come.
struct Echo {
    stream: TcpStream,
    head: Option<Vec<u8>>,
}

fn serve(listener: &TcpListener, stop: &AtomicBool) -> Result<()> {
    listener.set_nonblocking(true)?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let key = |fd: i32| fd.cast_unsigned().into();
    let own = key(listener.as_raw_fd());
    epoll.add(listener, EpollEvent::new(EpollFlags::EPOLLIN, own))?;
    let mut echoes = HashMap::new();
    let mut events = [EpollEvent::empty(); 256];
    while !stop.load(Ordering::SeqCst) {
        let count = match epoll.wait(&mut events, EpollTimeout::from(100u8)) {
            Err(nix::errno::Errno::EINTR) => 0,
            result => result?,
        };
        for event in &events[..count] {
            if event.data() == own {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true)?;
                    stream.set_nodelay(true)?;
                    let fd: u64 = key(stream.as_raw_fd());
                    epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, fd))?;
                    let head = Some(Vec::new());
                    echoes.insert(fd, Echo { stream, head });
                }
            } else if echoes.get_mut(&event.data()).is_some_and(|echo| !echo.serve()) {
                echoes.remove(&event.data());
            }
        }
    }
    Ok(())
}

impl Echo {
    /// Serves received bytes: whether the connection stays open. Messages are so small that a send buffer takes them.
    fn serve(&mut self) -> bool {
        let mut buffer = [0; 4096];
        let n = match self.stream.read(&mut buffer) {
            Ok(0) => return false,
            Ok(n) => n,
            Err(e) => return e.kind() == ErrorKind::WouldBlock,
        };
        let Some(head) = &mut self.head else {
            return self.stream.write_all(&buffer[..n]).is_ok();
        };
        head.extend_from_slice(&buffer[..n]);
        if !head.ends_with(b"\r\n\r\n") {
            return head.len() < buffer.len();
        }
        self.head = None;
        self.stream.write_all(ANSWER).is_ok()
    }
}
