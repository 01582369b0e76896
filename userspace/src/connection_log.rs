//! The log of connections: a line of JSON for each that has ended or been refused, where the configuration wants it.
//!
//! Workers and the keeper of the flow table put records into a bounded queue and never wait; a thread makes lines of them
//! and writes them (`writer`). What is too much for the limit, the queue or the disk is counted and left out.

mod line;
mod output;
mod writer;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use signalbox_common::hash;
use signalbox_core::model::{ConnectionLog as Settings, LogTarget, Protocol, Tier};
use signalbox_core::name::HostName;

use crate::state::{ClusterState, Counter, HostState, ListenerState};

/// Records that wait to be written at the most: some 4 MiB.
const MAX_QUEUED: usize = 8192;

/// What the flow table does not know of a flow, for the line at its end.
#[derive(Clone, Debug)]
pub struct Opening {
    /// The client itself, where a PROXY header names it.
    pub client: SocketAddr,
    pub name: Option<HostName>,
    /// How long the connect to the host took that succeeded.
    pub connect: Duration,
    /// From the connection's acceptance to the flow's entry in the table.
    pub before: Duration,
}

/// A connection that has ended.
#[derive(Debug)]
pub struct Record {
    /// Milliseconds since 1970.
    pub at_ms: u64,
    pub client: SocketAddr,
    /// What the client connected to.
    pub local: SocketAddr,
    pub listener: Option<Arc<ListenerState>>,
    pub protocol: Option<Protocol>,
    pub name: Option<HostName>,
    pub route: Option<Box<str>>,
    pub host: Option<(Arc<HostState>, Arc<ClusterState>)>,
    pub backend: Option<SocketAddr>,
    pub tier: Option<Tier>,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub duration: Duration,
    pub connect: Option<Duration>,
    pub end: End,
    /// Who finished first, where that is known: `client` or `host`.
    pub closed_by: Option<&'static str>,
}

/// Why a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Flow(crate::datapath::relay::End),
    /// Refused, with the metric label of the reason.
    Refused(&'static str),
}

impl End {
    /// Its place among [`signalbox_core::model::ENDS`].
    const fn index(self) -> usize {
        match self {
            Self::Flow(end) => end as usize,
            Self::Refused(_) => crate::datapath::relay::End::ALL.len(),
        }
    }
}

/// A flow of the flow table: its index, and the tick at which it began.
pub type Key = (u32, u32);

enum Note {
    /// A flow goes on without its process's sockets: what is known of it.
    Cut(Key, Box<Opening>),
    Ended(Box<Record>, Option<Key>),
    /// Everything before it has been written when this is answered.
    Flush(SyncSender<()>),
}

/// Why a line was not written.
#[derive(Clone, Copy, Debug)]
pub enum Dropped {
    /// More in a second than the configuration allows.
    Rate,
    /// The queue was full: what takes the lines is too slow.
    Queue,
    /// The file could not be opened or written.
    Write,
}

impl Dropped {
    /// Metric labels, in the order of the variants.
    pub const LABELS: [&'static str; 3] = ["rate", "queue", "write"];
}

/// The log, as all parts share it.
#[derive(Default)]
pub struct ConnectionLog {
    settings: ArcSwapOption<Settings>,
    queue: OnceLock<SyncSender<Note>>,
    /// Numbers the draws of the sample.
    draws: Counter,
    window: Window,
    /// Goes up when the file is to be opened anew, and what the writer has followed.
    wanted: AtomicU64,
    opened: AtomicU64,
    /// What is wrong with the file.
    trouble: Mutex<Option<String>>,
    pub written: Counter,
    dropped: [Counter; Dropped::LABELS.len()],
}

impl ConnectionLog {
    /// Does what the configuration says from now on. What waits to be written goes to the new file.
    pub fn configure(self: &Arc<Self>, settings: Option<&Settings>) {
        let target = |settings: Option<&Settings>| settings.map(|settings| settings.to.clone());
        let before = self.settings.load_full();
        if before.as_deref() == settings {
            return;
        }
        let is_other = target(before.as_deref()) != target(settings);
        self.settings.store(settings.cloned().map(Arc::new));
        if is_other {
            self.reopen();
        }
        if settings.is_some() && self.queue.get().is_none() {
            let (sender, inbox) = sync_channel(MAX_QUEUED);
            let log = Arc::clone(self);
            let spawned = std::thread::Builder::new()
                .name("connection-log".into())
                .spawn(move || writer::run(&log, &inbox));
            match spawned {
                Ok(_) => {
                    let _ = self.queue.set(sender);
                }
                Err(error) => {
                    tracing::error!(%error, "The thread of the log of connections could not be started: nothing is logged.");
                }
            }
        }
    }

