//! Examination of one entry of the flow table: counts its bytes, and ends the flow if it is time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use signalbox_common::cut::flow::{
    CutFlow, FAILURE_IS_COUNTED, HANDED_OFF, HEADER_UNACKED, IS_PEEKED, IS_REPLICA, LAST_REQUEST, RESET,
    RESET_TENTATIVE, RESYNC, SOCKETS_CLOSED, state,
};

use super::places::PlacedPort;
use super::{FlowGc, UNFINISHED_TTL, idle_for};
use crate::kernel::cut::table::duration_between;
use crate::state::outcome::{Direction, FlowEnd};

/// Time without packets after which the entry of an ended flow is freed, so that late packets still find it.
const ENDED_TTL: Duration = Duration::from_secs(1);

/// Same as [`ENDED_TTL`], for flows made by programs: these start more flows per second than there are ports.
const PEEKED_ENDED_TTL: Duration = Duration::from_millis(300);

/// Age at which a flow that a program has begun is forgotten if its host has not answered.
const PEEKED_TTL: Duration = Duration::from_secs(10);

/// Time that a host may take to acknowledge a PROXY header which nobody can send again.
const HEADER_TTL: Duration = Duration::from_secs(3);

/// Same as [`ENDED_TTL`], after a reset that may not have been accepted: an end that did not accept it answers at once.
const RESET_TTL: Duration = Duration::from_secs(5);

/// Time for which an entry is kept after userspace has reset the flow: late packets are dropped without an answer.
const CLOSING_TTL: Duration = Duration::from_secs(2);

/// Result of an entry's examination.
enum Fate {
    Stays,
    /// The entry is free already, or belongs to its worker again.
    IsFree,
    /// The entry is to be freed, without any further count.
    Gone,
    /// The entry's flow has ended: its counts are to be given back, and the entry freed.
    Ended(FlowEnd),
}

impl FlowGc {
    /// Updates a flow's counts, and ends the flow if it is time. Returns true if its entry is free, or is to be freed.
    pub(super) fn examine(
        &self,
        index: u32,
        now: u32,
        closing: &mut HashMap<u32, Instant>,
        gone: &mut Vec<(u32, PlacedPort)>,
    ) -> bool {
        let flow = self.cut.table.read(index);
        let fate = match flow.state {
            state::FREE => Fate::IsFree,
            state::CUT => self.examine_carried(index, &flow, now, closing),
            state::CLOSING => self.examine_closing(index, &flow, closing),
            state::SHADOW => {
                self.take_over(index, &flow);
                Fate::Stays
            }
            _ => self.examine_unfinished(index, &flow, duration_between(flow.started, now)),
        };
        match fate {
            Fate::Stays => return false,
            Fate::IsFree => return true,
            Fate::Gone => {}
            Fate::Ended(end) => self.release(index, &flow, end),
        }
        gone.push((index, self.port_of(&flow)));
        true
    }

    /// Examines a flow in its carried phase.
    fn examine_carried(&self, index: u32, flow: &CutFlow, now: u32, closing: &mut HashMap<u32, Instant>) -> Fate {
        let idle = idle_for(flow, now);
        if flow.marks & IS_PEEKED != 0 {
            self.count_peeked(index, flow);
        }
        if flow.marks & IS_REPLICA != 0 {
            if self.settle_replica(index, flow, idle) {
                return Fate::Gone;
            }
        } else if self.leave(index, flow) {
            return Fate::Stays;
        }
        self.count_bytes(index, flow);
        // A peer could not send the PROXY header again.
        let is_whole = flow.handoff_state == SOCKETS_CLOSED && flow.dirs[0].flags & HEADER_UNACKED == 0;
        if is_whole && !self.cut.table.announced.contains(index) {
            // Another process has cut it.
            self.cut.table.changes.add(index);
        }
        let flags = flow.dirs[0].flags | flow.dirs[1].flags;
        if flow.ended() {
            return self.examine_ended(index, flow, idle);
        }
        if self.lacks_header(index, flow, now) && self.owns(flow) {
            self.cut.reset_both(index, flow);
            closing.insert(index, Instant::now());
            self.release(index, flow, FlowEnd::Failed);
            return Fate::Stays;
        }
        if flags & RESET_TENTATIVE != 0 && idle >= RESET_TTL {
            return Fate::Ended(whose_reset(flow, RESET_TENTATIVE));
        }
        if flow.handoff_state >= HANDED_OFF && self.is_over_idle(flow, idle) && self.owns(flow) {
            self.cut.reset_both(index, flow);
            closing.insert(index, Instant::now());
            self.release(index, flow, FlowEnd::Idle);
        }
        Fate::Stays
    }

