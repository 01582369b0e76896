//! An API server that behaves like a real one, and misbehaves as real ones do: pages, resource versions, watches in
//! chunks, bookmarks, compaction, rights, and connections that break.
//!
//! The server's code decides nothing about what a balancer should make of objects: tests compare with the objects.
#![allow(dead_code, reason = "each test program uses a part of it")]

mod answer;
pub(crate) mod objects;
mod store;
mod stream;
pub(crate) mod watching;

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

pub(crate) use store::Store;

/// State that outlives the server: etcd, and the address.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) addr: SocketAddr,
    pub(crate) store: Arc<std::sync::Mutex<Store>>,
    /// Told of every change.
    pub(crate) changed: watch::Sender<u64>,
}

/// A running server.
pub(crate) struct Server {
    task: JoinHandle<()>,
}

impl Server {
    /// Kills the server with all its connections.
    pub(crate) async fn kill(mut self) {
        self.task.abort();
        // Until then its address is taken.
        let _ = (&mut self.task).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Api {
    /// A server with nothing in it.
    pub(crate) async fn start() -> (Self, Server) {
        Self::start_with(None).await
    }

    pub(crate) async fn start_with(tls: Option<TlsAcceptor>) -> (Self, Server) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let api = Self {
            addr: listener.local_addr().unwrap(),
            store: Arc::default(),
            changed: watch::Sender::new(0),
        };
        let server = api.serve(listener, tls);
        (api, server)
    }

    /// The server is back at its old address.
    pub(crate) async fn restart(&self) -> Server {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(self.addr).unwrap();
        self.serve(socket.listen(64).unwrap(), None)
    }

    fn serve(&self, listener: TcpListener, tls: Option<TlsAcceptor>) -> Server {
        let api = self.clone();
        let task = tokio::spawn(async move {
            // Streams of watches, and connections: they die with this task.
            let (spawn, mut wanted) = mpsc::unbounded_channel();
            let mut running = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let Ok((socket, _)) = accepted else { continue };
                        let (api, spawn, tls) = (api.clone(), spawn.clone(), tls.clone());
                        running.spawn(async move {
                            match tls {
                                None => api.connection(TokioIo::new(socket), spawn).await,
                                Some(tls) => {
                                    if let Ok(socket) = tls.accept(socket).await {
                                        api.connection(TokioIo::new(socket), spawn).await;
                                    }
                                }
                            }
                        });
                    }
                    Some(task) = wanted.recv() => { running.spawn(task); }
                }
            }
        });
        Server { task }
    }

    async fn connection<I>(&self, io: I, spawn: stream::Spawn)
    where
        I: hyper::rt::Read + hyper::rt::Write + Unpin,
    {
        let service = service_fn(|request| {
            let (api, spawn) = (self.clone(), spawn.clone());
            async move { Ok::<_, std::convert::Infallible>(answer::answer(&api, &request, &spawn).await) }
        });
        // Some tests need a connection that breaks.
        let _ = hyper::server::conn::http1::Builder::new()
            .serve_connection(io, service)
            .await;
    }

    /// Changes the store, and notifies all watches.
    pub(crate) fn change<T>(&self, how: impl FnOnce(&mut Store) -> T) -> T {
        let mut store = self.store.lock().unwrap();
        let result = how(&mut store);
        self.changed.send_replace(store.version);
        // Moods change without a version.
        self.changed.send_modify(|_| {});
        result
    }

    /// How often it was asked for a list of `plural`.
    pub(crate) fn lists(&self, plural: &str) -> usize {
        self.store.lock().unwrap().lists.get(plural).copied().unwrap_or(0)
    }

    /// How often it was asked for a watch of `plural`.
    pub(crate) fn watches(&self, plural: &str) -> usize {
        self.store.lock().unwrap().watches.get(plural).copied().unwrap_or(0)
    }
}
