//! First data that another node may have got. A client whose SYN another node has answered sends its first data here
//! when that node has lost the address: unanswered data once more, which may have reached a host already. If that node
//! has acknowledged it, only later data comes.

use aya_ebpf::programs::TcContext;
use signalbox_common::{
    Reason,
    peek::abi::{EARLY_TICKS, MAX_EARLY_TICKS},
};

use super::{DROP, PASS, exit, maps::PEEK_EARLY, segment::Segment};
use crate::cut::skb::{Family, tick};

/// Whether a segment's data begins with a request that may be sent twice, or with a ClientHello: at a listener that has just
/// been left to userspace, the protocol is not known.
#[inline(never)]
pub fn is_repeatable<F: Family>(ctx: &TcContext, segment: &Segment) -> u32 {
    let Ok(start) = ctx.load::<u32>((F::TCP + segment.tcp.length) as usize) else {
        return 0;
    };
    let start = start.to_ne_bytes();
    (is_idempotent(&start) || start[..2] == [22, 3]).into()
}

/// Whether a request that begins so may be sent twice: its method is idempotent (RFC 9110, section 9.2.2).
#[inline(always)]
fn is_idempotent(start: &[u8; 4]) -> bool {
    matches!(start, b"GET " | b"HEAD" | b"PUT " | b"DELE" | b"OPTI" | b"TRAC")
}

/// Decides about data after missing first data. Usually the network has changed the order, and the client repeats both:
/// dropped. Otherwise nobody repeats the first data, and the client must be told: the kernel sends a reset.
#[inline(never)]
pub fn on_later(segment: &Segment) -> i32 {
    let (now, seq) = (tick(), segment.tcp.seq);
    // SAFETY: numbers, read at once.
    let known = unsafe { PEEK_EARLY.get(&segment.tuple) }.copied();
    let (mut since, mut repeats) = (now, 0);
    if let Some([first, begun, before]) = known {
        let waited = now.wrapping_sub(begun);
        if first == seq && waited < MAX_EARLY_TICKS {
            (since, repeats) = (begun, before + 1);
            // A client probes for a lost tail by repeating its last segment once (RFC 8985, section 7), and over a long path
            // does so after this time.
            if waited >= EARLY_TICKS && repeats > 1 {
                return exit(Reason::PeekFirstLost, PASS);
            }
        }
    }
    let _ = PEEK_EARLY.insert(&segment.tuple, &[seq, since, repeats], 0);
    exit(Reason::PeekEarly, DROP)
}
