//! Next hops of hosts.

use aya_ebpf::{
    EbpfContext as _,
    bindings::bpf_fib_lookup as FibParams,
    helpers::{bpf_fib_lookup, bpf_redirect, bpf_redirect_neigh},
    programs::TcContext,
};
use signalbox_common::{
    net::{Tuple, seq::is_ahead},
    peek::abi::{MAX_ANSWERING, PeekHost},
};

use super::settings::config;
use crate::cut::skb::{Family, TCP, context_field, tick};

/// Lifetime of a next hop, in ticks: about a second. Neighbours and routes change.
pub const HOP_LIFETIME_TICKS: u32 = 950;

/// The answer of a machine that does not forward (`BPF_FIB_LKUP_RET_FWD_DISABLED`), which says nothing else.
const FORWARDING_DISABLED: i32 = 5;

/// Whether the next hop of a host is known.
#[inline(always)]
pub fn is_known(host: &PeekHost) -> bool {
    host.hop_ifindex != 0 && is_ahead(host.hop_expires, tick(), HOP_LIFETIME_TICKS)
}

/// A next hop that a lookup has found: its interface, and the Ethernet header towards it, destination before source.
pub struct FoundHop {
    pub ifindex: u32,
    pub macs: [u32; 3],
}

/// Looks a next hop up. Returns what the kernel says (`BPF_FIB_LKUP_RET_*`, include/uapi/linux/bpf.h).
#[inline(never)]
fn look_up_address<F: Family>(ctx: &TcContext, from: &[u32; 4], to: &[u32; 4], hop: &mut FoundHop) -> i32 {
    // SAFETY: all-zero parameters are valid; fields of unions are set by family, as the kernel reads them.
    unsafe {
        let mut params: FibParams = core::mem::zeroed();
        params.family = F::ADDRESS_FAMILY;
        params.l4_protocol = TCP;
        params.ifindex = context_field(ctx, |skb| &raw const (*skb).ifindex);
        if F::ADDRESS_WORDS == 1 {
            params.__bindgen_anon_3.ipv4_src = from[3].to_be();
            params.__bindgen_anon_4.ipv4_dst = to[3].to_be();
        } else {
            params.__bindgen_anon_3.ipv6_src = from.map(u32::to_be);
            params.__bindgen_anon_4.ipv6_dst = to.map(u32::to_be);
        }
        let answer = bpf_fib_lookup(ctx.as_ptr(), &raw mut params, size_of::<FibParams>() as i32, 0);
        let [d0, d1, d2, d3, d4, d5] = params.dmac;
        let [s0, s1, s2, s3, s4, s5] = params.smac;
        hop.macs = [
            u32::from_be_bytes([d0, d1, d2, d3]),
            u32::from_be_bytes([d4, d5, s0, s1]),
            u32::from_be_bytes([s2, s3, s4, s5]),
        ];
        hop.ifindex = params.ifindex;
        answer as i32
    }
}

/// Looks the next hop of a host up, if it is not known. 0: the kernel finds the neighbour when the packet leaves.
#[inline(never)]
pub fn look_up<F: Family>(ctx: &TcContext, host: &mut PeekHost) -> u32 {
    let now = tick();
    if is_known(host) {
        return 1;
    }
    let mut hop = FoundHop {
        ifindex: 0,
        macs: [0; 3],
    };
    if look_up_address::<F>(ctx, &host.local, &host.address, &mut hop) != 0 {
        return 0;
    }
    host.macs = hop.macs;
    host.hop_ifindex = hop.ifindex;
    host.hop_expires = now.wrapping_add(HOP_LIFETIME_TICKS);
    1
}

/// Ways back to a client.
pub mod way {
    /// The next hop is known.
    pub const KNOWN: u32 = 0;
    /// By the interface that the packet has come by: the kernel finds the neighbour when the answer leaves.
    pub const NEIGHBOUR: u32 = 1;
    /// By another interface, or by none that is known.
    pub const ELSEWHERE: u32 = 2;
}

/// Looks up the way back to the sender of a segment: a constant of [`way`]. The Ethernet address of the segment's
/// sender is not used: a cookie proves only that a client gets packets sent to its address.
#[inline(always)]
pub fn way_back<F: Family>(ctx: &TcContext, tuple: &Tuple, hop: &mut FoundHop) -> u32 {
    const NO_NEIGHBOUR: i32 = 7;
    let answer = look_up_address::<F>(ctx, &tuple.destination, &tuple.source, hop);
    let ifindex = context_field(ctx, |skb| unsafe { &raw const (*skb).ifindex });
    if answer == FORWARDING_DISABLED {
        if answers_by(ifindex, F::VERSION) {
            way::NEIGHBOUR
        } else {
            way::ELSEWHERE
        }
    } else if hop.ifindex != ifindex || answer != 0 && answer != NO_NEIGHBOUR {
        way::ELSEWHERE
    } else if answer == 0 {
        way::KNOWN
    } else {
        way::NEIGHBOUR
    }
}

/// Places of an address that moves between nodes.
pub mod place {
    /// This machine has it.
    pub const HERE: u32 = 0;
    /// This machine does not forward: the kernel says nothing.
    pub const UNKNOWN: u32 = 1;
    /// Another machine has it.
    pub const ELSEWHERE: u32 = 2;
}

/// Place of a segment's destination: a constant of [`place`]. Userspace may learn of it later than clients.
#[inline(never)]
pub fn place_of<F: Family>(ctx: &TcContext, tuple: &Tuple) -> u32 {
    /// The answer for an address of the machine (`BPF_FIB_LKUP_RET_NOT_FWDED`).
    const NOT_FORWARDED: i32 = 4;
    let mut hop = FoundHop {
        ifindex: 0,
        macs: [0; 3],
    };
    match look_up_address::<F>(ctx, &tuple.source, &tuple.destination, &mut hop) {
        NOT_FORWARDED => place::HERE,
        FORWARDING_DISABLED => place::UNKNOWN,
        _ => place::ELSEWHERE,
    }
}

/// Whether SYNs that come by an interface may be answered by it, as userspace has found.
#[inline(always)]
fn answers_by(ifindex: u32, version: u8) -> bool {
    let Some(config) = config() else {
        return false;
    };
    let all = if version == 4 {
        &config.answering[0]
    } else {
        &config.answering[1]
    };
    let mut i = 0;
    while i < MAX_ANSWERING {
        if all[i] == ifindex {
            return true;
        }
        i += 1;
    }
    false
}

/// Interface by which a host is reached: that of its next hop, once a lookup has found one. A machine that does not
/// forward finds none (`bpf_fib_lookup` is refused): there userspace has looked the route up.
#[inline(always)]
pub fn interface(host: &PeekHost) -> u32 {
    if host.hop_ifindex == 0 {
        host.ifindex
    } else {
        host.hop_ifindex
    }
}

/// Sends the packet to a host.
#[inline(always)]
pub fn send(host: &PeekHost) -> i32 {
    let has_hop = is_known(host);
    // SAFETY: helpers that take numbers.
    let action = unsafe {
        if has_hop {
            bpf_redirect(host.hop_ifindex, 0)
        } else {
            bpf_redirect_neigh(interface(host), core::ptr::null_mut(), 0, 0)
        }
    };
    action as i32
}
