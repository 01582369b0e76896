//! Ends of connections. One that was never established gives back its flow, its port and its waiting data. One that has
//! ended gives back its tuples, and its flow where userspace is dead.

use signalbox_common::{
    cut::{
        CutFlow, DirState, PendingFlow,
        flow::{IS_PEEKED, SOCKETS_CLOSED, state},
    },
    net::{Tuple, atomic},
    peek::abi::{AWAY_TICKS, NO_FLOW, PeekConfig, PeekHost, PeekPending, UNFIT_TICKS},
};

use super::{
    maps::{CUT_CT, CUT_FLOWS, PEEK_HOSTS, PEEK_PENDING, about, notify, release_port},
    settings::config,
};
use crate::cut::skb::tick;

/// Gives up a flow that waits for its host: no packet finds it any more by its port. Its entry is left to the flow GC,
/// because another CPU may be completing it at this moment.
#[inline(always)]
pub fn give_up(client: &Tuple, pending: &PeekPending) {
    if pending.flow != NO_FLOW {
        release_port(pending.port, pending.flow);
    }
    let _ = PEEK_PENDING.remove(client);
}

/// Holds a flow that waits for the host of `pending`: neither its answer nor userspace, which may ask another host, changes
/// it until [`let_go`]. False where it waits no longer, or for another host.
#[inline(always)]
pub fn hold(flow: &mut PendingFlow, pending: &PeekPending) -> bool {
    if !atomic::exchange(&mut flow.state, state::CONNECTING, state::PAIRING) {
        return false;
    }
    // SAFETY: aligned, whole: userspace may just have changed it. An element of the array; a number is read.
    let is_of_host = unsafe {
        let host = (&raw const flow.host).read_volatile();
        PEEK_HOSTS
            .get_ptr(pending.host)
            .is_some_and(|known| (*known).number == host)
    };
    if !is_of_host {
        let_go(flow, state::CONNECTING);
    }
    is_of_host
}

/// Leaves a flow that is held in a state.
#[inline(always)]
pub fn let_go(flow: &mut PendingFlow, state: u32) {
    atomic::exchange(&mut flow.state, state::PAIRING, state);
}

/// Records in a flow that waits for the host of `pending` why that does not carry it; userspace counts that. False where it
/// waits no longer, or for another host.
#[inline(always)]
pub fn note_failure(flow: &mut PendingFlow, pending: &PeekPending, why: u8) -> bool {
    if !hold(flow, pending) {
        return false;
    }
    flow.ineligible = why;
    let_go(flow, state::INELIGIBLE);
    notify(pending.flow, 0);
    true
}

/// Has new connections go to other hosts for a while: this one refuses them, or does not answer.
#[inline(always)]
pub fn set_aside(host: u32) {
    if let Some(host) = PEEK_HOSTS.get_ptr_mut(host) {
        // SAFETY: an element of the array; each number is written whole, and a lost count does no harm.
        unsafe {
            (*host).refused = (*host).refused.wrapping_add(1);
            (*host).away_until = PeekHost::until(tick(), AWAY_TICKS);
        }
    }
}

/// Has new connections to a host passed up for a while: its options do not agree with those of clients.
#[inline(always)]
pub fn note_unfit(host: u32) {
    if let Some(host) = PEEK_HOSTS.get_ptr_mut(host) {
        // SAFETY: as above.
        unsafe {
            (*host).refused = (*host).refused.wrapping_add(1);
            (*host).unfit_until = PeekHost::until(tick(), UNFIT_TICKS);
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
