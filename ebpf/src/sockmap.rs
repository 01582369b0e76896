//! `sk_skb` stream verdict: moves received bytes of one leg to the other leg's socket, within the credit.
//!
//! Keyed by socket cookie. Bytes are never dropped: they are acknowledged already (`net/core/skmsg.c`).

use aya_ebpf::{
    EbpfContext as _,
    bindings::sk_action,
    helpers::bpf_get_socket_cookie,
    macros::{map, stream_verdict},
    maps::{Array, HashMap, RingBuf, SockHash},
    programs::SkBuffContext,
};
use signalbox_common::{
    Reason,
    credit::{Credit, CreditEvent, CreditVerdict, MAX_CREDITS, SockmapLeg},
};

use crate::count::count;

const BPF_F_MMAPABLE: u32 = 1 << 10;
const BPF_F_NO_PREALLOC: u32 = 1;

/// Peer of each socket: where received bytes go. No program is attached to this map.
///
/// - Entry: socket cookie -> peer's socket
/// - Writer: kernel/src/sockmap.rs, when a flow joins tier sockmap
/// - Reader: sockmap_verdict
/// - Size: 65536; not pinned: a flow of this tier ends with its process
#[map]
static SOCKMAP_PEERS: SockHash<u64> = SockHash::with_max_entries(MAX_CREDITS, 0);

/// Sockets that sockmap_verdict is attached to, and whose received bytes the program sees.
///
/// - Entry: socket cookie -> socket
/// - Writer: kernel/src/sockmap.rs, when a flow joins tier sockmap
/// - Reader: the kernel, to run sockmap_verdict
/// - Size: 65536; not pinned: a flow of this tier ends with its process
#[map]
static SOCKMAP_SOCKETS: SockHash<u64> = SockHash::with_max_entries(MAX_CREDITS, 0);

/// Credit that a socket's received bytes count against.
///
/// - Entry: socket cookie -> index in `SOCKMAP_CREDITS`
/// - Writer: kernel/src/sockmap.rs, when a flow joins tier sockmap
/// - Reader: sockmap_verdict
/// - Size: 65536; not pinned: a flow of this tier ends with its process
#[map]
static SOCKMAP_LEGS: HashMap<u64, SockmapLeg> = HashMap::with_max_entries(MAX_CREDITS, BPF_F_NO_PREALLOC);

/// Credits of directions, which bound the bytes in flight.
///
/// - Entry: index -> bytes sent, passed and consumed, limit
/// - Writer: sockmap_verdict (sent, passed, blocked, failed); datapath/sockmap.rs (limit, consumed); kernel/src/sockmap.rs begins a
///   flow's
/// - Reader: both of them
/// - Size: 65536, mapped into userspace; not pinned: a flow of this tier ends with its process
#[map]
static SOCKMAP_CREDITS: Array<Credit> = Array::with_max_entries(MAX_CREDITS, BPF_F_MMAPABLE);

/// Events: credits that have just been exhausted.
///
/// - Entry: event -> index in `SOCKMAP_CREDITS`
/// - Writer: sockmap_verdict, which wakes the reader
/// - Reader: app/kernel_parts.rs for datapath/sockmap_watch.rs
/// - Size: 256 KiB; not pinned: events of another process are of no use
#[map]
static SOCKMAP_CREDIT_EVENTS: RingBuf = RingBuf::with_byte_size(256 * 1024, 0);

#[stream_verdict]
pub fn sockmap_verdict(ctx: SkBuffContext) -> u32 {
    let reason = decide(&ctx);
    count(reason as u32);
    // A FIN without bytes is dropped: TCP has acted on it already. If passed, it would be queued after the bytes that
    // this socket has yet to send. It would count as a failed transmission of 0 bytes there, and end with EPIPE and the
    // loss of that data (`net/core/skmsg.c`, `sk_psock_backlog`). Bytes of a flow that is about to be reset are
    // dropped, too.
    if reason as u32 == Reason::SockmapEmpty as u32 || reason as u32 == Reason::SockmapFailed as u32 {
        return sk_action::SK_DROP;
    }
    // The helper has recorded a redirect; the verdict is "pass" either way.
    sk_action::SK_PASS
}

