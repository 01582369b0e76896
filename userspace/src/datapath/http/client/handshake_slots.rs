//! Handshakes in progress on a worker, and clients that wait for their turn. [`HandshakeQueue`] decides, with the
//! limits of the latest client.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use signalbox_core::limits::handshake_queue::{HandshakeQueue, HandshakeSource, HandshakeWait};
use signalbox_core::model::HandshakeLimits;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Handshakes of a worker.
#[derive(Default)]
pub(in crate::datapath) struct HandshakeSlots {
    queue: RefCell<HandshakeQueue<oneshot::Sender<HandshakeSlot>>>,
    limits: Cell<Option<HandshakeLimits>>,
}

/// A handshake that is in progress until this is dropped.
pub(super) struct HandshakeSlot {
    slots: Rc<HandshakeSlots>,
    source: HandshakeSource,
}

impl HandshakeSlots {
    /// Waits for the turn of a client's handshake.
    ///
    /// # Errors
    ///
    /// The reason for waiting, if the client's turn has not come within the time limit.
    pub(super) async fn begin(
        self: &Rc<Self>,
        client: IpAddr,
        limits: HandshakeLimits,
        limit: Duration,
    ) -> Result<HandshakeSlot, HandshakeWait> {
        let source = HandshakeSource::new(client);
        // Raised limits may let other clients begin first.
        if self.limits.replace(Some(limits)) != Some(limits) {
            self.let_next_begin();
        }
        let begun = self.queue.borrow_mut().begin(source, limits);
        let Err(why) = begun else {
            return Ok(self.slot(source));
        };
        let (turn, waits) = oneshot::channel();
        self.queue.borrow_mut().wait(source, limits, turn);
        match timeout(limit, waits).await {
            Ok(Ok(slot)) => Ok(slot),
            Ok(Err(_)) | Err(_) => Err(why),
        }
    }

    fn slot(self: &Rc<Self>, source: HandshakeSource) -> HandshakeSlot {
        let slots = Rc::clone(self);
        HandshakeSlot { slots, source }
    }

    fn let_next_begin(self: &Rc<Self>) {
        let Some(limits) = self.limits.get() else { return };
        loop {
            let next = self.queue.borrow_mut().next(limits, oneshot::Sender::is_closed);
            let Some((source, turn)) = next else { return };
            // The receiver was there a moment ago, and runs on this thread.
            let _ = turn.send(self.slot(source));
        }
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        if let Some(limits) = self.slots.limits.get() {
            self.slots.queue.borrow_mut().end(self.source, limits);
        }
        self.slots.let_next_begin();
    }
}
