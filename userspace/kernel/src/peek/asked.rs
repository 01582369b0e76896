//! Connections that wait for their host's SYN-ACK: the SYN is sent again, or to another host.

use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};

use signalbox_common::cut::PendingFlow;
use signalbox_common::cut::flow::{IS_PEEKED, OFFERED_SACK, OFFERED_SCALE, OFFERED_TIMESTAMPS, ineligible, state};
use signalbox_common::net::Tuple;
use signalbox_common::net::header::SYN;
use signalbox_common::peek::abi::{AWAY_TICKS, PEEK_ASKED_KEPT, PEEK_ASKED_PER_CPU, PeekHost, PeekPending, counted};
use signalbox_common::peek::cookie;

use super::Peek;
use crate::address::from_words;
use crate::cut::Cut;
use crate::cut::segment::{Segment, syn_options};
use crate::cut::table::{clock, monotonic_ms, tick};

/// Window of a SYN to a host, as the program writes it.
const SYN_WINDOW: u16 = 64_240;

/// Ports that are tried for a connection to another host.
const MAX_PORTS_TRIED: u32 = 16;

/// The rings of flows whose hosts were sent a SYN, or have refused: map `PEEK_ASKED`.
pub struct AskedFlows {
    ring: &'static [AtomicU64],
    /// Number of flows of each CPU's ring that were read, or missed.
    read: Vec<u32>,
}

impl AskedFlows {
    fn new(ring: &'static [AtomicU64]) -> Self {
        Self {
            ring,
            read: vec![0; ring.len() / PEEK_ASKED_PER_CPU as usize],
        }
    }

    /// Takes the flows that have come since, with the tick at which each began. Flows that were overwritten are missed.
    pub fn drain(&mut self, mut each: impl FnMut(u32, u32)) {
        let rings = self.ring.chunks(PEEK_ASKED_PER_CPU as usize);
        for (ring, read) in rings.zip(&mut self.read) {
            let Some((count, kept)) = ring.split_first() else {
                continue;
            };
            let count = count.load(Acquire) as u32;
            let fresh = count.wrapping_sub(*read).min(PEEK_ASKED_KEPT);
            for number in (0..fresh).map(|n| count.wrapping_sub(fresh - n)) {
                let asked = kept[(number % PEEK_ASKED_KEPT) as usize].load(Relaxed);
                each(asked as u32, (asked >> 32) as u32);
            }
            *read = count;
        }
    }
}

/// A flow of the program that waits for its host.
pub struct WaitingFlow {
    index: u32,
    pub flow: PendingFlow,
    pending: PeekPending,
}

/// Outcome of an attempt to send a connection to another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redispatch {
    /// The other host is asked. The connection counts for it if it has counted for the first one: in this word of
    /// `PEEK_COUNTS`.
    Done { former_count: Option<u32> },
    /// The first host has just answered, or the client has given up.
    Over,
    /// All ports that were tried are in use.
    NoPort,
}

impl WaitingFlow {
    /// Whether the host has refused the connection.
    #[must_use]
    pub const fn is_refused(&self) -> bool {
        self.flow.ineligible == ineligible::REFUSED
    }

    /// Element of `PEEK_HOSTS` of the host that the flow waits for.
    #[must_use]
    pub const fn host(&self) -> u32 {
        self.pending.host
    }

    /// Sends the flow's SYN to its host, with the options that the program writes.
    pub fn send_syn(&self) -> io::Result<()> {
        let flow = &self.flow;
        let has = |bit: u8| flow.agreed & u32::from(bit) != 0;
        let segment = Segment {
            from: SocketAddr::new(from_words(flow.local), flow.ports_b as u16),
            to: SocketAddr::new(from_words(flow.host_addr), (flow.ports_b >> 16) as u16),
            seq: flow.isn_b.wrapping_sub(1),
            ack: 0,
            flags: SYN,
            window: SYN_WINDOW,
            options: syn_options(
                self.pending.mss.min(flow.mss_vip),
                has(OFFERED_SCALE).then_some(flow.scale_b & 15),
                has(OFFERED_SACK),
                has(OFFERED_TIMESTAMPS).then(|| flow.ts_clock_b.wrapping_add(monotonic_ms())),
            ),
        };
        segment.send()
    }
}

impl Peek {
    /// Returns the reader of the rings. There must be only one.
    #[must_use]
    pub fn asked_flows(&self) -> AskedFlows {
        AskedFlows::new(self.asked)
    }

