//! The access log: a line of JSON for each ended or refused connection, if the configuration asks for it.
//!
//! Workers and the flow GC put records into a bounded queue and never wait. A thread turns them into lines and writes
//! these (`writer`). Records that exceed the limit, the queue or the disk are counted and left out.

mod line;
mod output;
mod writer;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use signalbox_common::hash;
use signalbox_common::peek::proxy::ConnectionId;
use signalbox_core::limits::stats::Counter;
use signalbox_core::model::{AccessLog as Settings, LogTarget, Tier};
use signalbox_core::wire::hostname::Hostname;

use super::entities::{ClusterState, HostState, ListenerState};

/// Maximum number of records that wait to be written: some 4 MiB.
const MAX_QUEUED: usize = 8192;

/// Data of a flow that the flow table does not hold, for the line at its end.
#[derive(Clone, Debug)]
pub struct FlowDetails {
    /// The true client: named by a PROXY header, otherwise the peer.
    pub client: SocketAddr,
    pub name: Option<Hostname>,
    /// Time that the successful connect to the host took.
    pub connect: Duration,
    /// Id in the PROXY header of the host.
    pub connection_id: Option<ConnectionId>,
    /// Time from the connection's accept to the flow's entry in the table.
    pub setup: Duration,
    /// Request, where requests are routed one by one.
    pub request: Option<RequestLine>,
}

/// A connection that has ended or been refused.
#[derive(Debug)]
pub struct ConnectionRecord {
    /// Time of the end, in milliseconds since 1970.
    pub at_ms: u64,
    pub client: SocketAddr,
    /// Local address that the client connected to.
    pub local: SocketAddr,
    pub listener: Option<Arc<ListenerState>>,
    /// Protocol that the client speaks: the listener's, or `https` where its TLS ends here.
    pub protocol: Option<&'static str>,
    pub name: Option<Hostname>,
    pub route: Option<Box<str>>,
    pub host: Option<(Arc<HostState>, Arc<ClusterState>)>,
    pub backend: Option<SocketAddr>,
    pub tier: Option<Tier>,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub duration: Duration,
    pub connect: Option<Duration>,
    /// Id in the PROXY header of the host.
    pub connection_id: Option<ConnectionId>,
    pub end: ConnectionEnd,
    /// Side that finished first, if known: `client` or `host`.
    pub closed_by: Option<&'static str>,
    /// Request, where requests are routed one by one.
    pub request: Option<RequestLine>,
}

/// Request and its answer, as logged.
#[derive(Clone, Debug)]
pub struct RequestLine {
    pub method: String,
    /// Target as the client wrote it, up to a limit.
    pub target: String,
    pub id: Option<Box<str>>,
    pub is_tls: bool,
    /// Status code that the client got; `None`: no answer.
    pub status: std::cell::Cell<Option<u16>>,
}

/// Reason why a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    Flow(crate::state::outcome::FlowEnd),
    /// Refusal, with the metric label of its reason.
    Refused(&'static str),
}

impl ConnectionEnd {
    /// Index of the reason in [`signalbox_core::model::END_LABELS`].
    const fn index(self) -> usize {
        match self {
            Self::Flow(end) => end as usize,
            Self::Refused(_) => crate::state::outcome::FlowEnd::ALL.len(),
        }
    }
}

/// Key of a flow of the flow table: its index, and the tick at which it began.
pub type FlowKey = (u32, u32);

enum LogMessage {
    /// A flow has been cut and continues without sockets: data for the line at its end.
    Cut(FlowKey, Box<FlowDetails>),
    Ended(Box<ConnectionRecord>, Option<FlowKey>),
    /// Answered when everything before it has been written.
    Flush(SyncSender<()>),
}

/// Reason why a line was not written.
#[derive(Clone, Copy, Debug)]
pub enum DropReason {
    /// More lines per second than configured.
    Rate,
    /// The queue was full: the writer is too slow.
    Queue,
    /// The file could not be opened or written.
    Write,
}

