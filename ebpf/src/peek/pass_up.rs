//! Passing up: the kernel makes a socket from a cookie, and the segment goes on to it.

use aya_ebpf::{
    EbpfContext as _,
    bindings::{__sk_buff, bpf_sock, bpf_sock_tuple},
    helpers::{bpf_sk_release, bpf_skc_lookup_tcp, generated::bpf_skc_to_tcp_sock},
    programs::TcContext,
};
use signalbox_common::{
    Reason,
    cut::{
        Handshake,
        flow::{CLIENT_FIN_SEEN, OFFERED_SACK, OFFERED_SCALE, OFFERED_TIMESTAMPS, SYN_ACK_SEEN},
    },
    net::{Buffer as _, Tuple, header::FIN},
    peek::{abi::KFUNC_ASSIGN_REQUEST, cookie::CookieCheck},
};

use super::{
    DROP, PASS, exit,
    maps::PEEK_DONE,
    repair,
    segment::Segment,
    settings::{OUR_SCALE, our_mss, scale_factor},
};
use crate::{
    cut::skb::{Family, PacketView, context_field},
    handshakes::CUT_HANDSHAKES,
};

/// `BPF_F_CURRENT_NETNS`.
const BPF_F_CURRENT_NETNS: u64 = u64::MAX;
/// State of a socket that listens (`TCP_LISTEN`, include/net/tcp_states.h).
const BPF_TCP_LISTEN: u32 = 10;
/// State of one that waits for the client's confirmation (`TCP_NEW_SYN_RECV`).
const BPF_TCP_NEW_SYN_RECV: u32 = 12;

/// `struct bpf_tcp_req_attrs` (include/net/tcp.h).
#[repr(C)]
struct RequestAttributes {
    rcv_tsval: u32,
    rcv_tsecr: u32,
    mss: u16,
    rcv_wscale: u8,
    snd_wscale: u8,
    ecn_ok: u8,
    wscale_ok: u8,
    sack_ok: u8,
    tstamp_ok: u8,
    usec_ts_ok: u8,
    reserved: [u8; 3],
}

/// `bpf_sk_assign_tcp_reqsk`, a function of the kernel (net/core/filter.c, kernel 6.9): gives the packet a socket whose
/// handshake was done elsewhere. The call has a number of no helper, which userspace replaces before it loads the program.
///
/// # Safety
///
/// `socket` must be one that a lookup has found and that listens, and `attributes` must be whole.
#[inline(always)]
unsafe fn assign_request(
    skb: *mut __sk_buff,
    socket: *mut core::ffi::c_void,
    attributes: *mut RequestAttributes,
    size: i32,
) -> i32 {
    type Function = unsafe extern "C" fn(*mut __sk_buff, *mut core::ffi::c_void, *mut RequestAttributes, i32) -> i32;
    // SAFETY: the number becomes the operand of a call instruction, as those of helpers do.
    unsafe {
        let function: Function = core::mem::transmute(KFUNC_ASSIGN_REQUEST as usize);
        function(skb, socket, attributes, size)
    }
}

/// Looks for the socket of a tuple: one with its addresses and ports, or the listening one.
#[inline(always)]
fn look_up<F: Family>(ctx: &TcContext, tuple: &Tuple) -> *mut bpf_sock {
    let ports = [(tuple.ports >> 16) as u16, tuple.ports as u16];
    // SAFETY: all-zero parameters are valid; the helper reads as much as it is told.
    unsafe {
        let mut parameters: bpf_sock_tuple = core::mem::zeroed();
        let size = if F::VERSION == 4 {
            let v4 = &mut parameters.__bindgen_anon_1.ipv4;
            (v4.saddr, v4.daddr) = (tuple.source[3].to_be(), tuple.destination[3].to_be());
            (v4.sport, v4.dport) = (ports[0].to_be(), ports[1].to_be());
            size_of_val(v4)
        } else {
            let v6 = &mut parameters.__bindgen_anon_1.ipv6;
            (v6.saddr, v6.daddr) = (tuple.source.map(u32::to_be), tuple.destination.map(u32::to_be));
            (v6.sport, v6.dport) = (ports[0].to_be(), ports[1].to_be());
            size_of_val(v6)
        };
        bpf_skc_lookup_tcp(ctx.as_ptr(), &raw mut parameters, size as u32, BPF_F_CURRENT_NETNS, 0)
    }
}

/// Sockets that may have the addresses and ports of a tuple. Numbers, because a function of a BPF program returns one
/// register.
pub mod socket {
    pub const NONE: u32 = 0;
    /// A request socket: the kernel has answered a SYN, and the client has not confirmed that.
    pub const REQUEST: u32 = 1;
    pub const WHOLE: u32 = 2;
}