#[inline(always)]
fn decide(ctx: &SkBuffContext) -> Reason {
    let len = ctx.len();
    if len == 0 {
        return Reason::SockmapEmpty;
    }
    // SAFETY: the context pointer is the one the kernel gave; the helper accepts sk_skb contexts (4.12+).
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    // SAFETY: userspace replaces a [`SockmapLeg`] only while its socket is in no map with a program.
    let Some(leg) = (unsafe { SOCKMAP_LEGS.get(&cookie) }) else {
        return Reason::SockmapNoCredit;
    };
    let index = leg.credit;
    let Some(credit) = SOCKMAP_CREDITS.get_ptr_mut(index) else {
        return Reason::SockmapNoCredit;
    };
    let [seq, end] = tcp_numbers(ctx);
    // SAFETY: as for the verdict below.
    let less = unsafe { (*credit).take(seq, end, len) };
    if less < 0 && take_off_start(ctx, less).is_err() {
        // SAFETY: as above.
        unsafe { (*credit).failed = 1 };
        notify_blocked(index);
        return Reason::SockmapFailed;
    }
    let len = len.wrapping_add_signed(less);
    if len == 0 {
        return Reason::SockmapEmpty;
    }
    // SAFETY: non-null element of the array; the program's fields have no other writer (this runs under the
    // socket's lock), userspace's two are read once each, volatile, because it writes them through its mapping.
    let verdict = unsafe {
        let consumed = core::ptr::addr_of!((*credit).consumed).read_volatile();
        let limit = core::ptr::addr_of!((*credit).limit).read_volatile();
        (*credit).decide(u64::from(len), consumed, limit)
    };
    match verdict {
        CreditVerdict::Pass => Reason::SockmapPassed,
        CreditVerdict::PassAndNotify => {
            notify_blocked(index);
            Reason::SockmapCreditExhausted
        }
        CreditVerdict::Redirect => {
            if SOCKMAP_PEERS.redirect_skb(ctx, cookie, 0) == i64::from(sk_action::SK_PASS) {
                return Reason::SockmapRedirected;
            }
            // SAFETY: as above. The bytes were not redirected after all.
            unsafe {
                (*credit).sent = (*credit).sent.wrapping_sub(u64::from(len));
                (*credit).packets = (*credit).packets.wrapping_sub(1);
                (*credit).block(u64::from(len));
            }
            notify_blocked(index);
            Reason::SockmapNoPeer
        }
    }
}

/// Returns the sequence numbers of a packet and of the bytes after it: TCP keeps them where programs see `cb`
/// (`include/net/tcp.h`, `struct tcp_skb_cb`; `include/net/strparser.h`, `struct sk_skb_cb`).
#[inline(always)]
fn tcp_numbers(ctx: &SkBuffContext) -> [u32; 2] {
    // SAFETY: the context pointer is the one the kernel gave.
    unsafe { [(*ctx.skb.skb).cb[0], (*ctx.skb.skb).cb[1]] }
}

/// Removes bytes from a packet's start, as many as `less` is below zero (`sk_skb_adjust_room`, 5.10+; 4095 at a time).
/// Fails if there is no memory.
#[inline(always)]
fn take_off_start(ctx: &SkBuffContext, mut less: i32) -> Result<(), ()> {
    const MAX_SHRINK_BYTES: i32 = 0xfff;
    /// More than the largest packet (512 KiB, BIG TCP).
    const MAX_SHRINKS: u32 = 129;
    for _ in 0..MAX_SHRINKS {
        if less == 0 {
            break;
        }
        let now = if less > -MAX_SHRINK_BYTES {
            less
        } else {
            -MAX_SHRINK_BYTES
        };
        ctx.adjust_room(now, 0, 0).map_err(drop)?;
        less -= now;
    }
    if less == 0 { Ok(()) } else { Err(()) }
}

/// Reports to userspace that a credit is exhausted or has failed, and wakes it. A full ring loses the event;
/// userspace's sweep finds the direction all the same.
#[inline(always)]
fn notify_blocked(credit: u32) {
    let _ = SOCKMAP_CREDIT_EVENTS.output::<CreditEvent>(CreditEvent { credit, _pad: 0 }, 0);
}
