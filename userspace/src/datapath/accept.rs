//! Accept loop of a worker: accepts connections as long as there is room for them.

use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use super::conn_guard::{ConnGuard, ConnectionPlace};
use super::connection::serve;
use super::socket::Socket;
use super::worker_state::Worker;
use crate::sys;

/// How an acceptor ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// The acceptor keeps accepting.
    Running,
    /// The acceptor accepts every connection that has completed its handshake, then closes the socket.
    Drain,
    /// Another process has the socket too, and accepts the queued connections.
    HandOver,
    /// The service manager keeps the socket open, and a later process accepts the queued connections.
    Leave,
}

/// Pause when there is no room for connections, or when the kernel refuses one.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Connections accepted in a row before other tasks of this worker get their turn. A small batch keeps the latency of
/// served connections even, and shares a burst of new ones among workers.
const MAX_ACCEPTED_IN_A_ROW: usize = 4;

/// Time limit for emptying the queue of a socket that is to be closed: an address-bound socket still gets new
/// connections.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);

/// Accepts from a socket until told to stop. `local` is the local address of all its connections, if known: this saves
/// a `getsockname` per connection.
pub async fn run(
    worker: Rc<Worker>,
    socket: TcpListener,
    local: Option<SocketAddr>,
    mut stop: watch::Receiver<StopMode>,
) -> std::io::Result<()> {
    let listener = sys::async_readable(socket)?;
    let mut batch = 0;
    loop {
        // Checked first, so that a queue that is never empty cannot keep the loop from stopping.
        if stop.has_changed().unwrap_or(true) {
            let how = *stop.borrow_and_update();
            match how {
                StopMode::Running => {}
                StopMode::Drain => return drain(&worker, &listener, local).await,
                StopMode::HandOver | StopMode::Leave => return Ok(()),
            }
        }
        let accepted = tokio::select! {
            biased;
            accepted = accept_with_room(&worker, &listener) => accepted,
            changed = stop.changed() => match changed {
                Ok(()) => {
                    stop.mark_changed();
                    continue;
                }
                Err(_) => return Ok(()),
            },
        };
        match accepted {
            Ok((place, client, peer)) => {
                admit(&worker, place, client, peer, local);
                batch += 1;
                if batch == MAX_ACCEPTED_IN_A_ROW {
                    batch = 0;
                    tokio::task::yield_now().await;
                }
            }
            Err(error) => pause_after_error(&worker, &error).await,
        }
    }
}

/// Accepts the next connection from the queue as soon as there is room for it.
async fn accept_with_room(
    worker: &Worker,
    listener: &AsyncFd<TcpListener>,
) -> std::io::Result<(ConnectionPlace, Socket, SocketAddr)> {
    loop {
        let mut ready = listener.readable().await?;
        let Some(place) = worker.place() else {
            worker.shared.totals.paused.inc("max_connections");
            tokio::time::sleep(RETRY_INTERVAL).await;
            continue;
        };
        if let Ok(accepted) = ready.try_io(|listener| sys::accept(listener.get_ref())) {
            return accepted.map(|(client, peer)| (place, Socket::Plain(client), peer));
        }
    }
}

/// Accepts the next connection from the queue, of which all are accepted.
async fn accept(listener: &AsyncFd<TcpListener>) -> std::io::Result<(Socket, SocketAddr)> {
    loop {
        let mut ready = listener.readable().await?;
        if let Ok(accepted) = ready.try_io(|listener| sys::accept(listener.get_ref())) {
            return accepted.map(|(client, peer)| (Socket::Plain(client), peer));
        }
    }
}

/// Serves a connection.
pub(super) fn admit(
    worker: &Rc<Worker>,
    place: ConnectionPlace,
    client: Socket,
    peer: SocketAddr,
    local: Option<SocketAddr>,
) {
    let guard = ConnGuard::new(place);
    tokio::task::spawn_local(serve(Rc::clone(worker), client, peer, local, guard));
}

async fn pause_after_error(worker: &Worker, error: &std::io::Error) {
    match error.raw_os_error() {
        // The client left while the connection was in the queue.
        Some(libc::ECONNABORTED | libc::EINTR) => {}
        Some(libc::EMFILE | libc::ENFILE) => {
            worker.shared.totals.paused.inc("no_descriptors");
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
        _ => {
            worker.shared.totals.paused.inc("accept_failed");
            tracing::debug!(%error, "Accepting a connection failed.");
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }
}

/// Accepts the connections in the queue: closing the socket would reset them.
async fn drain(worker: &Rc<Worker>, listener: &AsyncFd<TcpListener>, local: Option<SocketAddr>) -> std::io::Result<()> {
    let until = Instant::now() + DRAIN_TIMEOUT;
    while Instant::now() < until {
        match tokio::time::timeout(RETRY_INTERVAL, accept(listener)).await {
            Ok(Ok((client, peer))) => {
                let place = ConnectionPlace::beyond_limits(&worker.shared);
                admit(worker, place, client, peer, local);
            }
            Ok(Err(error)) => pause_after_error(worker, &error).await,
            Err(_) => break,
        }
    }
    Ok(())
}