    /// Examines a flow that both ends have closed, or one has reset.
    fn examine_ended(&self, index: u32, flow: &CutFlow, idle: Duration) -> Fate {
        let end = end_of(flow);
        // The flow no longer loads its host, though its entry is kept for a while.
        self.release(index, flow, end);
        // The flow's sockets need the entry while they have bytes to deliver.
        let is_left = flow.handoff_state == SOCKETS_CLOSED || idle >= UNFINISHED_TTL;
        let ttl = if self.cut.table.is_of_programs(index) {
            PEEKED_ENDED_TTL
        } else {
            ENDED_TTL
        };
        if is_left && idle >= ttl {
            Fate::Ended(end)
        } else {
            Fate::Stays
        }
    }

    /// Examines a flow that userspace has reset.
    fn examine_closing(&self, index: u32, flow: &CutFlow, closing: &mut HashMap<u32, Instant>) -> Fate {
        let since = *closing.entry(index).or_insert_with(Instant::now);
        if since.elapsed() < CLOSING_TTL {
            // Sent again, because the first RST may have been lost, or its sequence number may have been outdated.
            self.cut.reset_both(index, flow);
            return Fate::Stays;
        }
        closing.remove(&index);
        Fate::Ended(FlowEnd::Failed)
    }

    /// Examines an entry that is not a flow yet, and may never become one.
    fn examine_unfinished(&self, index: u32, flow: &CutFlow, age: Duration) -> Fate {
        match flow.state {
            // A program has made it, and its connect has failed. Counted now, and freed below, later.
            state::INELIGIBLE if flow.marks & (IS_PEEKED | FAILURE_IS_COUNTED) == IS_PEEKED => {
                self.count_failure(index, flow);
                Fate::Stays
            }
            // A program has made it, its host is silent, and no client waits for it any more.
            _ if flow.marks & IS_PEEKED != 0 && age >= PEEKED_TTL && flow.state != state::ALLOCATED => {
                if self.forget_peeked(index, flow) {
                    Fate::IsFree
                } else {
                    Fate::Stays
                }
            }
            // Its client has given it up: it no longer loads its host.
            state::CONNECTING if flow.marks & IS_PEEKED != 0 && self.is_given_up(index, flow) => {
                self.give_counts_back(index, flow);
                Fate::Stays
            }
            // A program is filling in the entry, and will finish.
            state::ALLOCATED if self.cut.table.is_of_programs(index) => Fate::Stays,
            // The entry is being written.
            state::ALLOCATED if flow.marks & IS_REPLICA != 0 => Fate::Stays,
            // Its worker has it, unless that worker's process has ended.
            _ if age < UNFINISHED_TTL => Fate::Stays,
            state::HELD if self.cut.abandon_held(index) => Fate::Stays,
            state::HELD => {
                self.return_entries(vec![(index, self.port_of(flow))]);
                Fate::IsFree
            }
            // A worker may have claimed it, and begun a flow, just now.
            seen if self.cut.table.change_state(index, seen, state::FREE) => Fate::IsFree,
            _ => Fate::Stays,
        }
    }

    /// Whether the client of a program's flow has given it up. State and port are read again: a flow that its host has just
    /// accepted has given up its port, too, and one that goes to another host may have another port.
    fn is_given_up(&self, index: u32, flow: &CutFlow) -> bool {
        let is_given_back = !self.cut.pending.is_of(flow.ports_b as u16, index);
        is_given_back
            && self.cut.table.state(index) == state::CONNECTING
            && self.cut.table.read(index).ports_b == flow.ports_b
    }

    /// Whether the PROXY header of a flow was lost, and no program can send it again: another process's has made the flow.
    fn lacks_header(&self, index: u32, flow: &CutFlow, now: u32) -> bool {
        let is_unacked = flow.dirs[0].flags & HEADER_UNACKED != 0;
        let is_late = || duration_between(flow.started, now) >= HEADER_TTL;
        let is_known = || self.kernel_peek.get().is_some_and(|peek| peek.has_begun(index, flow));
        is_unacked && is_late() && !is_known()
    }

