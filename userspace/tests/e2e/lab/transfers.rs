//! Many exchanges at once through every door of [`super::cut`].

use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::cut::Door;
use super::exchange::{self, Noise};
use super::namespace::connect_here;
use super::servers::Server;
use super::{Lab, cut};

/// Servers on both hosts that first take the bytes that a door demands, and then their part of an exchange.
pub(crate) fn servers(lab: &Lab) -> Vec<Server> {
    servers_of(lab, cut::doors())
}

/// Likewise, for these doors.
pub(crate) fn servers_of(lab: &Lab, doors: Vec<Door>) -> Vec<Server> {
    let serve = |door: Door| {
        let first = door.first;
        Server::start(lab.host(door.host), &format!("[::]:{}", door.port), move |stream| {
            let mut received = vec![0; first.len()];
            // An error here is an error at the client too, and is judged there.
            if (&*stream).read_exact(&mut received).is_ok() && received == first {
                let _ = exchange::serve(&stream);
            }
        })
    };
    doors.into_iter().map(serve).collect()
}

/// Properties of a number of exchanges.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    /// Number of exchanges at a time.
    pub(crate) at_once: u64,
    /// Number of exchanges in all.
    pub(crate) count: u64,
    /// Bytes each way, at most; the number is drawn for each, small numbers being likelier.
    pub(crate) most: u64,
    /// Time limit of an exchange; longer is stuck.
    pub(crate) patience: Duration,
}

impl Load {
    /// Runs them through a door; returns the failures.
    pub(crate) fn run(self, lab: &Lab, door: &Door, seed: u64) -> Vec<String> {
        let next = AtomicU64::new(0);
        let work = || {
            lab.client.run(|| {
                let mut wrong = Vec::new();
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= self.count {
                        return wrong;
                    }
                    wrong.extend(self.one(door, seed * 1_000_000 + n));
                }
            })
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.at_once).map(|_| scope.spawn(work)).collect();
            workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
        })
    }

    /// Runs the exchanges, none of which may fail.
    pub(crate) fn must(self, lab: &Lab, door: &Door, seed: u64) {
        let wrong = self.run(lab, door, seed);
        let (count, all) = (wrong.len(), self.count);
        assert!(
            wrong.is_empty(),
            "{count} of {all} at {}, such as: {}",
            door.at,
            wrong[0]
        );
    }

    fn one(self, door: &Door, seed: u64) -> Option<String> {
        let mut noise = Noise::new(seed);
        // The number of bits of a size is random.
        let mut size = || {
            let most = self.most >> noise.up_to(u64::from(self.most.max(2).ilog2()));
            noise.up_to(most + 1) - 1
        };
        let (up, down) = (size(), size());
        let start = Instant::now();
        let mut local = None;
        let outcome = connect_here(door.at).and_then(|stream| {
            local = stream.local_addr().ok();
            (&stream).write_all(&door.first)?;
            exchange::client(&stream, seed, up, down)
        });
        let took = start.elapsed();
        let case = || format!("seed {seed}, {up} bytes up, {down} down, client {local:?}, after {took:?}");
        match outcome {
            Err(error) => Some(format!("{error}: {}", case())),
            Ok(()) if took > self.patience => Some(format!("too slow: {}", case())),
            Ok(()) => None,
        }
    }
}
