//! Late cut of a held flow: its entry gets the sockets' numbers, and its tuples lead to it.
//!
//! From [`Cut::close_in`] until [`Cut::release_held`] or [`Cut::start_late`] the programs drop the flow's packets in
//! both directions, so that nothing can reach or leave a socket while userspace looks at both once more. TCP sends
//! dropped packets again, except a reset.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use signalbox_common::cut::CutFlow;
use signalbox_common::cut::flow::{FlowRef, state};
use signalbox_common::cut::late::{LateCut, SocketNumbers};
use signalbox_common::net::Tuple;
use signalbox_common::net::header::ACK;

use super::Cut;
use super::segment::{Segment, timestamps_option};
use super::table::monotonic_ms;
use crate::address::from_words;

/// A client's window, as it is announced to the host.
#[derive(Clone, Copy, Debug)]
pub struct ClientWindow {
    /// Leg B's numbers at the moment of the cut.
    pub numbers: SocketNumbers,
    /// Bytes that the client takes.
    pub bytes: u32,
    /// Clock of leg B's timestamps in milliseconds, less this machine's, where it has timestamps.
    pub clock: Option<u32>,
}

impl Cut {
    /// Writes a held flow's numbers, and has both of its tuples lead to it. Fails where one of them leads to another
    /// flow or the map has no room: then neither does.
    pub fn close_in(&self, index: u32, late: &LateCut) -> io::Result<()> {
        let mut flow = self.table.read(index);
        late.apply_to(&mut flow);
        self.table.write_held(index, &flow);
        self.tuples.insert(&flow.tuple(1), &FlowRef::new(index, 1))?;
        if let Err(error) = self.tuples.insert(&flow.tuple(0), &FlowRef::new(index, 0)) {
            self.tuples.delete(&flow.tuple(1))?;
            return Err(error);
        }
        Ok(())
    }

    /// Leaves a flow, whose tuples lead to its entry, to its sockets again.
    pub fn release_held(&self, index: u32) {
        let flow = self.table.read(index);
        for way in [0, 1] {
            if let Err(error) = self.tuples.delete(&flow.tuple(way)) {
                tracing::warn!(%error, "An entry of a flow that is not cut could not be removed.");
            }
        }
    }

    /// Abandons a held flow whose process has ended. Returns whether it had been closed in: then both ends must be
    /// reset, and the flow is being closed.
    pub fn abandon_held(&self, index: u32) -> bool {
        let flow = self.table.read(index);
        let leads_here = |way: u32| {
            let entry = self.tuples.get::<Tuple, FlowRef>(&flow.tuple(way));
            entry.is_ok_and(|entry| entry == Some(FlowRef::new(index, way)))
        };
        let is_closed_in = leads_here(0) || leads_here(1);
        let next = if is_closed_in { state::CLOSING } else { state::FREE };
        self.table.set_state(index, next);
        is_closed_in
    }

    /// Tells a late-cut flow's host, in the client's name, that it may send. Both sockets have to be closed. A host
    /// that has already sent, and was answered by the client, ignores it.
    pub fn open_window(&self, index: u32, told: &ClientWindow) {
        let flow = self.table.read(index);
        let at = |words, port: u32| SocketAddr::new(from_words(words), port as u16);
        let segment = Segment {
            from: at(flow.local, flow.ports_b),
            to: at(flow.host_addr, flow.ports_b >> 16),
            seq: told.numbers.next_sent,
            ack: told.numbers.next_expected,
            flags: ACK,
            window: u16::try_from(told.bytes >> (flow.scale_b & 15)).unwrap_or(u16::MAX),
            options: told
                .clock
                .map(|clock| timestamps_option(clock.wrapping_add(monotonic_ms())))
                .unwrap_or_default(),
        };
        if let Err(error) = segment.send() {
            // The host asks on its own when its persist timer expires (RFC 9293, section 3.8.6.1).
            tracing::debug!(%error, "A host could not be informed of its client's window.");
        }
    }

    /// Has the programs forward the packets of a flow that is closed in.
    pub fn start_late(&self, index: u32) {
        self.table.set_state(index, state::CUT);
    }
}

impl super::table::FlowTable {
    /// Writes the entry of a held flow, to which no tuple leads.
    fn write_held(&self, index: u32, flow: &CutFlow) {
        let held = CutFlow {
            state: state::HELD,
            ..*flow
        };
        // SAFETY: valid and aligned; no other thread or program writes a held entry.
        unsafe { self.entry(index).write_volatile(held) };
        // SAFETY: as above; the numbers are written before any reader finds the state, or a tuple.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.entry(index)).state) }.store(state::HELD, Ordering::Release);
    }
}
