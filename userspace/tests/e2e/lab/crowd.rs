//! Ends of very many connections in helper processes, because a process may have 20 000 descriptors.
//!
//! A helper is the test's own binary, started again on its test `helper` in a namespace of the lab, with its task in
//! SIGNALBOX_CROWD. It answers by lines on its output to lines on its input.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, RawFd};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use socket2::{Domain, Socket, Type};

use super::namespace::Ns;

const ROLE: &str = "SIGNALBOX_CROWD";

/// A running helper.
pub(crate) struct Helper {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Helper {
    /// An echo server at `[::]:port`.
    pub(crate) fn server(ns: &Ns, port: u16) -> Self {
        Self::start(ns, &format!("server {port}"))
    }

    /// A client with `count` connections, each from the next port of one address. (Left to choose, the kernel would
    /// search longer and longer.)
    pub(crate) fn client(ns: &Ns, from: &str, to: &str, count: usize) -> Self {
        Self::start(ns, &format!("client {from} {to} {count}"))
    }

    fn start(ns: &Ns, role: &str) -> Self {
        let mut command = ns.command(std::env::current_exe().unwrap());
        command.args(["--exact", "cut_crowd::helper", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        Self {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    /// Waits for a line that begins with `word`; returns the rest of it.
    pub(crate) fn expect(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            let n = self.output.read_line(&mut line).unwrap();
            assert!(n > 0, "a helper has ended instead of saying `{word}`");
            // The first line follows the test harness's output.
            if let Some((_, rest)) = line.split_once(&format!("{word}:")) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Makes a client use each of its connections once.
    pub(crate) fn ask_all(&mut self) {
        writeln!(self.input, "all").unwrap();
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// To be called by the test `helper`: does nothing in a test process, and never returns in a helper.
pub(crate) fn help() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<_> = role.split(' ').collect();
    match words[..] {
        ["server", port] => serve(port.parse().unwrap()),
        ["client", from, to, count] => ask(from.parse().unwrap(), to.parse().unwrap(), count.parse().unwrap()),
        _ => panic!("{ROLE}={role}"),
    }
    std::process::exit(0);
}

fn say(line: &str) {
    println!("{line}");
    let _ = std::io::stdout().flush();
}

/// Echoes the bytes of all connections in one thread.
fn serve(port: u16) {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, None).unwrap();
    socket.set_only_v6(false).unwrap();
    socket.set_reuse_address(true).unwrap();
    let at: SocketAddr = format!("[::]:{port}").parse().unwrap();
    socket.bind(&at.into()).unwrap();
    socket.listen(4096).unwrap();
    socket.set_nonblocking(true).unwrap();
    let listener = TcpListener::from(socket);
    let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
    let interest = |fd: RawFd| EpollEvent::new(EpollFlags::EPOLLIN, fd.cast_unsigned().into());
    epoll.add(&listener, interest(listener.as_raw_fd())).unwrap();
    let mut streams: HashMap<u64, TcpStream> = HashMap::new();
    let mut events = [EpollEvent::empty(); 256];
    say("listening:");
    loop {
        let n = epoll.wait(&mut events, EpollTimeout::NONE).unwrap();
        for event in &events[..n] {
            let mut buffer = [0; 512];
            if let Some(mut stream) = streams.get(&event.data()) {
                // Small enough to fit any buffer: a short write would be the test's mistake.
                let ended = match stream.read(&mut buffer) {
                    Ok(0) | Err(_) => true,
                    Ok(n) => stream.write_all(&buffer[..n]).is_err(),
                };
                if ended {
                    streams.remove(&event.data());
                }
                continue;
            }
            while let Ok((stream, _)) = listener.accept() {
                epoll.add(&stream, interest(stream.as_raw_fd())).unwrap();
                streams.insert(u64::from(stream.as_raw_fd().cast_unsigned()), stream);
            }
        }
    }
}

/// Opens its connections, then uses each once for every line it is sent.
fn ask(from: SocketAddr, to: SocketAddr, count: usize) {
    let connect = |n: usize| {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::new(from.ip(), from.port() + n as u16).into())?;
        socket.connect_timeout(&to.into(), Duration::from_secs(20))?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.set_nodelay(true)?;
        Ok::<_, std::io::Error>(stream)
    };
    let use_it = |n: usize, mut stream: &TcpStream| {
        // Begins as a request, for listeners that look for a name; a host of the test echoes all bytes.
        let message = format!("GET / HTTP/1.1\r\nHost: a.test\r\nFrom: {from} {n:05}\r\n\r\n");
        let mut answer = vec![0; message.len()];
        stream.write_all(message.as_bytes())?;
        stream.read_exact(&mut answer)?;
        assert_eq!(answer, message.as_bytes(), "bytes of another connection");
        Ok::<_, std::io::Error>(())
    };
    let mut streams = Vec::new();
    for n in 0..count {
        match connect(n).and_then(|stream| use_it(n, &stream).map(|()| stream)) {
            Ok(stream) => streams.push(stream),
            Err(error) => {
                say(&format!("open: failed at {n}: {error}"));
                return;
            }
        }
    }
    say(&format!("open: {count}"));
    for _ in std::io::stdin().lines() {
        let failed: Vec<_> = streams
            .iter()
            .enumerate()
            .filter_map(|(n, s)| use_it(n, s).err())
            .collect();
        match failed.first() {
            None => say("all: answered"),
            Some(error) => say(&format!("all: {} failed, such as: {error}", failed.len())),
        }
    }
}
