//! Entries of the flow table and source ports that a CPU claims for a new connection.

use aya_ebpf::{helpers::bpf_get_smp_processor_id, programs::TcContext};
use signalbox_common::{
    cut::flow::state,
    net::{BoundedLoop as _, Tuple, atomic},
    peek::abi::{PeekConfig, PeekCursor},
};

use super::{
    kernel_loop::KernelLoop,
    maps::{CUT_CT, CUT_FLOWS, claim_port},
    pass_up::{find_socket, socket},
    release::reclaim,
};
use crate::{
    cut::skb::{Family, tick},
    packet_view::hide_from_verifier,
};

/// Entries, and ports, that are tried for one connection.
const MAX_CLAIMS: u32 = 8;
/// Factor by which each try jumps farther than the one before: entries claimed together are next to each other.
const STRIDE_FACTOR: u32 = 4;
/// Longest jump of a try: a mask, so that the verifier knows its bound in each round.
const MAX_STRIDE: u32 = 0xffff;
const _: () = assert!(STRIDE_FACTOR.pow(MAX_CLAIMS - 1) <= MAX_STRIDE);
/// Neither an entry nor a port: all that were tried are in use.
const NOT_CLAIMED: u32 = u32::MAX;

/// Claims an entry of the flow table.
#[inline(always)]
pub fn claim_flow(config: &PeekConfig, cursor: &mut PeekCursor) -> Option<u32> {
    // SAFETY: reads a number.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    if config.flows == 0 || cpu >= config.cpus {
        return None;
    }
    let is_orphaned = u32::from(config.is_orphaned(tick()));
    let mut stride = hide_from_verifier(1, cursor.flow) & MAX_STRIDE;
    let mut claimed = hide_from_verifier(NOT_CLAIMED, cursor.flow);
    let mut tries = KernelLoop::NEW;
    tries.begin(MAX_CLAIMS);
    while tries.next() {
        let index = config.first_flow + cpu * config.flows + cursor.flow % config.flows;
        cursor.flow = cursor.flow.wrapping_add(stride);
        stride = hide_from_verifier(stride * STRIDE_FACTOR, cursor.flow) & MAX_STRIDE;
        if claim_entry(index, is_orphaned) != 0 {
            claimed = index;
            break;
        }
    }
    tries.end();
    (claimed != NOT_CLAIMED).then_some(claimed)
}

/// Claims one entry; 0 where a flow has it. A function of its own, as those below: see `read::step_request`.
#[inline(never)]
fn claim_entry(index: u32, is_orphaned: u32) -> u32 {
    let Some(flow) = CUT_FLOWS.get_ptr_mut(index) else {
        return 0;
    };
    if is_orphaned != 0 {
        reclaim(index);
    }
    // SAFETY: an element of the array, changed atomically.
    let state = unsafe { &mut (*flow).state };
    u32::from(atomic::exchange(state, state::FREE, state::ALLOCATED))
}

/// Claims a source port that neither a flow to the host nor a socket has; completes the tuple of the host's packets.
/// Several nodes share the ports: each has those of its remainder.
#[inline(always)]
pub fn claim_free_port<F: Family>(
    ctx: &TcContext,
    config: &PeekConfig,
    cursor: &mut PeekCursor,
    arriving: &mut Tuple,
    nodes: u32,
    flow: u32,
) -> Option<u32> {
    // SAFETY: reads a number.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    if config.ports == 0 || cpu >= config.cpus {
        return None;
    }
    let host_port = arriving.ports;
    let mut stride = hide_from_verifier(1, cursor.port) & MAX_STRIDE;
    let mut claimed = hide_from_verifier(NOT_CLAIMED, cursor.port);
    let mut tries = KernelLoop::NEW;
    tries.begin(MAX_CLAIMS);
    while tries.next() {
        let mut port = config.first_port + cpu * config.ports + cursor.port.wrapping_mul(nodes) % config.ports;
        cursor.port = cursor.port.wrapping_add(stride);
        stride = hide_from_verifier(stride * STRIDE_FACTOR, cursor.port) & MAX_STRIDE;
        if nodes > 1 {
            port = port - port % nodes + config.slot;
            if port < config.first_port {
                port += nodes;
            } else if port >= config.first_port + config.cpus * config.ports {
                port -= nodes;
            }
        }
        port &= 0xffff;
        arriving.ports = host_port | port;
        if claim_tuple::<F>(ctx, arriving, flow) != 0 {
            claimed = port;
            break;
        }
    }
    tries.end();
    (claimed != NOT_CLAIMED).then_some(claimed)
}

/// Claims the source port of a tuple of a host's packets; 0 where the port is in use.
#[inline(never)]
fn claim_tuple<F: Family>(ctx: &TcContext, arriving: &Tuple, flow: u32) -> u32 {
    let is_free = is_free_tuple(arriving) && find_socket::<F>(ctx, arriving) == socket::NONE;
    u32::from(is_free && claim_port(arriving.ports, flow))
}

/// Whether no flow has a tuple. A flow that has ended gives its tuple up.
#[inline(always)]
fn is_free_tuple(tuple: &Tuple) -> bool {
    // SAFETY: the value is copied at once.
    let Some(entry) = (unsafe { CUT_CT.get(tuple) }).copied() else {
        return true;
    };
    reclaim(entry.index);
    // SAFETY: only its presence is checked.
    unsafe { CUT_CT.get(tuple) }.is_none()
}
