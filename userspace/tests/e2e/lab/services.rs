//! Servers of layer-4 services: each identifies itself.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::Ordering;
use std::time::Duration;

use signalbox_lab::Worker;

use super::namespace::Ns;
use super::servers::Server;
use super::topology::Lab;

/// A server that first sends its name, then sends back what it gets.
pub(crate) fn greeter(ns: &Ns, at: &str, name: &str) -> Server {
    let name = format!("{name}\n");
    Server::start(ns, at, move |stream| {
        let mut stream: &TcpStream = &stream;
        if stream.write_all(name.as_bytes()).is_err() {
            return;
        }
        let mut buffer = vec![0; 65_536];
        while let Ok(n) = stream.read(&mut buffer) {
            if n == 0 || stream.write_all(&buffer[..n]).is_err() {
                return;
            }
        }
    })
}

/// The name that a greeter says.
pub(crate) fn greeting(stream: &TcpStream) -> String {
    let mut name = Vec::new();
    let mut byte = [0];
    let mut stream = stream;
    while stream.read(&mut byte).unwrap() == 1 && byte != *b"\n" {
        name.push(byte[0]);
    }
    String::from_utf8(name).unwrap()
}

/// Sends bytes and expects them back.
pub(crate) fn echo(stream: &TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    let mut stream = stream;
    stream.write_all(bytes)?;
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back)?;
    assert!(back == bytes, "what comes back is not what was sent");
    Ok(())
}

/// A UDP server.
pub(crate) struct Answerer {
    _worker: Worker,
}

impl Answerer {
    /// Answers with its name and the question.
    pub(crate) fn start(ns: &Ns, at: &str, name: &str) -> Self {
        let name = name.to_owned();
        Self::with(ns, at, move |question| Some([name.as_bytes(), b":", question].concat()))
    }

    /// Gives the answers of a function, where that has one.
    pub(crate) fn with(ns: &Ns, at: &str, answer: impl Fn(&[u8]) -> Option<Vec<u8>> + Send + 'static) -> Self {
        let socket = ns.run(|| UdpSocket::bind(at).unwrap());
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let worker = Worker::start(move |stop| {
            let mut buffer = vec![0; 65_536];
            while !stop.load(Ordering::Relaxed) {
                let heard = socket.recv_from(&mut buffer).ok();
                let answer = heard.and_then(|(n, from)| Some((answer(&buffer[..n])?, from)));
                if let Some((answer, from)) = answer {
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        Self { _worker: worker }
    }
}

/// A UDP socket of the client's, connected.
pub(crate) fn udp(lab: &Lab, to: &str) -> UdpSocket {
    let to: SocketAddr = to.parse().unwrap();
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = lab.client.run(|| UdpSocket::bind(any).unwrap());
    socket.connect(to).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    socket
}

/// Asks, and returns the name of the answering host; nothing if no answer came in time.
pub(crate) fn ask(socket: &UdpSocket, bytes: &[u8]) -> Option<String> {
    socket.send(bytes).unwrap();
    let mut buffer = vec![0; 65_536];
    let n = socket.recv(&mut buffer).ok()?;
    let at = buffer.iter().position(|b| *b == b':').unwrap();
    assert!(buffer[at + 1..n] == *bytes, "what comes back is not what was sent");
    Some(String::from_utf8(buffer[..at].to_vec()).unwrap())
}