/// Returns which socket has the addresses and ports of a tuple: a constant of [`socket`].
#[inline(never)]
pub fn find_socket<F: Family>(ctx: &TcContext, tuple: &Tuple) -> u32 {
    let found = look_up::<F>(ctx, tuple);
    if found.is_null() {
        return socket::NONE;
    }
    // SAFETY: a socket that was found, and is released.
    unsafe {
        let state = (*found).state;
        bpf_sk_release(found.cast());
        match state {
            BPF_TCP_LISTEN => socket::NONE,
            BPF_TCP_NEW_SYN_RECV => socket::REQUEST,
            _ => socket::WHOLE,
        }
    }
}

/// Gives a connection to userspace, with a client's segment.
#[inline(always)]
pub fn pass_up<F: Family>(ctx: &TcContext, segment: &Segment, check: &CookieCheck, stamps: &[u32; 2]) -> i32 {
    if !repair::is_needed::<F>() {
        assign::<F>(ctx, segment, check, stamps)
    } else if repair::keep_segment::<F>(ctx, segment) != 0 {
        repair::hand_over::<F>(ctx, segment, check)
    } else {
        exit(Reason::PeekPassUpFailed, DROP)
    }
}

/// Makes the kernel create a socket for a client's segment, which goes on to it.
#[inline(never)]
fn assign<F: Family>(ctx: &TcContext, segment: &Segment, check: &CookieCheck, stamps: &[u32; 2]) -> i32 {
    record_handshake::<F>(ctx, segment, check);
    let options = &check.options;
    let has = |bit: u8| u8::from(options.offered & bit != 0);
    let socket = look_up::<F>(ctx, &segment.tuple);
    if socket.is_null() {
        return exit(Reason::PeekPassUpFailed, PASS);
    }
    let mut failed = -1;
    // SAFETY: a socket that was found, and is released.
    unsafe {
        if (*socket).state == BPF_TCP_LISTEN {
            let full = bpf_skc_to_tcp_sock(socket.cast());
            let mut attributes = RequestAttributes {
                rcv_tsval: stamps[0],
                rcv_tsecr: stamps[1],
                mss: options.mss,
                rcv_wscale: OUR_SCALE * scale_factor(options.offered),
                snd_wscale: options.scale,
                ecn_ok: 0,
                wscale_ok: has(OFFERED_SCALE),
                sack_ok: has(OFFERED_SACK),
                tstamp_ok: has(OFFERED_TIMESTAMPS),
                usec_ts_ok: 0,
                reserved: [0; 3],
            };
            if !full.is_null() {
                let size = size_of::<RequestAttributes>() as i32;
                failed = assign_request(ctx.skb.skb, full.cast(), &raw mut attributes, size);
            }
        }
        bpf_sk_release(socket.cast());
    }
    if failed == 0 {
        let _ = PEEK_DONE.insert(&segment.tuple, &passed_up(segment.tcp.seq), 0);
        exit(Reason::PeekPassedUp, PASS)
    } else {
        exit(Reason::PeekPassUpFailed, PASS)
    }
}

/// Entry of [`PEEK_DONE`] for first data at `seq` that was passed up; routed first data has the number itself.
#[inline(always)]
pub const fn passed_up(seq: u32) -> u32 {
    !seq
}

/// Records the handshake as `cut_out` would have seen it, so that userspace can cut the connection.
#[inline(always)]
fn record_handshake<F: Family>(ctx: &TcContext, segment: &Segment, check: &CookieCheck) -> Option<()> {
    let handshake = handshake_of::<F>(ctx, segment, check)?;
    let _ = CUT_HANDSHAKES.insert(&segment.tuple, &handshake, 0);
    Some(())
}

/// The handshake that a client's first data ends.
#[inline(always)]
pub fn handshake_of<F: Family>(ctx: &TcContext, segment: &Segment, check: &CookieCheck) -> Option<Handshake> {
    let view = PacketView::current(ctx);
    let options = &check.options;
    Some(Handshake {
        isn_client: segment.tcp.seq,
        isn_vip: segment.tcp.ack,
        ts_clock: check.clock,
        ifindex: context_field(ctx, |skb| unsafe { &raw const (*skb).ifindex }),
        mss_client: options.mss,
        mss_vip: our_mss::<F>()?,
        scale_client: options.scale,
        scale_vip: OUR_SCALE * scale_factor(options.offered),
        agreed: options.offered,
        // A FIN with the first data has passed `cut_in` before this record of the handshake existed.
        progress: SYN_ACK_SEEN | CLIENT_FIN_SEEN * ((segment.tcp.flags & FIN) / FIN),
        macs: swapped_macs(&view)?,
    })
}

/// Ethernet header of an answer to the packet.
#[inline(always)]
pub fn swapped_macs(view: &PacketView) -> Option<[u32; 3]> {
    let [a, b, c] = view.words(0)?;
    // Destination a, upper half of b; source lower half of b, c.
    Some([b << 16 | c >> 16, c << 16 | a >> 16, a << 16 | b >> 16])
}
