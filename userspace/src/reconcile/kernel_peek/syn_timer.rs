//! The SYN timer of connections that the program has routed: a host that does not answer soon is asked again, and then
//! another host of its cluster is, which is asked at once where the host refuses. Otherwise a client would wait until it
//! repeats its data, 200 ms at the least.

mod other_host;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use signalbox_common::cut::flow::{ineligible, state};
use signalbox_core::limits::connect_retry::{ConnectTimes, MAX_RETRY_TIMEOUT, MIN_RETRY_TIMEOUT};

use super::{KernelPeek, program_ports};
use crate::datapath::report::{FailedConnect, Reports, note_failed_connect};
use crate::kernel::cut::table::{duration_between, tick, ticks_of};
use crate::kernel::peek::{AskedFlows, Redispatch, WaitingFlow};
use crate::state::{ClusterState, HostState};
use crate::sys;
use other_host::{Choice, OtherHost};

/// Interval of looks at the flows that wait, and where none has begun lately.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// See [`LOOK_INTERVAL`].
const IDLE_LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Looks without a new flow after which none has begun lately.
const MAX_EMPTY_LOOKS: u32 = 200;

/// Flows that are watched at once; further ones are left to their clients' repetitions.
const MAX_WATCHED: usize = 16_384;

/// Most hosts that one connection leaves.
const MAX_REDISPATCHES: u8 = 3;

/// Time after which a flow is left to its client's repetitions.
const WATCH_TIMEOUT: Duration = Duration::from_millis(600);

/// A flow whose host was sent a SYN.
struct Watched {
    /// Tick at which the flow began: whether the entry is still this flow's.
    started: u32,
    /// Ticks at which the present host was asked first, and last.
    asked: u32,
    /// See `asked`.
    sent: u32,
    /// Ticks after `sent` for which nothing is to be done.
    rests: u32,
    /// SYNs that this timer has sent to the present host.
    repeated: u8,
    /// Hosts that the connection has left.
    redispatched: u8,
}

impl Watched {
    /// A flow that began at a tick, and whose SYN counts as sent at another one.
    fn new(started: u32, sent: u32) -> Self {
        Self {
            started,
            asked: sent,
            sent,
            rests: ticks_of(MIN_RETRY_TIMEOUT),
            repeated: 0,
            redispatched: 0,
        }
    }

    /// Another host is asked now.
    fn go_on(&mut self, now: u32) {
        *self = Self {
            redispatched: self.redispatched + 1,
            ..Self::new(self.started, now)
        };
    }
}

struct SynTimer {
    kernel_peek: Arc<KernelPeek>,
    reports: Reports,
    asked: AskedFlows,
    /// By their entries of the flow table.
    watched: HashMap<u32, Watched>,
    /// Tick of the last look.
    looked: u32,
}

/// Starts the thread, which ends when the program is stopped.
pub(super) fn start(kernel_peek: &Arc<KernelPeek>, reports: Reports) -> std::io::Result<()> {
    let mut timer = SynTimer {
        kernel_peek: Arc::clone(kernel_peek),
        reports,
        asked: kernel_peek.peek.asked_flows(),
        watched: HashMap::new(),
        looked: tick(),
    };
    let run = move || {
        // Clients wait for it.
        sys::set_nice(0);
        let mut empty = 0;
        while !timer.kernel_peek.stopping.load(Relaxed) {
            empty = if timer.look() { 0 } else { empty + 1 };
            thread::sleep(if empty < MAX_EMPTY_LOOKS {
                LOOK_INTERVAL
            } else {
                IDLE_LOOK_INTERVAL
            });
        }
    };
    thread::Builder::new().name("syn-timer".into()).spawn(run).map(drop)
}

impl SynTimer {
    /// Looks at the flows that wait. Returns whether there are any, or new ones.
    fn look(&mut self) -> bool {
        let now = tick();
        let since = std::mem::replace(&mut self.looked, now);
        // A machine that has stood still has not heard its hosts either.
        let late = now.wrapping_sub(since).saturating_sub(2 * ticks_of(IDLE_LOOK_INTERVAL));
        let (asked, watched) = (&mut self.asked, &mut self.watched);
        for flow in watched.values_mut() {
            flow.sent = flow.sent.wrapping_add(late);
        }
        let mut has_new = false;
        asked.drain(|index, started| {
            has_new = true;
            // Of a host's refusal it is told once more.
            let is_known = watched.get(&index).is_some_and(|known| known.started == started);
            if !is_known && watched.len() < MAX_WATCHED {
                watched.insert(index, Watched::new(started, if late == 0 { started } else { now }));
            }
        });
        let mut watched = std::mem::take(&mut self.watched);
        watched.retain(|index, flow| self.attend_to(*index, flow, now));
        self.watched = watched;
        has_new || !self.watched.is_empty()
    }

