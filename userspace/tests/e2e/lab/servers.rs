//! Servers as backends.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};

pub(crate) use signalbox_lab::Server;

use super::Ns;

/// Answers health checks at :1936 for a host that runs no router.
pub(crate) fn healthy(ns: &Ns) -> Server {
    Server::start(ns, "[::]:1936", |stream| {
        let mut request = [0; 1024];
        let _ = (&*stream).read(&mut request);
        let _ = (&*stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    })
}

/// Gives each connection to the test, which then holds both ends of it.
pub(crate) fn hand_over(ns: &Ns, at: &str) -> (Server, Receiver<Arc<TcpStream>>) {
    let (sender, receiver) = mpsc::channel();
    let server = Server::start(ns, at, move |stream| {
        // A test that has enough of them has dropped its end.
        let _ = sender.send(stream);
    });
    (server, receiver)
}

/// Sends everything back, then ends when the client does.
pub(crate) fn echo(ns: &Ns, at: &str) -> Server {
    Server::start(ns, at, |stream| {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(n) = (&*stream).read(&mut buffer) {
            if n == 0 || (&*stream).write_all(&buffer[..n]).is_err() {
                break;
            }
        }
        let _ = stream.shutdown(Shutdown::Write);
    })
}

/// A backend that keeps what each connection sent, byte for byte.
#[derive(Clone, Default)]
pub(crate) struct Recorder(Arc<Mutex<Vec<Vec<u8>>>>);

impl Recorder {
    /// Listens; when a client has finished, its bytes are kept and `answer` is sent back. A connection without a byte
    /// (a health check) is not kept.
    pub(crate) fn serve(&self, ns: &Ns, at: &str, answer: &str) -> Server {
        let (kept, answer) = (Arc::clone(&self.0), answer.to_owned());
        Server::start(ns, at, move |stream| {
            let mut bytes = Vec::new();
            let whole = (&*stream).read_to_end(&mut bytes).is_ok();
            if whole && !bytes.is_empty() {
                kept.lock().unwrap().push(bytes);
                let _ = (&*stream).write_all(answer.as_bytes());
            }
        })
    }

    /// The bytes of all finished connections so far, oldest first; forgotten here.
    pub(crate) fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}