impl DropReason {
    /// Metric labels, in the order of the variants.
    pub const LABELS: [&'static str; 3] = ["rate", "queue", "write"];
}

/// State of the access log that all threads share.
#[derive(Default)]
pub struct AccessLog {
    settings: ArcSwapOption<Settings>,
    queue: OnceLock<SyncSender<LogMessage>>,
    /// Counter that numbers the draws for the sample.
    samples: Counter,
    rate_window: RateWindow,
    /// Counter of requests to reopen the file. `opened` is the last request that the writer has fulfilled.
    reopen_requested: AtomicU64,
    reopen_done: AtomicU64,
    /// Current error of the file.
    error: Mutex<Option<String>>,
    pub written: Counter,
    dropped: [Counter; DropReason::LABELS.len()],
}

impl AccessLog {
    /// Applies new settings. Waiting records go to the new file.
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
                .name("access-log".into())
                .spawn(move || writer::run(&log, &inbox));
            match spawned {
                Ok(_) => {
                    let _ = self.queue.set(sender);
                }
                Err(error) => {
                    tracing::error!(%error, "The thread of the access log could not be started: no connection is \
                                             logged.");
                }
            }
        }
    }

    /// Returns whether the log is on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.settings.load().is_some()
    }

    /// Returns the target that lines are written to.
    #[must_use]
    pub fn target(&self) -> Option<LogTarget> {
        self.settings.load().as_ref().map(|settings| settings.to.clone())
    }

    /// Keeps data of a cut flow, for the line at its end.
    pub fn keep_details(&self, key: FlowKey, details: FlowDetails) {
        // If the queue is full, the line at the flow's end will have less data.
        if let Some(queue) = self.queue.get() {
            let _ = queue.try_send(LogMessage::Cut(key, Box::new(details)));
        }
    }

    /// Logs the end of a connection, if the settings select it and the limit allows it. `key` is given for flows in the
    /// flow table.
    pub fn log_end(&self, end: ConnectionEnd, key: Option<FlowKey>, record: impl FnOnce() -> ConnectionRecord) {
        let settings = self.settings.load();
        let (Some(settings), Some(queue)) = (settings.as_ref(), self.queue.get()) else {
            return;
        };
        if !settings.only.contains(end.index()) || !is_sampled(self.samples.ticket(), settings.sample_ppm) {
            return;
        }
        let second = crate::sys::unix_ms() / 1000;
        if !self.rate_window.admits(second, settings.max_per_second) {
            return self.count_dropped(DropReason::Rate, 1);
        }
        if queue.try_send(LogMessage::Ended(Box::new(record()), key)).is_err() {
            self.count_dropped(DropReason::Queue, 1);
        }
    }

    fn count_dropped(&self, why: DropReason, count: u64) {
        self.dropped[why as usize].add(count);
    }

    /// Returns the number of lines that were not written, by reason.
    #[must_use]
    pub fn dropped(&self) -> Vec<(&'static str, u64)> {
        let counts = self.dropped.iter().map(Counter::get);
        DropReason::LABELS.into_iter().zip(counts).collect()
    }

    /// Requests that the file is closed and opened again by its name, because it has been renamed. Returns the
    /// request's number.
    pub fn reopen(&self) -> u64 {
        self.reopen_requested.fetch_add(1, Relaxed) + 1
    }

    /// Returns whether a request to reopen the file has been fulfilled.
    #[must_use]
    pub fn has_reopened(&self, wish: u64) -> bool {
        self.reopen_done.load(Relaxed) >= wish
    }

    /// Returns the current error of the file.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        self.error.lock().clone()
    }

    /// Waits until all records so far are written, at most for `limit`. Called when the process ends.
    pub fn flush(&self, limit: Duration) {
        let Some(queue) = self.queue.get() else { return };
        let until = Instant::now() + limit;
        let (done, written) = sync_channel(1);
        while queue.try_send(LogMessage::Flush(done.clone())).is_err() {
            if Instant::now() >= until {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = written.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

/// Returns whether a draw is among `ppm` in a million.
fn is_sampled(draw: u64, ppm: u32) -> bool {
    // The upper half of the bits, spread over a million.
    ((hash::mix(draw) >> 32) * 1_000_000) >> 32 < u64::from(ppm)
}

/// Lines admitted in the current second: the second in the upper half, the number in the lower.
#[derive(Debug, Default)]
struct RateWindow(AtomicU64);

impl RateWindow {
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
    use signalbox_core::model::END_LABELS;

    use super::*;

    #[test]
    fn the_words_of_the_configuration_are_those_of_the_metrics() {
        use crate::state::outcome::FlowEnd as Flow;
        for end in Flow::ALL {
            assert_eq!(END_LABELS[ConnectionEnd::Flow(end).index()], end.label());
        }
        assert_eq!(END_LABELS[ConnectionEnd::Refused("no_route").index()], "refused");
    }

    #[test]
    fn a_tenth_is_a_tenth_and_all_is_all() {
        let drawn = |ppm| (0..100_000).filter(|&draw| is_sampled(draw, ppm)).count();
        assert_eq!((drawn(1_000_000), drawn(0)), (100_000, 0));
        assert!((9_700..10_300).contains(&drawn(100_000)), "{}", drawn(100_000));
        assert!((50..150).contains(&drawn(1000)), "{}", drawn(1000));
    }

    #[test]
    fn each_second_has_its_own_lines_whoever_asks() {
        let window = RateWindow::default();
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
