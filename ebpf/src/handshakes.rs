//! Handshakes of clients. The programs of tier `cut` record them, and those of the shield remove them where a SYN
//! cookie answers.

use aya_ebpf::{macros::map, maps::LruHashMap};
use signalbox_common::cut::flow::{Handshake, MAX_HANDSHAKES};
use signalbox_common::net::Tuple;

/// Handshakes of clients with the balancer.
///
/// - Entry: a client's tuple -> initial sequence numbers, options, clock
/// - Writer: cut_in, cut_out; peek_in for connections that it passes up; kernel/src/cut.rs for HTTP/2 clients that were
///   greeted; l4_xdp, l4_tc remove (cookies)
/// - Reader: cut_in at SYN-ACKs, FINs and new connections on known ports; cut_out at SYNs and SYN-ACKs
/// - Size: 65536, the least recently used are evicted: a flood of SYNs costs the cut, not the connection; pinned: a
///   takeover loses none
#[map]
pub static CUT_HANDSHAKES: LruHashMap<Tuple, Handshake> = if crate::RECORDS_HANDSHAKES {
    LruHashMap::pinned(MAX_HANDSHAKES, 0)
} else {
    // Userspace replaces this map by the other object's map.
    LruHashMap::with_max_entries(1, 0)
};
