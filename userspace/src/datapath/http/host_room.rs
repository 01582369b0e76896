//! Room for the host connections that the streams of a client's HTTP/2 connection need. A client's connection is given
//! two descriptors, one of them for a host. Each further one is counted, and considered when connections are accepted.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::time::sleep;

use crate::datapath::worker_state::Worker;
use crate::state::Shared;

/// Pause before a stream checks for room again. Only one stream of a connection checks at a time.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Connections to hosts that the streams of a client's connection use.
pub(super) struct HostRoom {
    shared: Arc<Shared>,
    used: Cell<u32>,
    turn: Semaphore,
}

impl HostRoom {
    pub(super) fn new(shared: &Arc<Shared>) -> Rc<Self> {
        Rc::new(Self {
            shared: Arc::clone(shared),
            used: Cell::new(0),
            turn: Semaphore::new(1),
        })
    }

    /// Takes room for one connection to a host, or waits for it up to a time limit.
    pub(super) async fn enter(self: &Rc<Self>, worker: &Worker, patience: Duration) -> Option<HostRoomGuard> {
        let until = Instant::now() + patience;
        let _turn = self.turn.acquire().await;
        while self.used.get() > 0 && !worker.has_room() {
            if Instant::now() >= until {
                return None;
            }
            self.shared.totals.paused.inc("streams");
            sleep(RETRY_INTERVAL).await;
        }
        if self.used.replace(self.used.get() + 1) > 0 {
            self.shared.totals.stream_sockets.enter();
        }
        Some(HostRoomGuard(Rc::clone(self)))
    }
}

/// Room for one connection to a host.
pub(super) struct HostRoomGuard(Rc<HostRoom>);

impl Drop for HostRoomGuard {
    fn drop(&mut self) {
        let room = &self.0;
        room.used.set(room.used.get() - 1);
        if room.used.get() > 0 {
            room.shared.totals.stream_sockets.leave();
        }
    }
}