    /// Returns a flow that began at a tick, if it still waits for its host.
    #[must_use]
    pub fn waiting(&self, cut: &Cut, index: u32, started: u32) -> Option<WaitingFlow> {
        let is_waiting = |flow: &PendingFlow| {
            flow.state == state::CONNECTING && flow.started == started && flow.marks & IS_PEEKED != 0
        };
        let flow = Some(cut.table.read_pending(index)).filter(is_waiting)?;
        let pending: PeekPending = self.pending.get(&flow.tuple(0)).ok().flatten()?;
        // A host that has sent a challenge is asked again by the program.
        (pending.flow == index && pending.challenged == 0).then_some(WaitingFlow { index, flow, pending })
    }

    /// Gives up a flow whose host has refused it: the client's data begins another one when it is repeated.
    pub fn give_up(&self, cut: &Cut, waiting: &WaitingFlow) {
        let flow = &waiting.flow;
        if cut
            .table
            .change_state(waiting.index, state::CONNECTING, state::INELIGIBLE)
        {
            if let Err(error) = self.pending.delete(&flow.tuple(0)) {
                tracing::debug!(%error, "A connection that waits for its host could not be given up.");
            }
            cut.pending.give_back_of(flow.ports_b as u16, waiting.index);
        }
    }

    /// Whether a host was found not to answer, or refuses connections.
    #[must_use]
    pub fn is_away(&self, host: u32) -> bool {
        // SAFETY: aligned, within the mapping; programs write each number whole.
        unsafe { self.hosts.at(host).read_volatile() }.is_away(tick())
    }

    /// Whether a host's options do not agree with clients', as far as is known.
    #[must_use]
    pub fn is_unfit(&self, host: u32) -> bool {
        // SAFETY: as above.
        !unsafe { self.hosts.at(host).read_volatile() }.is_fit(tick())
    }

    /// Has new connections go to other hosts than this one for a second.
    pub fn set_away(&self, host: u32) {
        // SAFETY: as above.
        let away_until = unsafe { AtomicU32::from_ptr(ptr::addr_of_mut!((*self.hosts.at(host)).away_until)) };
        away_until.store(PeekHost::until(tick(), AWAY_TICKS), Relaxed);
    }

    /// Sends a connection that waits for its host to another one: element `host` of `PEEK_HOSTS`, from a source address, and
    /// from one of `ports`. The first host resets its half of the connection when it answers after all.
    pub fn redispatch(
        &self,
        cut: &Cut,
        waiting: &WaitingFlow,
        (element, local): (u32, [u32; 4]),
        (ports, nodes): (RangeInclusive<u16>, u32),
    ) -> Redispatch {
        // SAFETY: as above.
        let host = unsafe { self.hosts.at(element).read_volatile() };
        let tuple = |port: u32| Tuple {
            source: host.address,
            destination: local,
            ports: host.port << 16 | port,
        };
        let (index, client, former) = (waiting.index, waiting.flow.tuple(0), waiting.flow.ports_b & 0xffff);
        let give_back = |port: u32| port == former || cut.pending.give_back_of(port as u16, index);
        let is_usable = |port: &u32| {
            let is_taken = *port == former || cut.pending.take(*port as u16, index);
            let is_usable = is_taken && cut.is_free(&tuple(*port));
            if is_taken && !is_usable {
                give_back(*port);
            }
            is_usable
        };
        let Some(port) = ports_from(former, ports, nodes).find(is_usable) else {
            return Redispatch::NoPort;
        };
        // From here on the host's answer, and its refusal, find the flow in another state.
        if !cut.table.change_state(index, state::CONNECTING, state::ALLOCATED) {
            give_back(port);
            return Redispatch::Over;
        }
        // Read again: the client may have repeated its data, or given up.
        let current = self.pending.get::<Tuple, PeekPending>(&client).ok().flatten();
        let is_same = |pending: &PeekPending| {
            let of = |pending: &PeekPending| (pending.flow, pending.seq, pending.port, pending.host);
            of(pending) == of(&waiting.pending)
        };
        let moved = current.filter(is_same).map(|pending| PeekPending {
            host: element,
            port,
            asked: micros(),
            ..pending
        });
        let Some(moved) = moved.filter(|moved| self.pending.replace(&client, moved).is_ok()) else {
            cut.table.change_state(index, state::ALLOCATED, state::CONNECTING);
            give_back(port);
            return Redispatch::Over;
        };
        let arriving = tuple(port);
        let mut flow = waiting.flow;
        flow.ports_b = arriving.ports;
        flow.ts_clock_b = cookie::hash(&self.key, &arriving, 0, true).clock();
        flow.isn_b = cookie::initial_number(&self.key, &arriving, clock());
        flow.host = host.number;
        flow.ineligible = 0;
        flow.local = local;
        flow.host_addr = host.address;
        flow.dirs[0].hop_ifindex = if host.hop_ifindex == 0 {
            host.ifindex
        } else {
            host.hop_ifindex
        };
        flow.dirs[0].macs = host.macs;
        // The next packet looks the way up.
        flow.dirs[0].hop_expires = tick();
        let former_count = self.count_for(index, flow.started, host.count);
        cut.table.ask(index, &flow);
        if port != former {
            cut.pending.give_back_of(former as u16, index);
        }
        let asked = WaitingFlow {
            index,
            flow,
            pending: moved,
        };
        // Whatever becomes of the SYN, the connection is the other host's now.
        if let Err(error) = asked.send_syn() {
            tracing::debug!(%error, "A SYN to another host could not be sent.");
        }
        Redispatch::Done { former_count }
    }

