//! Ids of connections to hosts, which their PROXY headers and the access log name.

use signalbox_common::peek::proxy::ConnectionId;
use signalbox_core::limits::stats::Counter;

use crate::sys::random_bytes;

/// Ids of a process: its seed, and a number for each connection. Programs number theirs by the flow.
#[derive(Debug)]
pub struct ConnectionIds {
    seed: u64,
    next: Counter,
}

impl ConnectionIds {
    /// Ids with a random seed.
    #[must_use]
    pub fn random() -> Self {
        let mut seed = [0; 8];
        // Without a random number, ids are told apart within this process alone.
        let _ = random_bytes(&mut seed);
        Self {
            seed: u64::from_ne_bytes(seed) & !ConnectionId::OF_PROGRAM,
            next: Counter::default(),
        }
    }

    /// Seed of the ids of connections that a program makes.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// Id of a worker's next connection.
    pub fn next(&self) -> ConnectionId {
        ConnectionId {
            seed: self.seed,
            number: self.next.ticket(),
        }
    }
}