    /// Whether a flow has been idle too long: by its own limit, the limit of answers, that of its route, or the common
    /// one.
    fn is_over_idle(&self, flow: &CutFlow, idle: Duration) -> bool {
        if let Some(ticks) = flow.idle_limit() {
            return idle >= duration_between(0, ticks);
        }
        let snapshot = self.shared.snapshot.load();
        if flow.dirs[0].flags & LAST_REQUEST != 0 {
            let timeouts = &snapshot.model.timeouts.http;
            let has_answered = flow.dirs[1].bytes > 0 || flow.dirs[1].flags & RESYNC != 0;
            return idle >= if has_answered { timeouts.body } else { timeouts.answer };
        }
        let limits = &snapshot.idle_timeouts;
        // Names are looked up only for flows that may exceed their limit.
        if idle < limits.least {
            return false;
        }
        let name = (!limits.of_routes.is_empty())
            .then(|| self.registry.route_of(flow.route))
            .flatten();
        let own = name.and_then(|name| limits.of_routes.get(&name).copied());
        idle >= own.unwrap_or(limits.common)
    }

    /// Adds the bytes carried since the last call to the totals.
    pub(super) fn count_bytes(&self, index: u32, flow: &CutFlow) {
        let carried = [0, 1].map(|way: usize| {
            let way_now = &flow.dirs[way];
            let more = way_now.bytes.wrapping_sub(way_now.accounted);
            if more > 0 {
                self.cut.table.set_accounted(index, way, way_now.bytes);
            }
            more
        });
        if carried != [0, 0]
            && let Some((host, cluster)) = self.registry.host_of(flow.host)
        {
            host.bytes_in.add(carried[0]);
            host.bytes_out.add(carried[1]);
            cluster.bytes_in.add(carried[0]);
            cluster.bytes_out.add(carried[1]);
            if let Some(share) = self.registry.stats_of(flow.route, &cluster) {
                share.add_bytes(Direction::In, carried[0]);
                share.add_bytes(Direction::Out, carried[1]);
            }
        }
    }

    /// Whether a flow is in its carried phase, without any sign of its end.
    pub(super) fn is_live(&self, index: u32) -> bool {
        let flow = self.cut.table.read(index);
        let flags = flow.dirs[0].flags | flow.dirs[1].flags;
        let is_own = flow.state == state::CUT && flow.marks & IS_REPLICA == 0;
        is_own && !flow.ended() && flags & RESET_TENTATIVE == 0
    }
}

/// End of a flow that is over. A reset after both FINs was too late to take bytes from anybody.
fn end_of(flow: &CutFlow) -> FlowEnd {
    if flow.finished() {
        FlowEnd::Finished
    } else {
        whose_reset(flow, RESET)
    }
}

/// End of a flow that one side has reset, as `flag` of its direction shows.
fn whose_reset(flow: &CutFlow, flag: u32) -> FlowEnd {
    if flow.dirs[0].flags & flag != 0 {
        FlowEnd::ClientReset
    } else {
        FlowEnd::HostReset
    }
}

#[cfg(test)]
mod tests {
    use signalbox_common::cut::flow::PEER_FIN_ACKED;

    use super::*;

    #[test]
    fn a_reset_after_both_fins_is_no_reset_of_the_flow() {
        let end = |client, host| {
            let mut flow = CutFlow::default();
            [flow.dirs[0].flags, flow.dirs[1].flags] = [client, host];
            end_of(&flow)
        };
        assert_eq!(end(PEER_FIN_ACKED, PEER_FIN_ACKED), FlowEnd::Finished);
        for (client, host) in [(RESET, 0), (0, RESET), (RESET, RESET)] {
            assert_eq!(end(PEER_FIN_ACKED | client, PEER_FIN_ACKED | host), FlowEnd::Finished);
        }
        assert_eq!(end(RESET | PEER_FIN_ACKED, 0), FlowEnd::ClientReset);
        assert_eq!(end(PEER_FIN_ACKED, RESET), FlowEnd::HostReset);
    }
}
