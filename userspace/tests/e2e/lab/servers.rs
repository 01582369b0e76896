//! Plain TCP servers as backends: what they do with a connection is the test's to say.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::namespace::Ns;

/// A server with a thread for each connection. Its connections are cut and its port is closed on drop.
pub(crate) struct Server {
    stop: Arc<AtomicBool>,
    accepted: Arc<AtomicUsize>,
    open: Arc<Mutex<Vec<Weak<TcpStream>>>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `at` in `ns` and gives each connection to `serve`.
    pub(crate) fn start(ns: &Ns, at: &str, serve: impl Fn(Arc<TcpStream>) + Send + Sync + 'static) -> Self {
        let listener = ns.listen(at);
        listener.set_nonblocking(true).unwrap();
        let mut server = Self {
            stop: Arc::default(),
            accepted: Arc::default(),
            open: Arc::default(),
            thread: None,
        };
        let (stop, accepted, open) = (server.stop.clone(), server.accepted.clone(), server.open.clone());
        let accepting = move || accept(&listener, &stop, &accepted, &open, &Arc::new(serve));
        server.thread = Some(std::thread::spawn(accepting));
        server
    }

    /// Connections so far.
    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        for stream in self.open.lock().unwrap().iter().filter_map(Weak::upgrade) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn accept<F: Fn(Arc<TcpStream>) + Send + Sync + 'static>(
    listener: &TcpListener,
    stop: &AtomicBool,
    accepted: &AtomicUsize,
    open: &Mutex<Vec<Weak<TcpStream>>>,
    serve: &Arc<F>,
) {
    while !stop.load(Ordering::SeqCst) {
        let mut ready = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut ready, PollTimeout::from(100u8));
        while let Ok((stream, _)) = listener.accept() {
            accepted.fetch_add(1, Ordering::SeqCst);
            stream.set_nonblocking(false).unwrap();
            stream
                .set_read_timeout(Some(Duration::from_secs(120) * super::patience()))
                .unwrap();
            stream.set_nodelay(true).unwrap();
            let stream = Arc::new(stream);
            let mut known = open.lock().unwrap();
            known.retain(|stream| stream.strong_count() > 0);
            known.push(Arc::downgrade(&stream));
            drop(known);
            let serve = Arc::clone(serve);
            std::thread::spawn(move || serve(stream));
        }
    }
}

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

/// Gives everything back, then ends when the client does.
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