    /// Has a flow count for another host from now on: the one of a word of `PEEK_COUNTS`. Returns the word of the former one;
    /// `None` where the flow counts for none.
    fn count_for(&self, flow: u32, started: u32, word: u32) -> Option<u32> {
        let about = self.about_of(flow)?;
        // SAFETY: aligned, within the mapping; the caller alone changes the element of a flow that it has claimed.
        unsafe {
            if (&raw const (*about).started).read_volatile() != started {
                return None;
            }
            let is_counted = AtomicU32::from_ptr(&raw mut (*about).counted).load(Relaxed) & counted::BY_HOST != 0;
            is_counted.then(|| AtomicU32::from_ptr(&raw mut (*about).count).swap(word, Relaxed))
        }
    }
}

/// Ports to try: the one in use first. Each has the same remainder by the number of nodes that divide the ports.
fn ports_from(first: u32, ports: RangeInclusive<u16>, nodes: u32) -> impl Iterator<Item = u32> {
    /// Connections that were made together have ports next to each other.
    const STRIDE: u32 = 37;
    let (low, high, nodes) = (u32::from(*ports.start()), u32::from(*ports.end()), nodes.max(1));
    let whole = (high + 1 - low) / nodes * nodes;
    let at = move |step: u32| low + (first.saturating_sub(low) + step * nodes * STRIDE) % whole.max(1);
    (0..MAX_PORTS_TRIED).map(move |step| if step == 0 { first } else { at(step) })
}

/// The clock of [`PeekPending::asked`]: `CLOCK_MONOTONIC` in units of 1024 ns.
fn micros() -> u32 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    now.map_or(0, |now| {
        ((now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64) >> 10) as u32
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_port_is_one_of_the_programs_and_of_the_same_node() {
        for nodes in [1, 2, 3, 7] {
            let tried: Vec<_> = ports_from(20_123, 16_384..=28_671, nodes).collect();
            assert_eq!((tried.len(), tried[0]), (MAX_PORTS_TRIED as usize, 20_123));
            let distinct: std::collections::HashSet<_> = tried.iter().collect();
            assert_eq!(distinct.len(), tried.len(), "{nodes}");
            let is_right = |port: &u32| (16_384..=28_671).contains(port);
            assert!(tried.iter().all(is_right), "{tried:?}");
            let remainder = |port: &u32| (port - 16_384) % nodes;
            assert!(tried.iter().all(|port| remainder(port) == remainder(&tried[0])));
        }
    }

    #[test]
    fn rings_give_each_flow_once_and_the_last_ones_after_an_overrun() {
        let ring: &'static [AtomicU64] = Vec::leak((0..2 * PEEK_ASKED_PER_CPU).map(|_| AtomicU64::new(0)).collect());
        let mut asked = AskedFlows::new(ring);
        let mut written = 5000;
        asked.read[1] = written;
        ring[PEEK_ASKED_PER_CPU as usize].store(written.into(), Relaxed);
        let mut expected = written;
        for more in [
            0,
            3,
            500,
            PEEK_ASKED_KEPT,
            1,
            PEEK_ASKED_KEPT + 1,
            7,
            3 * PEEK_ASKED_PER_CPU,
            2,
        ] {
            for _ in 0..more {
                let place = PEEK_ASKED_PER_CPU + 1 + written % PEEK_ASKED_KEPT;
                ring[place as usize].store(u64::from(written) | 7 << 32, Relaxed);
                written = written.wrapping_add(1);
                ring[PEEK_ASKED_PER_CPU as usize].store(written.into(), Relaxed);
            }
            let missed = more.saturating_sub(PEEK_ASKED_KEPT);
            expected = expected.wrapping_add(missed);
            asked.drain(|flow, started| {
                assert_eq!((flow, started), (expected, 7));
                expected = expected.wrapping_add(1);
            });
            assert_eq!(expected, written);
        }
    }
}
