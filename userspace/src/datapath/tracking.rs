//! Connection tracking, where it sees only a part of a connection's packets: programs carry the rest.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::kernel::conntrack::Conntrack;
use crate::state::Shared;

/// A worker's way to connection tracking. Does nothing where no packet filter has rules.
pub struct Tracking {
    shared: Arc<Shared>,
    /// `None` until it is needed, and after a failure: the next answer might be that to a former request.
    socket: RefCell<Option<Conntrack>>,
}

impl Tracking {
    pub const fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            socket: RefCell::new(None),
        }
    }

    /// Makes the entry of a client's established connection, whose handshake tracking has not seen. Without it, rules
    /// about state may drop its packets.
    pub fn establish(&self, client: SocketAddr, local: SocketAddr) {
        self.with(|conntrack| conntrack.establish(client, local));
    }

    /// Has tracking accept acknowledgements of data that it has not seen. A host sends them to the socket that has begun
    /// a flow, while programs carry the client's further data.
    pub fn loosen(&self, local: SocketAddr, host: SocketAddr) {
        self.with(|conntrack| conntrack.loosen(local, host));
    }

    fn with(&self, ask: impl FnOnce(&mut Conntrack) -> io::Result<()>) {
        if !self.shared.kernel.tracks_connections.load(Relaxed) {
            return;
        }
        let mut socket = self.socket.borrow_mut();
        let opened = socket.take().map_or_else(Conntrack::open, Ok);
        match opened.and_then(|mut conntrack| ask(&mut conntrack).map(|()| conntrack)) {
            Ok(conntrack) => *socket = Some(conntrack),
            // No rule has had this connection tracked.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                self.shared.totals.not_tracked.inc();
                tracing::debug!(%error, "Connection tracking has not taken the entry of a connection.");
            }
        }
    }
}