    /// Asks a flow's host again, or another one, if it is time. False once the flow needs no attention any more.
    fn attend_to(&mut self, index: u32, watched: &mut Watched, now: u32) -> bool {
        let (peek, cut) = (&self.kernel_peek.peek, &self.kernel_peek.cut);
        match cut.table.state(index) {
            state::CONNECTING => {}
            // Its host has answered, or refused: it may be found to wait still.
            state::PAIRING => return true,
            _ => return false,
        }
        // Programs read a finer clock: they may have sent it later than `now`.
        let rested = ticks_of(duration_between(watched.sent, now));
        if rested < watched.rests && cut.table.ineligible(index) != ineligible::REFUSED {
            return true;
        }
        let Some(waiting) = peek.waiting(cut, index, watched.started) else {
            return false;
        };
        let Some((host, cluster)) = self.kernel_peek.registry.host_of(waiting.flow.host) else {
            return false;
        };
        let may_leave = watched.redispatched < MAX_REDISPATCHES;
        if waiting.is_refused() {
            if may_leave && self.leave_refusing(&waiting, &host, &cluster) {
                watched.go_on(now);
                return true;
            }
            self.kernel_peek.peek.give_up(&self.kernel_peek.cut, &waiting);
            return false;
        }
        // From the second repetition on, each rest is twice as long.
        let rests = self.retry_after(&host) * (1 << watched.repeated.saturating_sub(1).min(8));
        watched.rests = ticks_of(rests).max(1);
        if rested < watched.rests {
            return duration_between(watched.started, now) < WATCH_TIMEOUT;
        }
        let is_silent = watched.repeated > 0 || peek.is_away(waiting.host());
        if is_silent && may_leave && self.leave_silent(&waiting, watched.asked, (&host, &cluster)) {
            watched.go_on(now);
            return true;
        }
        watched.repeated += 1;
        watched.sent = now;
        cluster.connect_retries.inc();
        if let Err(error) = waiting.send_syn() {
            tracing::debug!(%error, "A SYN to a host could not be repeated.");
        }
        true
    }

    /// Sends a connection that its host has refused to another one. False where there is none that takes it.
    fn leave_refusing(&self, waiting: &WaitingFlow, host: &Arc<HostState>, cluster: &Arc<ClusterState>) -> bool {
        let Some(written) = self.kernel_peek.state.try_lock() else {
            return false;
        };
        let choice = Choice::new(&self.kernel_peek, &written, waiting, (host, cluster));
        let Some(other) = choice.and_then(|choice| choice.other_host()) else {
            return false;
        };
        let done = self.redispatch(waiting, (host, cluster), &other);
        if matches!(done, Redispatch::Done { .. }) {
            let route = self.kernel_peek.route_of(waiting);
            note_failed_connect(&self.reports, (host, cluster), route.as_deref(), FailedConnect::Refused);
        }
        done != Redispatch::NoPort
    }

    /// Sends a connection whose host has not answered since a tick to another one. False where it stays, also while the tables
    /// are being written, which takes longer the more names there are.
    fn leave_silent(
        &mut self,
        waiting: &WaitingFlow,
        asked: u32,
        (host, cluster): (&Arc<HostState>, &Arc<ClusterState>),
    ) -> bool {
        let kernel_peek = Arc::clone(&self.kernel_peek);
        let Some(written) = kernel_peek.state.try_lock() else {
            return false;
        };
        let choice = Choice::new(&kernel_peek, &written, waiting, (host, cluster));
        let choice = choice.filter(|choice| !choice.are_most_silent());
        let Some(other) = choice.and_then(|choice| choice.other_host()) else {
            return false;
        };
        if !cluster.may_redispatch() {
            cluster.leave_host(&other.state);
            return false;
        }
        let done = self.redispatch(waiting, (host, cluster), &other);
        // A host that has accepted others since has only lost this connection's SYNs.
        if !host.has_accepted_since(asked) && matches!(done, Redispatch::Done { .. }) {
            kernel_peek.peek.set_away(waiting.host());
            cluster.note_silent(host);
            let route = self.kernel_peek.route_of(waiting);
            note_failed_connect(&self.reports, (host, cluster), route.as_deref(), FailedConnect::Silent);
        }
        done != Redispatch::NoPort
    }

    /// Time after which a host is asked again. A host of which nothing is known is as far as the farthest of its cluster.
    fn retry_after(&self, host: &HostState) -> Duration {
        let of = |host: &HostState| {
            let checked = || host.handshake.round_trip().map(ConnectTimes::first_retry_after);
            host.connect_times.retry_after().or_else(checked)
        };
        of(host).unwrap_or_else(|| {
            let snapshot = self.kernel_peek.shared.snapshot.load();
            let hosts = snapshot.hosts.iter().flatten();
            let of_cluster = hosts.filter(|other| other.cluster == host.cluster);
            of_cluster
                .filter_map(|host| of(host))
                .max()
                .unwrap_or(MAX_RETRY_TIMEOUT)
        })
    }

    /// Sends a connection to another host. The caller holds the tables' lock, for which the end of the process waits: it must
    /// not come between two states of the flow.
    fn redispatch(
        &self,
        waiting: &WaitingFlow,
        (from, cluster): (&Arc<HostState>, &Arc<ClusterState>),
        other: &OtherHost,
    ) -> Redispatch {
        let (peek, cut) = (&self.kernel_peek.peek, &self.kernel_peek.cut);
        let ports = program_ports().filter(|_| !self.kernel_peek.stopping.load(Relaxed));
        let done = ports.map_or(Redispatch::NoPort, |ports| {
            peek.redispatch(cut, waiting, (other.element, other.local), (ports, other.nodes))
        });
        match done {
            Redispatch::Done {
                former_count: Some(word),
            } if from.active.word() == Some(word) => cluster.leave_host(from),
            // That of a former state of the host, which has left the configuration and come back.
            Redispatch::Done {
                former_count: Some(word),
            } => self.kernel_peek.shared.limits.words.leave(word),
            _ => cluster.leave_host(&other.state),
        }
        if matches!(done, Redispatch::Done { .. }) {
            cluster.redispatches.inc();
        }
        done
    }
}