    /// Whether anything is to be written.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.settings.load().is_some()
    }

    /// Where to.
    #[must_use]
    pub fn target(&self) -> Option<LogTarget> {
        self.settings.load().as_ref().map(|settings| settings.to.clone())
    }

    /// A flow goes on by itself: what is known of it is kept for its end.
    pub fn cut(&self, key: Key, opening: Opening) {
        // Where the queue is full, the line will say less.
        if let Some(queue) = self.queue.get() {
            let _ = queue.try_send(Note::Cut(key, Box::new(opening)));
        }
    }

    /// A connection has ended: a line, if it is wanted, drawn and not too much. `key` where it was a flow of the flow table.
    pub fn ended(&self, end: End, key: Option<Key>, record: impl FnOnce() -> Record) {
        let settings = self.settings.load();
        let (Some(settings), Some(queue)) = (settings.as_ref(), self.queue.get()) else {
            return;
        };
        if !settings.only.contains(end.index()) || !is_drawn(self.draws.ticket(), settings.sample_ppm) {
            return;
        }
        let second = crate::state::unix_ms() / 1000;
        if !self.window.admits(second, settings.max_per_second) {
            return self.drop_lines(Dropped::Rate, 1);
        }
        if queue.try_send(Note::Ended(Box::new(record()), key)).is_err() {
            self.drop_lines(Dropped::Queue, 1);
        }
    }

    fn drop_lines(&self, why: Dropped, count: u64) {
        self.dropped[why as usize].add(count);
    }

    /// Lines that were not written, by reason.
    #[must_use]
    pub fn dropped(&self) -> Vec<(&'static str, u64)> {
        let counts = self.dropped.iter().map(Counter::get);
        Dropped::LABELS.into_iter().zip(counts).collect()
    }

    /// Has the file closed and opened by its name again: it has been renamed. Returns the number of this wish.
    pub fn reopen(&self) -> u64 {
        self.wanted.fetch_add(1, Relaxed) + 1
    }

    /// Whether a wish has been followed.
    #[must_use]
    pub fn has_reopened(&self, wish: u64) -> bool {
        self.opened.load(Relaxed) >= wish
    }

    /// What is wrong with the file now.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until what has been recorded is written, for so long at the most: the process is ending.
    pub fn flush(&self, limit: Duration) {
        let Some(queue) = self.queue.get() else { return };
        let until = Instant::now() + limit;
        let (done, written) = sync_channel(1);
        while queue.try_send(Note::Flush(done.clone())).is_err() {
            if Instant::now() >= until {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = written.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

/// Whether a draw is among so many in a million.
fn is_drawn(draw: u64, ppm: u32) -> bool {
    // The upper half of the bits, spread over a million.
    ((hash::mix(draw) >> 32) * 1_000_000) >> 32 < u64::from(ppm)
}

/// What has been admitted in the second that runs: the second in the upper half, how many in the lower.
#[derive(Debug, Default)]
struct Window(AtomicU64);

impl Window {
    fn admits(&self, second: u64, max: u32) -> bool {
        let next = |window: u64| {
            if window >> 32 == second & u64::from(u32::MAX) {
                ((window as u32) < max).then_some(window + 1)
            } else {
                Some(second << 32 | 1)
            }
        };
        self.0.fetch_update(Relaxed, Relaxed, next).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use signalbox_core::model::ENDS;

    use super::*;

    #[test]
    fn the_words_of_the_configuration_are_those_of_the_metrics() {
        use crate::datapath::relay::End as Flow;
        for end in Flow::ALL {
            assert_eq!(ENDS[End::Flow(end).index()], end.label());
        }
        assert_eq!(ENDS[End::Refused("no_route").index()], "refused");
    }

    #[test]
    fn a_tenth_is_a_tenth_and_all_is_all() {
        let drawn = |ppm| (0..100_000).filter(|&draw| is_drawn(draw, ppm)).count();
        assert_eq!((drawn(1_000_000), drawn(0)), (100_000, 0));
        assert!((9_700..10_300).contains(&drawn(100_000)), "{}", drawn(100_000));
        assert!((50..150).contains(&drawn(1000)), "{}", drawn(1000));
    }

    #[test]
    fn each_second_has_its_own_lines_whoever_asks() {
        let window = Window::default();
        let admitted = |second| {
            let asking = || (0..50).filter(|_| window.admits(second, 100)).count();
            std::thread::scope(|scope| {
                let asking: Vec<_> = (0..4).map(|_| scope.spawn(asking)).collect();
                asking.into_iter().map(|asking| asking.join().unwrap()).sum::<usize>()
            })
        };
        assert_eq!([admitted(7), admitted(8)], [100, 100]);
    }
}
