//! Addresses that are moving between nodes by plan. The new owner sends packets of connections that it does not know to
//! the former owner, where they drain. The former owner no longer answers for the addresses.

use aya_ebpf::{
    bindings::{bpf_sock, bpf_sock_tuple},
    helpers::{bpf_redirect, bpf_sk_release, bpf_skc_lookup_tcp, bpf_tcp_check_syncookie},
    programs::TcContext,
};
use signalbox_common::{
    Reason,
    cut::moving::{MovingAddress, role},
    net::{Buffer, Tuple, seq},
};

use super::{
    DROP, PASS, Verdict,
    maps::{CUT_CHAIN, CUT_CONFIG},
    skb::{ETH_HEADER, Family, PacketView, context_field, tick},
};

/// Value of `pkt_type` of a packet whose link-layer destination is this machine (include/uapi/linux/if_packet.h).
const PACKET_HOST: u32 = 0;
/// `BPF_F_CURRENT_NETNS`.
const BPF_F_CURRENT_NETNS: u64 = u64::MAX;
/// State of a socket that listens (`TCP_LISTEN`, include/net/tcp_states.h).
const BPF_TCP_LISTEN: u32 = 10;
/// Offsets in an ARP packet over Ethernet (RFC 826), and the operation of a request.
const ARP_OPERATION: u32 = ETH_HEADER + 6;
const ARP_TARGET: u32 = ETH_HEADER + 24;
const ARP_REQUEST: u16 = 1;
/// Length of the TCP header without options, in words.
const TCP_WORDS: usize = 5;

/// Entry of an address that moves. While no address moves, which is nearly always, this is one read of an array.
#[inline(always)]
fn moving_address(address: &[u32; 4]) -> Option<MovingAddress> {
    if CUT_CONFIG.get(0)?.has_moving_addresses == 0 {
        return None;
    }
    // SAFETY: the value is copied at once; userspace replaces it as a whole.
    unsafe { CUT_CHAIN.get(address) }.copied()
}

/// Sends a packet to the former owner of its destination. The packet belongs to no cut flow and is no SYN, and no
/// socket here knows its connection.
#[inline(never)]
pub fn send_to_former_owner<F: Family>(ctx: &TcContext, tuple: &Tuple) -> Verdict {
    try_send::<F>(ctx, tuple).unwrap_or(Verdict::new(Reason::CutMiss, PASS))
}

#[inline(always)]
fn try_send<F: Family>(ctx: &TcContext, tuple: &Tuple) -> Option<Verdict> {
    let entry = moving_address(&tuple.destination)?;
    let ifindex = context_field(ctx, |skb| unsafe { &raw const (*skb).ifindex });
    let is_ours = context_field(ctx, |skb| unsafe { &raw const (*skb).pkt_type }) == PACKET_HOST;
    if !entry.has_role(role::NEW_OWNER) || entry.ifindex != ifindex || !is_ours || !seq::after(entry.until, tick()) {
        return None;
    }
    let mut view = PacketView::current(ctx);
    if has_socket::<F>(ctx, &view, tuple)? {
        return None;
    }
    let [m0, m1, m2, m3, m4, m5] = entry.mac;
    let former = (u16::from_be_bytes([m0, m1]), u32::from_be_bytes([m2, m3, m4, m5]));
    // Not back to the node that it came from: that node is the former owner of its former owner.
    if (view.u16(6)?, view.u32(8)?) == former {
        return None;
    }
    // Switches learn from source addresses where a machine is, so the packet leaves with this machine's own address.
    let own = (view.u16(0)?, view.u32(2)?);
    view.set_u16(0, former.0)?;
    view.set_u32(2, former.1)?;
    view.set_u16(6, own.0)?;
    view.set_u32(8, own.1)?;
    // SAFETY: the helper takes numbers.
    let action = unsafe { bpf_redirect(ifindex, 0) };
    Some(Verdict::new(Reason::CutChained, action as i32))
}

