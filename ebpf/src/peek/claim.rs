//! Entries of the flow table and source ports that a CPU claims for a new connection.

use core::marker::PhantomData;

use aya_ebpf::{helpers::bpf_get_smp_processor_id, programs::TcContext};
use signalbox_common::{
    cut::flow::state,
    net::{
        Tuple, atomic,
        bounded_loop::{BoundedLoop as _, Round},
    },
    peek::abi::{PeekConfig, PeekCursor},
};

use super::{
    kernel_loop::KernelLoop,
    maps::{CUT_CT, CUT_FLOWS, claim_port},
    pass_up::{find_socket, socket},
    release::reclaim,
};
use crate::cut::skb::{Family, tick};

/// Entries, and ports, that are tried for one connection.
const MAX_CLAIMS: u32 = 8;
/// Factor by which each try jumps farther than the one before: entries claimed together are next to each other.
const STRIDE_FACTOR: u32 = 4;
const _: () = assert!(STRIDE_FACTOR.pow(MAX_CLAIMS - 1) <= 0xffff);
/// Neither an entry nor a port: all that were tried are in use.
pub const NOT_CLAIMED: u32 = u32::MAX;

/// Begins a search.
#[inline(always)]
const fn begin(cursor: &mut PeekCursor) {
    cursor.stride = 1;
    cursor.claimed = NOT_CLAIMED;
}

/// Has the next try jump farther than the last one.
#[inline(always)]
const fn jump(cursor: &mut PeekCursor) -> u32 {
    let stride = cursor.stride;
    cursor.stride = stride * STRIDE_FACTOR;
    stride
}

/// Claims an entry of the flow table, or [`NOT_CLAIMED`]. A function of its own: `connect` needs the stack.
#[inline(never)]
pub fn claim_flow(config: &PeekConfig, cursor: &mut PeekCursor) -> u32 {
    begin(cursor);
    let mut tries = FlowRounds { config, cursor };
    KernelLoop::repeat(MAX_CLAIMS, &mut tries);
    tries.cursor.claimed
}

struct FlowRounds<'a> {
    config: &'a PeekConfig,
    cursor: &'a mut PeekCursor,
}

impl Round for FlowRounds<'_> {
    #[inline(always)]
    fn round(&mut self) -> bool {
        let (config, cursor) = (self.config, &mut *self.cursor);
        // SAFETY: reads a number.
        let cpu = unsafe { bpf_get_smp_processor_id() };
        // A CPU without a share claims nothing; neither does one whose share is empty.
        let Some(place) = cursor.flow.checked_rem(config.flows).filter(|_| cpu < config.cpus) else {
            return false;
        };
        let index = config.first_flow + cpu * config.flows + place;
        cursor.flow = cursor.flow.wrapping_add(jump(cursor));
        if config.is_orphaned(tick()) {
            reclaim(index);
        }
        if claim_entry(index) {
            cursor.claimed = index;
            return false;
        }
        true
    }
}

/// Claims one entry; false where a flow has it.
#[inline(always)]
fn claim_entry(index: u32) -> bool {
    let Some(flow) = CUT_FLOWS.get_ptr_mut(index) else {
        return false;
    };
    // SAFETY: an element of the array, changed atomically.
    let state = unsafe { &mut (*flow).state };
    atomic::exchange(state, state::FREE, state::ALLOCATED)
}

/// Claims a source port that neither a flow to the host nor a socket has, or [`NOT_CLAIMED`]; completes the tuple of the
/// host's packets. `cursor.nodes` nodes share the ports: each has those of its remainder.
#[inline(never)]
pub fn claim_free_port<F: Family>(
    ctx: &TcContext,
    config: &PeekConfig,
    cursor: &mut PeekCursor,
    arriving: &mut Tuple,
    flow: u32,
) -> u32 {
    begin(cursor);
    let mut tries = PortRounds::<F> {
        ctx,
        config,
        cursor,
        arriving,
        flow,
        family: PhantomData,
    };
    KernelLoop::repeat(MAX_CLAIMS, &mut tries);
    tries.cursor.claimed
}

struct PortRounds<'a, F> {
    ctx: &'a TcContext,
    config: &'a PeekConfig,
    cursor: &'a mut PeekCursor,
    arriving: &'a mut Tuple,
    flow: u32,
    family: PhantomData<F>,
}

impl<F: Family> Round for PortRounds<'_, F> {
    #[inline(always)]
    fn round(&mut self) -> bool {
        let (config, cursor) = (self.config, &mut *self.cursor);
        let nodes = cursor.nodes;
        // SAFETY: reads a number.
        let cpu = unsafe { bpf_get_smp_processor_id() };
        let place = cursor.port.wrapping_mul(nodes).checked_rem(config.ports);
        let Some(place) = place.filter(|_| cpu < config.cpus) else {
            return false;
        };
        let mut port = config.first_port + cpu * config.ports + place;
        cursor.port = cursor.port.wrapping_add(jump(cursor));
        if nodes > 1 {
            port = port - port % nodes + config.slot;
            if port < config.first_port {
                port += nodes;
            } else if port >= config.first_port + config.cpus * config.ports {
                port -= nodes;
            }
        }
        port &= 0xffff;
        self.arriving.ports = self.arriving.ports & 0xffff_0000 | port;
        if claim_tuple::<F>(self.ctx, self.arriving, self.flow) {
            cursor.claimed = port;
            return false;
        }
        true
    }
}

/// Claims the source port of a tuple of a host's packets; false where the port is in use.
#[inline(always)]
fn claim_tuple<F: Family>(ctx: &TcContext, arriving: &Tuple, flow: u32) -> bool {
    let is_free = is_free_tuple(arriving) && find_socket::<F>(ctx, arriving) == socket::NONE;
    is_free && claim_port(arriving.ports, flow)
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
