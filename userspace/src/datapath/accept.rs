//! Accepts connections, as long as there is room for them.

use std::net::TcpListener as StdListener;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::TcpListener;
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

/// Accepts from a socket until told to stop.
pub async fn run(worker: Rc<Worker>, socket: StdListener, mut stop: watch::Receiver<Stop>) -> std::io::Result<()> {
    let listener = TcpListener::from_std(socket)?;
    let mut batch = 0;
    loop {
        if worker.shared.totals.active.get() >= worker.max_connections() {
            worker.shared.totals.paused.inc("max_connections");
            tokio::time::sleep(PAUSE).await;
        }
        let accepted = tokio::select! {
            biased;
            accepted = listener.accept() => accepted,
            changed = stop.changed() => {
                let how = *stop.borrow();
                match (changed, how) {
                    (Ok(()), Stop::Not) => continue,
                    (Ok(()), Stop::Drain) => return drain(&worker, &listener).await,
                    (Ok(()), Stop::HandOver) | (Err(_), _) => return Ok(()),
                }
            }
        };
        match accepted {
            Ok((stream, peer)) => {
                let seat = Seat::take(&worker.shared);
                tokio::task::spawn_local(serve(Rc::clone(&worker), stream, peer, seat));
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
async fn drain(worker: &Rc<Worker>, listener: &TcpListener) -> std::io::Result<()> {
    while let Ok(Ok((stream, peer))) = tokio::time::timeout(PAUSE, listener.accept()).await {
        let seat = Seat::take(&worker.shared);
        tokio::task::spawn_local(serve(Rc::clone(worker), stream, peer, seat));
    }
    Ok(())
}
