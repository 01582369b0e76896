//! Handshakes of a worker that are in progress, and clients that wait for their turn: [`HandshakeQueue`] decides, by
//! the limits of the client that came last.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use signalbox_core::model::HandshakeLimits;
use signalbox_core::tls::handshake_queue::{HandshakeQueue, HandshakeSource, HandshakeWait};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Handshakes of a worker.
#[derive(Default)]
pub(in crate::datapath) struct HandshakeSlots {
    queue: RefCell<HandshakeQueue<oneshot::Sender<HandshakeSlot>>>,
    limits: Cell<Option<HandshakeLimits>>,
}

/// Handshake that is in progress until this is dropped.
pub(super) struct HandshakeSlot {
    slots: Rc<HandshakeSlots>,
    source: HandshakeSource,
}

impl HandshakeSlots {
    /// Waits for the turn of a client's handshake.
    ///
    /// # Errors
    ///
    /// With the reason for waiting, if the client's turn has not come within the time limit.
    pub(super) async fn begin(
        self: &Rc<Self>,
        client: IpAddr,
        limits: HandshakeLimits,
        limit: Duration,
    ) -> Result<HandshakeSlot, HandshakeWait> {
        let source = HandshakeSource::new(client);
        // Limits that were raised may let others begin first.
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
            // The receiver has just been there, and this thread is its own.
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
