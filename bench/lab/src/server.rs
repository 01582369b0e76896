//! A plain TCP server: its user decides how a connection is served.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{Ns, Worker, patience};

/// A server with a thread for each connection. Its connections are cut and its port is closed on drop.
pub struct Server {
    connections: Arc<Connections>,
    worker: Option<Worker>,
}

/// Connections of a server.
#[derive(Default)]
struct Connections {
    accepted: AtomicUsize,
    open: Mutex<Vec<Weak<TcpStream>>>,
}

impl Server {
    /// Listens at `at` in `ns` and gives each connection to `serve`.
    ///
    /// # Panics
    ///
    /// If the port is taken.
    pub fn start(ns: &Ns, at: &str, serve: impl Fn(Arc<TcpStream>) + Send + Sync + 'static) -> Self {
        let listener = ns.listen(at);
        let connections = Arc::<Connections>::default();
        let accepting = Arc::clone(&connections);
        let worker = Worker::start(move |stop| accepting.accept(&listener, &Arc::new(serve), stop));
        Self {
            connections,
            worker: Some(worker),
        }
    }

    /// Connections so far.
    pub fn accepted(&self) -> usize {
        self.connections.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.worker = None;
        let open = self.connections.open.lock().unwrap_or_else(PoisonError::into_inner);
        for stream in open.iter().filter_map(Weak::upgrade) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Connections {
    fn accept<F>(&self, listener: &TcpListener, serve: &Arc<F>, stop: &AtomicBool)
    where
        F: Fn(Arc<TcpStream>) + Send + Sync + 'static,
    {
        let _ = listener.set_nonblocking(true);
        while !stop.load(Ordering::SeqCst) {
            let mut ready = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut ready, PollTimeout::from(100u8));
            while let Ok((stream, _)) = listener.accept() {
                self.accepted.fetch_add(1, Ordering::SeqCst);
                // A connection that is gone already has no options to set; its server reads the error.
                let _ = stream.set_nonblocking(false);
                let _ = stream.set_read_timeout(Some(Duration::from_secs(120) * patience()));
                let _ = stream.set_nodelay(true);
                let stream = Arc::new(stream);
                let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
                open.retain(|stream| stream.strong_count() > 0);
                open.push(Arc::downgrade(&stream));
                drop(open);
                let serve = Arc::clone(serve);
                std::thread::spawn(move || serve(stream));
            }
        }
    }
}
