//! Ends of connections. One that was never established gives back its flow, its port and its waiting data. One that has
//! ended gives back its tuples, and its flow where userspace is dead.

use signalbox_common::{
    cut::{
        CutFlow, DirState, PendingFlow,
        flow::{IS_PEEKED, SOCKETS_CLOSED, state},
    },
    net::{Tuple, atomic},
    peek::abi::{NO_FLOW, PeekConfig, PeekPending},
};

use super::{
    maps::{CUT_CT, CUT_FLOWS, PEEK_HOSTS, PEEK_PENDING, about, notify, release_port},
    settings::config,
};
use crate::cut::skb::tick;

/// Ticks for which a host that has refused a connection gets no other: about a second.
pub const REFUSED_TICKS: u32 = 950;
/// Ticks for which a host whose options do not agree gets no other connection: ten seconds.
pub const UNFIT_TICKS: u32 = 9540;

/// Gives up a flow that waits for its host: no packet finds it any more by its port. Its entry is left to the flow GC,
/// because another CPU may be completing it at this moment.
#[inline(always)]
pub fn give_up(client: &Tuple, pending: &PeekPending) {
    if pending.flow != NO_FLOW {
        release_port(pending.port, pending.flow);
    }
    let _ = PEEK_PENDING.remove(client);
}

/// Records in a flow that waits for its host why the host does not carry it; userspace counts that.
#[inline(always)]
pub fn note_failure(flow: &mut PendingFlow, index: u32, why: u8) {
    flow.ineligible = why;
    // Not where another CPU has just completed it.
    if atomic::exchange(&mut flow.state, state::CONNECTING, state::INELIGIBLE) {
        notify(index, 0);
    }
}

/// Sends a host no connections for a while.
#[inline(always)]
pub fn set_aside(host: u32, ticks: u32) {
    if let Some(host) = PEEK_HOSTS.get_ptr_mut(host) {
        // SAFETY: an element of the array; each number is written whole, and a lost count does no harm.
        unsafe {
            (*host).refused = (*host).refused.wrapping_add(1);
            (*host).unfit_until = tick().wrapping_add(ticks) | 1;
        }
    }
}

/// Gives up the connection that waits for a client's tuple.
#[inline(never)]
pub fn give_up_waiting(client: &Tuple) -> u32 {
    // SAFETY: the value is copied at once.
    match unsafe { PEEK_PENDING.get(client) }.copied() {
        Some(pending) => {
            give_up(client, &pending);
            1
        }
        None => 0,
    }
}

/// Ticks without packets after which an ended flow gives up its tuples: late packets still find it until then.
const ENDED_TICKS: u32 = 286;

/// Gives the tuples of a program's flow that has ended to another connection. Also frees its entry while userspace,
/// which does so otherwise, is dead. The entry of a flow that userspace has counted is left to userspace, which may
/// only have paused.
#[inline(never)]
pub fn reclaim(index: u32) {
    let (Some(flow), Some(config)) = (CUT_FLOWS.get_ptr_mut(index), config()) else {
        return;
    };
    // SAFETY: an element of the array, each field of which is read or written whole.
    let flow = unsafe { &mut *flow };
    let now = tick();
    let is_silent = |way: &DirState| now.wrapping_sub(way.last_seen) >= ENDED_TICKS;
    let is_ours = flow.marks & IS_PEEKED != 0 && flow.state == state::CUT;
    let is_over = is_ours && flow.handoff_state == SOCKETS_CLOSED && flow.ended();
    if !is_over || !is_silent(&flow.dirs[0]) || !is_silent(&flow.dirs[1]) {
        return;
    }
    if flow.dirs[0].supersede() {
        let _ = CUT_CT.remove(&flow.tuple(0));
    }
    if flow.dirs[1].supersede() {
        let _ = CUT_CT.remove(&flow.tuple(1));
    }
    // Userspace changes the marks where it counts the flow.
    if flow.marks == IS_PEEKED && config.is_orphaned(now) {
        free(flow, config, index);
    }
}

/// Frees the entry of a flow that userspace does not know. One that counts for a host or a limit is left to userspace.
#[inline(always)]
fn free(flow: &mut CutFlow, config: &PeekConfig, index: u32) {
    // SAFETY: the element of a flow that has ended; a number is read.
    let counted = about(config, index).map_or(0, |about| unsafe { (*about).counted });
    if counted == 0 {
        atomic::exchange(&mut flow.state, state::CUT, state::FREE);
    }
}
