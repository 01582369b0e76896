//! Accepts connections, as long as there is room for them.

use std::net::{SocketAddr, TcpListener as StdListener};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::connection::{Seat, serve};
use super::worker::Worker;

/// How an acceptor ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It does not.
    Not,
    /// Everything that has completed its handshake is still accepted, then the socket is closed.
    Drain,
    /// The socket lives on in another process, which accepts what is queued.
    HandOver,
}

/// How long to wait when there is no room, or when the kernel refuses.
const PAUSE: Duration = Duration::from_millis(10);

/// Connections accepted in a row before others of this worker get their turn.
const BATCH: usize = 64;

/// How long a socket that is to be closed may go on: its queue is finite, but a bound one is still being filled.
const DRAIN: Duration = Duration::from_millis(200);

/// Accepts from a socket until told to stop. `local` is the address that every connection of it has, where that is
/// known: the kernel need not be asked then.
pub async fn run(
    worker: Rc<Worker>,
    socket: StdListener,
    local: Option<SocketAddr>,
    mut stop: watch::Receiver<Stop>,
) -> std::io::Result<()> {
    let listener = TcpListener::from_std(socket)?;
    let mut batch = 0;
    loop {
        // First of all: a queue that is never empty must not keep us from stopping.
        if stop.has_changed().unwrap_or(true) {
            let how = *stop.borrow_and_update();
            match how {
                Stop::Not => {}
                Stop::Drain => return drain(&worker, &listener, local).await,
                Stop::HandOver => return Ok(()),
            }
        }
        if worker.shared.totals.active.get() >= worker.max_connections() {
            worker.shared.totals.paused.inc("max_connections");
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        let accepted = tokio::select! {
            biased;
            accepted = listener.accept() => accepted,
            changed = stop.changed() => match changed {
                Ok(()) => {
                    stop.mark_changed();
                    continue;
                }
                Err(_) => return Ok(()),
            },
        };
        match accepted {
            Ok((stream, peer)) => {
                admit(&worker, stream, peer, local);
                batch += 1;
                if batch == BATCH {
                    batch = 0;
                    tokio::task::yield_now().await;
                }
            }
            Err(error) => refused(&worker, &error).await,
        }
    }
}

fn admit(worker: &Rc<Worker>, stream: TcpStream, peer: SocketAddr, local: Option<SocketAddr>) {
    let seat = Seat::take(&worker.shared);
    tokio::task::spawn_local(serve(Rc::clone(worker), stream, peer, local, seat));
}

async fn refused(worker: &Worker, error: &std::io::Error) {
    match error.raw_os_error() {
        // The client has gone while it waited.
        Some(libc::ECONNABORTED | libc::EINTR) => {}
        Some(libc::EMFILE | libc::ENFILE) => {
            worker.shared.totals.paused.inc("no_descriptors");
            tokio::time::sleep(PAUSE).await;
        }
        _ => {
            worker.shared.totals.paused.inc("accept_failed");
            tracing::debug!(%error, "Accepting a connection failed.");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Takes what waits in the queue: closing the socket would reset it.
async fn drain(worker: &Rc<Worker>, listener: &TcpListener, local: Option<SocketAddr>) -> std::io::Result<()> {
    let until = Instant::now() + DRAIN;
    while Instant::now() < until {
        match tokio::time::timeout(PAUSE, listener.accept()).await {
            Ok(Ok((stream, peer))) => admit(worker, stream, peer, local),
            Ok(Err(error)) => refused(worker, &error).await,
            Err(_) => break,
        }
    }
    Ok(())
}