/// Whether a packet belongs to a socket of this machine: one with its addresses and ports in any state, or a listening
/// one if the packet completes a handshake with a SYN cookie.
#[inline(always)]
fn has_socket<F: Family>(ctx: &TcContext, view: &PacketView, tuple: &Tuple) -> Option<bool> {
    let tcp = network_order(view.words::<TCP_WORDS>(F::TCP)?);
    // SAFETY: all-zero parameters are valid; the helpers read as much as they are told; a socket that is found is
    // released.
    unsafe {
        let mut parameters: bpf_sock_tuple = core::mem::zeroed();
        let ports = [(tuple.ports >> 16) as u16, tuple.ports as u16];
        let size = if F::VERSION == 4 {
            let v4 = &mut parameters.__bindgen_anon_1.ipv4;
            (v4.saddr, v4.daddr) = (tuple.source[3].to_be(), tuple.destination[3].to_be());
            (v4.sport, v4.dport) = (ports[0].to_be(), ports[1].to_be());
            size_of_val(v4)
        } else {
            let v6 = &mut parameters.__bindgen_anon_1.ipv6;
            (v6.saddr, v6.daddr) = (network_order(tuple.source), network_order(tuple.destination));
            (v6.sport, v6.dport) = (ports[0].to_be(), ports[1].to_be());
            size_of_val(v6)
        };
        let (context, size) = (ctx.skb.skb.cast(), size as u32);
        let socket: *mut bpf_sock = bpf_skc_lookup_tcp(context, &raw mut parameters, size, BPF_F_CURRENT_NETNS, 0);
        if socket.is_null() {
            return Some(false);
        }
        let mut is_its = true;
        if (*socket).state == BPF_TCP_LISTEN {
            is_its = if F::VERSION == 4 {
                completes_handshake::<5>(socket, view, &tcp)
            } else {
                completes_handshake::<10>(socket, view, &tcp)
            };
        }
        bpf_sk_release(socket.cast());
        Some(is_its)
    }
}

/// Whether a packet has a SYN cookie of a listening socket. `N` is the length of the IP header in words.
///
/// # Safety
///
/// `socket` must be a socket that a lookup has found, and that is not released.
#[inline(always)]
unsafe fn completes_handshake<const N: usize>(
    socket: *mut bpf_sock,
    view: &PacketView,
    tcp: &[u32; TCP_WORDS],
) -> bool {
    let Some(ip) = view.words::<N>(ETH_HEADER) else {
        return false;
    };
    let ip = network_order(ip);
    // SAFETY: the helper reads both headers, which are on the stack, and the socket.
    let found = unsafe {
        bpf_tcp_check_syncookie(
            socket.cast(),
            ip.as_ptr().cast_mut().cast(),
            4 * N as u32,
            tcp.as_ptr().cast_mut().cast(),
            4 * TCP_WORDS as u32,
        )
    };
    found == 0
}

#[inline(always)]
fn network_order<const N: usize>(mut words: [u32; N]) -> [u32; N] {
    let mut i = 0;
    while i < N {
        words[i] = words[i].to_be();
        i += 1;
    }
    words
}

/// Drops ARP requests for addresses that have left this machine. The addresses are still local for the connections that
/// drain, and the kernel would answer.
#[inline(never)]
pub fn on_arp(ctx: &TcContext) -> Verdict {
    should_ignore(ctx).map_or(Verdict::UNHANDLED, |()| Verdict::new(Reason::CutArpIgnored, DROP))
}

#[inline(always)]
fn should_ignore(ctx: &TcContext) -> Option<()> {
    if CUT_CONFIG.get(0)?.has_moving_addresses == 0 {
        return None;
    }
    let view = PacketView::new(ctx, ARP_TARGET + 4);
    if view.u16(ARP_OPERATION)? != ARP_REQUEST {
        return None;
    }
    let entry = moving_address(&Tuple::mapped(view.u32(ARP_TARGET)?))?;
    entry.has_role(role::FORMER_OWNER).then_some(())
}
